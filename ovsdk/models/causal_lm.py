"""The executor of a causal language model: batches of a SlotScheduler become launches. Host code, without torch.

A launch's inputs hold no sampled token, for the host need not know one to launch: see `resident`. All else that a row
needs (position, which slots are live, how to sample) is known when the batch is planned.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy

from ..errors import ConfigError
from ..interfaces import Backend
from ..types import Launch
from .slots import Batch, Row

SHORTEST_PREFIX = 64


def prefix_bucket(length: int) -> int:
    """The power of two, at least 64, that holds `length` keys: few shapes for attention, and sums that are cut alike."""
    return max(SHORTEST_PREFIX, 1 << (length - 1).bit_length())


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two int32 that key the noise of one row: a hash of the request's seed (any int) and the position of its input token."""
    digest = blake2b(struct.pack("<Qq", seed & (2**64 - 1), position), digest_size=8).digest()
    first, second = struct.unpack("<ii", digest)
    return first, second


class CausalLM:
    """Runs a model of the Llama family. Implements `ovsdk.Executor`; `SlotScheduler` is a scheduler for it.

    `folder` is a Hugging Face folder; `slots` the most live requests; `max_len` the most tokens of a sequence, prompt
    included (the cache is as long as the next power of two); `dtype` is "float32", "bfloat16" or "float16".
    Its launches are `prefill` and `decode`, with features `batch`, `tokens` and `kv_tokens`.
    """

    def __init__(self, folder: str | Path, *, slots: int = 8, max_len: int = 256, dtype: str = "float32") -> None:
        if slots < 1 or max_len < 1:
            raise ConfigError(f"slots and max_len must be at least 1, got {slots!r} and {max_len!r}")
        self.slots, self.max_len = slots, max_len
        self._home: Backend | None = None
        self.build = partial(_build, str(folder), slots, max_len, dtype)

    def open(self, backend: Backend) -> None:
        """Load the weights onto the device, once a backend. Raises ConfigError if there is no such model."""
        if self._home is not backend:
            self.model, self._home = backend.load(self.build), backend

    def prepare(self, step: int, batch: Batch) -> tuple[Launch, ...]:
        """Build the input arrays. Raises ConfigError for a row beyond `slots` or `max_len`."""
        for row in batch.prefills + batch.decodes:
            self._refuse_beyond(row)
        launches = [self._prefill(row) for row in batch.prefills]
        return (*launches, self._decode(batch.decodes)) if batch.decodes else tuple(launches)

    def launch(self, step: int, inputs: tuple[Launch, ...]) -> Launch | tuple[Launch, ...]:
        """One launch for each prefill, then one for all rows that decode."""
        return inputs if len(inputs) > 1 else inputs[0]

    def _prefill(self, row: Row) -> Launch:
        prompt = numpy.array(row.request.prompt, numpy.int64)
        return Launch(
            "prefill",
            fn=self.model.prefill,
            inputs={"prompt": prompt, "sampling": _sampling([row], [0], 1)},
            host={"slot": row.slot},
            features={"batch": 1, "tokens": len(prompt), "kv_tokens": len(prompt)},
            stub=partial(_stub, 1),
        )

    def _decode(self, rows: Sequence[Row]) -> Launch:
        slots = [row.slot for row in rows]
        positions, live = numpy.zeros(self.slots, numpy.int64), numpy.zeros(self.slots, numpy.bool_)
        positions[slots], live[slots] = [row.position for row in rows], True
        prefix = prefix_bucket(int(positions.max()) + 1)
        sampling = _sampling(rows, slots, self.slots)
        return Launch(
            "decode",
            fn=self.model.decode,
            inputs={"positions": positions, "live": live, "sampling": sampling},
            host={"prefix": prefix},
            graph=("decode", prefix, *sampling),
            features={"batch": len(rows), "tokens": len(rows), "kv_tokens": int(positions.sum()) + len(rows)},
            stub=partial(_stub, self.slots),
        )

    def _refuse_beyond(self, row: Row) -> None:
        if not (0 <= row.slot < self.slots and row.position < self.max_len):
            raise ConfigError(
                f"request {row.request.id!r}: slot {row.slot}, position {row.position}; this executor has slots 0 to {self.slots - 1} and "
                f"positions 0 to {self.max_len - 1}: give scheduler and executor the same slots and max_len"
            )


def _build(folder: str, slots: int, max_len: int, dtype: str, device: str) -> Any:
    from .resident import build  # torch comes in here, on the device's side, and not at all where nothing is executed

    return build(folder, slots, max_len, dtype, device)


def _sampling(rows: Sequence[Row], at: Sequence[int], size: int) -> Mapping[str, numpy.ndarray[Any, Any]]:
    """The arrays of `sampling.pick` with each row at its index: only those that some row needs, for noise and sorting are not free."""
    requests = [row.request for row in rows]
    if not any(request.temperature for request in requests):
        return {}
    temperature, keys = numpy.zeros(size, numpy.float32), numpy.zeros((size, 2), numpy.int32)
    temperature[at] = [request.temperature for request in requests]
    keys[at] = [noise_key(row.request.seed, row.position) for row in rows]
    arrays: dict[str, numpy.ndarray[Any, Any]] = {"temperature": temperature, "keys": keys}
    if any(request.top_k or request.top_p < 1 for request in requests):
        top_k, top_p = numpy.full(size, _ALL, numpy.int64), numpy.ones(size, numpy.float32)
        top_k[at], top_p[at] = [request.top_k or _ALL for request in requests], [request.top_p for request in requests]
        arrays |= {"top_k": top_k, "top_p": top_p}
    return arrays


_ALL = 2**31


def _stub(rows: int) -> dict[str, numpy.ndarray[Any, Any]]:
    """An output of the right shape for a device that computes nothing: not a prediction of the model. Token 33 is printable
    in every byte-level vocabulary and ends no answer."""
    top = numpy.tile(numpy.arange(33, 38), (rows, 1))
    return {
        "tokens": numpy.full(rows, 33, numpy.int64),
        "logprobs": numpy.full(rows, -1.0, numpy.float32),
        "top_ids": top.astype(numpy.int64),
        "top_logprobs": numpy.full(top.shape, -1.0, numpy.float32),
    }
