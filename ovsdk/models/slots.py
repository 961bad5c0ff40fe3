"""Requests, batches, and a scheduler with one slot per live request. Its decisions depend on asks and results alone.

Counted ahead: how many tokens a request may still get is known when a row is planned, so a request that ends by length
is never overrun, and its slot is free as soon as its last row is planned.

Known late: an end-of-sequence token, a stop string, an abort or a failed step is learned while later rows of the request
may be in flight. Those are overruns: each is recognised by (slot, generation), dropped and counted, whatever it holds.

A freed slot may be reused at once, though rows of its old owner are still to run: the stream is FIFO, so the new owner's
prefill runs after all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import attrs
import numpy

from ..errors import ConfigError, SchedulerProtocolError
from ..types import CLOSED, IDLE, Answer, Ask


def _at_least(least: float) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(request: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if not value >= least:
            raise ConfigError(f"request {request.id!r}: {field.name} is {value!r}; it must be at least {least}")

    return check


def _tokens(tokens: Iterable[int]) -> tuple[int, ...]:
    return tuple(tokens)


def _strings(strings: Iterable[str]) -> tuple[str, ...]:
    return tuple(strings)


@attrs.frozen(kw_only=True)
class Request:
    """What a user asks for. Raises ConfigError for a value out of range."""

    id: Hashable = attrs.field(kw_only=False)
    """Unique in a run."""
    prompt: tuple[int, ...] = attrs.field(kw_only=False, converter=_tokens)
    """Token ids, at least one."""
    max_tokens: int = attrs.field(default=64, validator=_at_least(1))
    """Most new tokens, the end-of-sequence token included."""
    temperature: float = attrs.field(default=0.0, validator=_at_least(0))
    """0 is greedy."""
    top_k: int = attrs.field(default=0, validator=_at_least(0))
    """Sample among this many likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Sample among the fewest tokens that have this probability together; 1 means all."""
    seed: int = 0
    """With the position, all that the noise of sampling depends on."""
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    """Strings that end the answer; they are not part of its text."""
    ignore_eos: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.prompt:
            raise ConfigError(f"request {self.id!r} has an empty prompt; it must be at least one token")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"request {self.id!r}: top_p is {self.top_p!r}; it must be above 0 and at most 1")
        if not all(self.stop):
            raise ConfigError(f"request {self.id!r}: a stop string is empty: {self.stop!r}")


class Row(NamedTuple):
    """One request's part of a step: it feeds the token at `position` and samples the one after."""

    request: Request
    slot: int
    generation: int
    """Which admission this is: no two in a run have the same."""
    position: int


@attrs.frozen
class Batch:
    """One step's work: a launch for each prefill, then one decode over all slots if any row decodes."""

    prefills: tuple[Row, ...] = ()
    decodes: tuple[Row, ...] = ()

    @property
    def launches(self) -> int:
        """How many launches the step is."""
        return len(self.prefills) + bool(self.decodes)

    @property
    def features(self) -> dict[str, float]:
        """`batch`: rows; `tokens`: tokens fed; `kv_tokens`: keys read."""
        return {
            "batch": len(self.prefills) + len(self.decodes),
            "tokens": sum(row.position + 1 for row in self.prefills) + len(self.decodes),
            "kv_tokens": sum(row.position + 1 for row in self.prefills + self.decodes),
        }

    def places(self) -> Iterator[tuple[Row, int, int]]:
        """Each row, which of the step's launches computes it, and its index in that launch's output: 0, or for a decode its slot."""
        yield from ((row, launch, 0) for launch, row in enumerate(self.prefills))
        yield from ((row, len(self.prefills), row.slot) for row in self.decodes)


class Sampled(NamedTuple):
    """What a launch gives for one row: each field is an array over the launch's rows in the launch's output, under the plural name."""

    token: int
    logprob: float
    """Of that token."""
    top_ids: tuple[int, ...]
    """The likeliest tokens, likeliest first."""
    top_logprobs: tuple[float, ...]


OUTPUTS = ("tokens", "logprobs", "top_ids", "top_logprobs")
"""Keys of a launch's output, in the order of Sampled's fields."""


class Text(Protocol):
    """Makes text and more of one request's tokens as they come: see `ovsdk.models.text.Transcript`."""

    def add(self, sampled: Sampled) -> bool:
        """Take the next token; True if the text has now met a stop string."""
        ...

    def end(self, finish_reason: str) -> Mapping[str, Any]:
        """No more comes. Values for `Output`'s fields `text`, `top` and `blocks`."""
        ...


@attrs.frozen(kw_only=True)
class Output:
    """A request's answer. The same at every depth, unless the request was aborted or a step failed."""

    id: Hashable
    tokens: tuple[int, ...]
    """New tokens; one that ended the answer is the last of them."""
    logprobs: tuple[float, ...]
    """The model's own log-probability of each."""
    finish_reason: str
    """`eos`, `stop` (a stop string), `length`, `abort`, `error` or `refused`."""
    text: str = ""
    top: tuple[Any, ...] = ()
    """Per token, the likeliest tokens with their log-probabilities."""
    blocks: tuple[str, ...] = ()
    """Hashes of the full blocks of prompt and answer, for a prefix cache."""
    error: BaseException | None = attrs.field(default=None, eq=False)
    """Why it failed or was refused."""
    arrived: int = attrs.field(default=-1, eq=False)
    """Number of the ask that brought it; -1: it was there from the start."""
    steps: tuple[int, ...] = attrs.field(default=(), eq=False)
    """The step that gave each token. With `arrived` what `ovsdk.metrics` needs: this scheduler reads no clock."""


@attrs.define(eq=False)
class _Live:
    """A request that has been admitted and has not ended. It holds its slot while `left` is not 0."""

    request: Request
    slot: int
    generation: int
    left: int
    """Tokens not yet planned."""
    text: Text | None
    arrived: int
    steps: list[int] = attrs.field(factory=list)
    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[float] = attrs.field(factory=list)

    def row(self) -> Row:
        """Plan one token more."""
        self.left -= 1
        planned = self.request.max_tokens - self.left
        return Row(self.request, self.slot, self.generation, len(self.request.prompt) + planned - 2)

    def add(self, step: int, sampled: Sampled, eos: Collection[int]) -> str | None:
        """Take a step's token and return why it was the last, or None."""
        self.steps.append(step)
        self.tokens.append(sampled.token)
        self.logprobs.append(sampled.logprob)
        stopped = self.text is not None and self.text.add(sampled)
        if sampled.token in eos and not self.request.ignore_eos:
            return "eos"
        if stopped:
            return "stop"
        return "length" if len(self.tokens) == self.request.max_tokens else None


class SlotScheduler:
    """Gives each request a slot until it ends; decodes all live slots in every step. Implements `ovsdk.Scheduler`.

    `requests` are there from the start, others come by asks; with `closed` False the run stays open for them when all is
    done. `eos` are the token ids that end an answer. `max_len` is the most tokens a sequence can have, prompt included.
    `prefills` bounds the requests admitted in a step: each lengthens that step for all who are decoding. `text` makes
    a request's Text.

    `outputs` has the Output of every request that has ended, by id; a server takes them out. `overruns` counts rows
    that were launched after their request's stop. Raises ConfigError for a request in `requests` that cannot be served,
    and for an id that was used before; one that arrives and cannot be served gets an Output, `refused`.
    """

    def __init__(
        self,
        requests: Iterable[Request] = (),
        *,
        slots: int = 8,
        eos: int | Collection[int] = (),
        max_len: int | None = None,
        prefills: int = 1,
        closed: bool = True,
        text: Callable[[Request], Text] | None = None,
    ) -> None:
        if slots < 1 or prefills < 1:
            raise ConfigError(f"slots and prefills must be at least 1, got {slots!r} and {prefills!r}")
        self.eos = frozenset([eos] if isinstance(eos, int) else eos)
        self.max_len, self.prefills, self.closed, self.text = max_len, prefills, closed, text
        self.outputs: dict[Hashable, Output] = {}
        self.overruns = 0
        self._free = deque(range(slots))
        self._admitted = 0
        self._arrived: dict[Hashable, int] = {}
        self._waiting: deque[Request] = deque()
        self._live: dict[tuple[int, int], _Live] = {}
        for request in requests:
            self._enter(request)

    def plan(self, ask: Ask) -> Batch | Answer:
        """A batch of everything that can go on; else CLOSED, or IDLE if requests may still come."""
        for request in ask.arrivals:
            self._arrive(request, ask.number)
        for request_id in ask.aborts:
            self._abort(request_id)
        # Prefills are planned, and in the step run, before the decode that may free slots: a slot is never given away earlier in
        # a step than its owner's last row.
        decoding = [live for live in self._live.values() if live.left]
        prefills = [self._admit() for _ in range(min(self.prefills, len(self._free), len(self._waiting)))]
        decodes = [self._plan_row(live) for live in decoding]
        if prefills or decodes:
            return Batch(tuple(prefills), tuple(decodes))
        return CLOSED if self.closed else IDLE

    def retire(self, step: int, batch: Batch, result: Any) -> None:
        """Give each live row its token. `result` is a launch's output (see OUTPUTS), or a tuple of them: see `Batch.places`."""
        launches = [_rows(output) for output in (result if isinstance(result, tuple) else (result,))]
        if len(launches) != batch.launches:
            raise SchedulerProtocolError(f"step {step} is {batch.launches} launches (see Batch), but its result is {len(launches)} outputs")
        for row, launch, index in batch.places():
            live = self._live_or_overrun(row)
            if live is not None and (reason := live.add(step, launches[launch][index], self.eos)):
                self._end(live, reason)

    def fail(self, step: int, batch: Batch, error: BaseException) -> None:
        """End the requests of a failed step with its error; their rows in later steps are overruns."""
        for row, _, _ in batch.places():
            live = self._live_or_overrun(row)
            if live is not None:
                self._end(live, "error", error)

    def _arrive(self, request: Request, ask: int) -> None:
        try:
            self._enter(request, ask)
        except _Unservable as error:
            self.outputs[request.id] = Output(id=request.id, tokens=(), logprobs=(), finish_reason="refused", error=error)

    def _enter(self, request: Request, ask: int = -1) -> None:
        if request.id in self._arrived:
            raise ConfigError(f"request id {request.id!r} was used before in this run; ids must be unique")
        self._arrived[request.id] = ask
        if request.stop and self.text is None:
            raise _Unservable(f"request {request.id!r} has stop strings {request.stop!r}, but this scheduler makes no text (text=None)")
        length = len(request.prompt) + request.max_tokens
        if self.max_len is not None and length > self.max_len:
            raise _Unservable(
                f"request {request.id!r} may become {length} tokens long ({len(request.prompt)} prompt + max_tokens {request.max_tokens}); "
                f"at most {self.max_len} fit: shorten it or make max_len larger"
            )
        self._waiting.append(request)

    def _abort(self, request_id: Hashable) -> None:
        """An id that is not known, or has ended, is no error: an abort may come late."""
        for live in [live for live in self._live.values() if live.request.id == request_id]:
            self._end(live, "abort")
        for request in [request for request in self._waiting if request.id == request_id]:
            self._waiting.remove(request)
            self.outputs[request_id] = Output(id=request_id, tokens=(), logprobs=(), finish_reason="abort")

    def _admit(self) -> Row:
        request = self._waiting.popleft()
        self._admitted += 1
        text = self.text(request) if self.text else None
        live = _Live(request, self._free.popleft(), self._admitted, request.max_tokens, text, self._arrived[request.id])
        self._live[live.slot, live.generation] = live
        return self._plan_row(live)

    def _plan_row(self, live: _Live) -> Row:
        row = live.row()
        if not live.left:
            self._free.append(live.slot)
        return row

    def _live_or_overrun(self, row: Row) -> _Live | None:
        live = self._live.get((row.slot, row.generation))
        self.overruns += live is None
        return live

    def _end(self, live: _Live, reason: str, error: BaseException | None = None) -> None:
        del self._live[live.slot, live.generation]
        if live.left:
            self._free.append(live.slot)
        products = live.text.end(reason) if live.text else {}
        self.outputs[live.request.id] = Output(
            id=live.request.id,
            tokens=tuple(live.tokens),
            logprobs=tuple(live.logprobs),
            finish_reason=reason,
            error=error,
            arrived=live.arrived,
            steps=tuple(live.steps),
            **products,
        )


class _Unservable(ConfigError):
    """This scheduler can never serve that request."""


def _rows(output: Mapping[str, Any]) -> list[Sampled]:
    try:
        columns = [numpy.asarray(output[name]).tolist() for name in OUTPUTS]
    except (KeyError, TypeError, IndexError) as error:
        raise SchedulerProtocolError(f"a launch's output must be a mapping with {', '.join(OUTPUTS)}; got {output!r:.200}") from error
    return [Sampled(token, logprob, tuple(ids), tuple(top)) for token, logprob, ids, top in zip(*columns, strict=True)]
