"""What lives on the device: weights, a KV cache by slot, and the future tokens. `Backend.load` builds it there.

FUTURE TOKENS: a step scatters the token that it sampled into `self.tokens`, the next step gathers it from there. The host
launches a decode before it knows what the one before has sampled; a decode's inputs hold no token at all.

FIXED SLOTS: a decode computes every slot, always, so its matrices have one shape and a row's numbers do not depend on
which other rows are live. A prefill is one request alone, at its exact length. Rows that are not live read nothing that
matters and write only to a scratch position of their slot.

Launches run in FIFO order: whatever a slot's former owner launched has run when the next owner's prefill overwrites it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..errors import ConfigError
from .causal_lm import prefix_bucket
from .llama import Llama, load_llama
from .sampling import pick, report


class SlotModel:
    """A causal language model with `slots` independent sequences of at most `max_len` tokens.

    Raises ConfigError if the model has not as many positions.
    """

    def __init__(self, network: Llama, slots: int, max_len: int) -> None:
        c, weights = network.config, network.embedding
        if max_len > c.max_position_embeddings:
            raise ConfigError(
                f"sequences of {max_len} tokens are asked for, but the model's max_position_embeddings is {c.max_position_embeddings}"
            )
        self.network, self.length = network, prefix_bucket(max_len)
        # One position more than a sequence can have: the scratch position.
        shape = (c.layers, 2, slots, c.kv_heads, self.length + 1, c.head_dim)
        self.cache = torch.zeros(shape, dtype=weights.dtype, device=weights.device)
        self.tokens = torch.zeros(slots, dtype=torch.int64, device=weights.device)
        self.rows = torch.arange(slots, device=weights.device)

    @torch.inference_mode()
    def prefill(self, prompt: Any, slot: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Start a sequence in `slot`: int64[n] prompt in, the first new token's row out (see `sampling.report`)."""
        prompt = self._here(prompt)
        positions = torch.arange(len(prompt), device=prompt.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            self.cache[layer, 0, slot, :, : len(prompt)] = k[0]
            self.cache[layer, 1, slot, :, : len(prompt)] = v[0]
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).flatten(2)

        logits = self.network.forward(prompt[None], positions[None], attend)
        sampled = pick(logits, self._there(sampling))
        self.tokens[slot] = sampled[0]
        return _out(report(logits, sampled))

    @torch.inference_mode()
    def decode(self, positions: Any, live: Any, prefix: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """One token more in every live slot: int64[slots] positions of the input tokens and bool[slots] in, a row per slot out.

        `prefix` is `prefix_bucket` of the longest live sequence. Rows of slots that are not live are without meaning.

        The keys from a row's own position to `prefix` are masked, and a masked key changes no bit: its weight is exp(-inf) = 0
        exactly, and 0 times a finite value, added in whatever order, is nothing (the cache starts as zeros and holds only
        finite numbers after). What is left is that a matrix library may cut a longer sum at other places. It cuts in
        powers of two, or not at all, for lengths that are powers of two, so `prefix_bucket` gives only such.
        """
        positions, live = self._here(positions), self._here(live)
        write = torch.where(live, positions, self.length)
        seen = (torch.arange(prefix, device=positions.device) <= positions[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[layer]
            keys[self.rows, :, write] = k[:, 0]
            values[self.rows, :, write] = v[:, 0]
            # The query heads that share a KV head stand where a sequence's queries would: no key is copied for them.
            grouped = q.view(keys.shape[0], keys.shape[1], -1, keys.shape[-1])
            out = scaled_dot_product_attention(grouped, keys[:, :, :prefix], values[:, :, :prefix], attn_mask=seen)
            return out.flatten(1)[:, None]

        logits = self.network.forward(self.tokens[:, None], positions[:, None], attend)
        sampled = pick(logits, self._there(sampling))
        self.tokens.copy_(torch.where(live, sampled, self.tokens))
        return _out(report(logits, sampled))

    def _here(self, array: Any) -> Tensor:
        return torch.as_tensor(array, device=self.tokens.device)

    def _there(self, arrays: Mapping[str, Any]) -> dict[str, Tensor]:
        return {name: self._here(array) for name, array in arrays.items()}


def build(folder: str | Path, slots: int, max_len: int, dtype: str, device: str) -> SlotModel:
    """What `Backend.load` runs on the device. Raises ConfigError if the folder holds no such model."""
    return SlotModel(load_llama(folder, device, dtype), slots, max_len)


def _out(rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """numpy where the device is the CPU, for there is nothing to wait for; elsewhere tensors, which the backend copies."""
    return {name: x.numpy() if x.device.type == "cpu" else x for name, x in rows.items()}
