"""What an engine's host makes of each sampled token: text, stop strings, log-probabilities, block hashes, stream frames.

All incremental, and the sum of the parts is what one call over the whole would give: deltas join to the decoded text, cut
at the stop string; hashes do not depend on where a prompt ends. Without torch, and without a tokenizer: `decode` is given.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from .slots import Request, Sampled

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens left out; a character that is not complete becomes U+FFFD."""

UNFINISHED = "\ufffd"
BLOCK = 16
"""Tokens in a block of a prefix cache."""


class Detokenizer:
    """Text of a growing list of tokens, each character as soon as it is certain.

    Only the tokens since the last certain boundary are decoded again, together with those just before it, for some
    tokenizers begin a word differently at the start of a text. A last U+FFFD is held back: it may be the first bytes of
    a character; whatever stands before it can no longer change.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._known = ""
        """Decoded context, with what has been given out of the tokens after it."""
        self._open: list[int] = []

    def add(self, token: int) -> str:
        """The new certain text, maybe none."""
        self._open.append(token)
        text = self._decode(self._context + self._open)
        if text.endswith(UNFINISHED):
            return self._give(text[: -len(UNFINISHED)])
        delta = self._give(text)
        if delta or len(self._open) > BLOCK:  # special tokens decode to nothing: they may not pile up
            self._context, self._open = self._open, []
            self._known = self._decode(self._context)
        return delta

    def flush(self) -> str:
        """The rest, when no more tokens come: an unfinished character as U+FFFD."""
        return self._give(self._decode(self._context + self._open))

    def _give(self, text: str) -> str:
        delta = text[len(self._known) :]
        self._known += delta
        return delta


class StopStrings:
    """Cuts a text at the stop string that completes first (of two at once, the longer), however the text is sliced.

    What might be the beginning of a stop string is held back. `found` is the stop string met, or None.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, delta: str) -> str:
        """The new text that is certainly before any stop string; nothing after one."""
        text = "" if self.found is not None else self._held + delta
        met = [(text.index(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if met:
            end, _, self.found = min(met)
            self._held = ""
            return text[: end - len(self.found)]
        safe = len(text) - self._beginning_at_the_end_of(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """What is held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _beginning_at_the_end_of(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        lengths = (n for stop in self._stops for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)


class Likely(NamedTuple):
    """One of the likeliest tokens at a place."""

    token: int
    text: str
    logprob: float


def likely(sampled: Sampled, decode: Decode) -> tuple[Likely, ...]:
    """The likeliest tokens of a row, likeliest first."""
    return tuple(Likely(token, decode([token]), logprob) for token, logprob in zip(sampled.top_ids, sampled.top_logprobs, strict=True))


class BlockHashes:
    """Keys of a prefix cache: the hash of each full block of tokens, chained, so that equal hashes mean equal prefixes."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.hashes: list[str] = []
        self._open: list[int] = []
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Take the next token; each BLOCK of them adds to `hashes`, 32 hexadecimal digits."""
        self._open.append(token)
        if len(self._open) == BLOCK:
            parent = self.hashes[-1] if self.hashes else ""
            self.hashes.append(blake2b(parent.encode() + struct.pack(f"<{BLOCK}q", *self._open), digest_size=16).hexdigest())
            self._open.clear()


def frame(fields: Mapping[str, Any]) -> str:
    """One server-sent event that carries the fields as JSON."""
    return f"data: {json.dumps(fields, ensure_ascii=False, separators=(',', ':'))}\n\n"


class Transcript:
    """All of these for one request. Implements `slots.Text`; `functools.partial(Transcript, decode=..., emit=...)` makes them.

    `emit` is given a frame for each token (`id`, `index`, `token`, `logprob`, `text` that has become certain, `top`) and
    one at the end (`id`, `tokens`, `text`, `finish_reason`, `blocks`): the `text` fields join to the answer.
    """

    def __init__(self, request: Request, decode: Decode, emit: Callable[[str], object] | None = None) -> None:
        self.text = ""
        self._id, self._decode, self._emit = request.id, decode, emit
        self._detokenizer, self._stops = Detokenizer(decode), StopStrings(request.stop)
        self._blocks = BlockHashes(request.prompt)
        self._top: list[tuple[Likely, ...]] = []

    def add(self, sampled: Sampled) -> bool:
        """Take the next token; True if a stop string has been met."""
        delta = self._stops.add(self._detokenizer.add(sampled.token))
        self.text += delta
        top = likely(sampled, self._decode)
        self._send(index=len(self._top), token=sampled.token, logprob=sampled.logprob, text=delta, top=top)
        self._top.append(top)
        self._blocks.add(sampled.token)
        return self._stops.found is not None

    def end(self, finish_reason: str) -> dict[str, Any]:
        """Values for Output's `text`, `top` and `blocks`."""
        tail = self._stops.add(self._detokenizer.flush()) + self._stops.flush()
        self.text += tail
        blocks = tuple(self._blocks.hashes)
        self._send(tokens=len(self._top), text=tail, finish_reason=finish_reason, blocks=blocks)
        return {"text": self.text, "top": tuple(self._top), "blocks": blocks}

    def _send(self, **fields: Any) -> None:
        if self._emit is not None:
            self._emit(frame({"id": self._id, **fields}))
