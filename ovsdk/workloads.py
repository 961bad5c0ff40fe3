"""Workloads: when requests come and how long they are, as plain data. What users' schedulers and the slot scheduler are fed.

A workload is a tuple of Items in order of arrival, times in seconds since the run began, lengths in tokens. It is a
function of its arguments alone: draws are inverse distribution functions of uniform numbers from one stream for each
of gaps, prompts and outputs, keyed by the seed, never by `hash`. A longer workload begins with the shorter one.

    poisson:RATE           RATE requests a second, independent of each other
    bursts:RATE,ON,OFF     RATE a second while on, none while off; ON and OFF are the mean seconds, exponential
                           (interrupted Poisson process, Kuczura 1973)
    FILE                   a run log, or a trace: see `ovsdk.traces`
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

import attrs
import numpy

from .errors import ConfigError, refuse
from .models.slots import Request
from .queues import AdmissionQueue
from .traces import Item, read_trace

Uniform = Iterator[float]
"""Numbers from 0 to below 1."""
Length = Callable[[float], int]
"""Inverse distribution function of a length: uniform number -> tokens, at least 1."""


def uniform(seed: int, name: str) -> Uniform:
    """An endless stream of uniform numbers. Raises ConfigError for a seed that is not an int of at least 0."""
    if not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"a seed is an int of at least 0; got {seed!r}")
    stream = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    draw = numpy.random.Generator(numpy.random.PCG64(numpy.random.SeedSequence((seed, stream)))).random
    return itertools.chain.from_iterable(draw(1024).tolist() for _ in itertools.count())


# ---- lengths ----


def _fixed(tokens: float) -> Length:
    return lambda _: _tokens(tokens)


def _uniform(low: float, high: float) -> Length:
    if low > high:
        raise ConfigError(f"uniform:LOW,HIGH needs LOW at most HIGH; got {low:g},{high:g}")
    return lambda u: _tokens(math.floor(low + u * (high + 1 - low)))


def _geometric(mean: float) -> Length:
    if mean == 1:
        return _fixed(1)
    return lambda u: 1 + math.floor(math.log1p(-u) / math.log1p(-1 / mean))


def _lognormal(median: float, sigma: float) -> Length:
    inverse = NormalDist(math.log(median), sigma).inv_cdf if sigma else lambda _: math.log(median)
    return lambda u: _tokens(round(math.exp(inverse(max(u, 2**-53)))))


def _tokens(number: float) -> int:
    return max(1, int(number))


LENGTHS: Mapping[str, tuple[int, Callable[..., Length], str]] = {
    "fixed": (1, _fixed, "fixed:TOKENS"),
    "uniform": (2, _uniform, "uniform:LOW,HIGH"),
    "geometric": (1, _geometric, "geometric:MEAN"),
    "lognormal": (2, _lognormal, "lognormal:MEDIAN,SIGMA"),
}
"""Name -> how many numbers, its maker, how it is written."""


def length(text: str) -> Length:
    """A length's distribution from its text: see LENGTHS. Raises ConfigError for another."""
    name, numbers = _split(text, {name: spelt for name, (_, _, spelt) in LENGTHS.items()}, "length distribution")
    count, make, spelt = LENGTHS[name]
    _refuse_numbers(text, numbers, count, spelt)
    if numbers[0] < 1:
        raise ConfigError(f"{text!r}: a length is at least 1 token; got {numbers[0]:g}")
    return make(*numbers)


# ---- arrivals ----


class Arrivals(Protocol):
    """Where requests come from: `parse_arrivals` gives one."""

    def items(self, seed: int) -> Iterator[Item]:
        """Items in order of arrival, perhaps without end; a length of 0 is not known."""
        ...


@attrs.frozen
class Poisson:
    """`rate` requests a second, independent of each other. Raises ConfigError unless it is above 0."""

    rate: float = attrs.field()

    @rate.validator
    def _check(self, _: Any, rate: float) -> None:
        _refuse_unless_positive("an arrival rate (requests a second)", rate)

    def times(self, seed: int) -> Iterator[float]:
        """Arrival times, without end."""
        return itertools.accumulate(_exponential(u, 1 / self.rate) for u in uniform(seed, "gaps"))

    def items(self, seed: int) -> Iterator[Item]:
        """See `Arrivals.items`."""
        return _unmeasured(self.times(seed))


@attrs.frozen
class Bursts:
    """`rate` a second for `on_s`, none for `off_s` (means, exponential). Raises ConfigError unless all are above 0."""

    rate: float
    on_s: float
    off_s: float

    def __attrs_post_init__(self) -> None:
        for what, value in (("an arrival rate (requests a second)", self.rate), ("ON (seconds)", self.on_s), ("OFF (seconds)", self.off_s)):
            _refuse_unless_positive(what, value)

    @property
    def mean_rate(self) -> float:
        """Requests a second in the long run."""
        return self.rate * self.on_s / (self.on_s + self.off_s)

    def times(self, seed: int) -> Iterator[float]:
        """Arrival times, without end; time 0 is the begin of a burst."""
        gaps, periods = uniform(seed, "gaps"), uniform(seed, "periods")
        begin_s = 0.0
        while True:
            end_s = begin_s + _exponential(next(periods), self.on_s)
            at_s = begin_s + _exponential(next(gaps), 1 / self.rate)
            while at_s < end_s:
                yield at_s
                at_s += _exponential(next(gaps), 1 / self.rate)
            begin_s = end_s + _exponential(next(periods), self.off_s)

    def items(self, seed: int) -> Iterator[Item]:
        """See `Arrivals.items`."""
        return _unmeasured(self.times(seed))


def _unmeasured(times: Iterable[float]) -> Iterator[Item]:
    return (Item(number, at_s, 0, 0) for number, at_s in enumerate(times))


def _exponential(u: float, mean: float) -> float:
    return -math.log1p(-u) * mean


ARRIVALS = {"poisson": "poisson:RATE", "bursts": "bursts:RATE,ON,OFF"}


def parse_arrivals(text: str) -> Arrivals:
    """Arrivals from the command line's text: `poisson:RATE`, `bursts:RATE,ON,OFF` or a file's path.

    Raises ConfigError for anything else, and for a file that is neither a run log nor a trace.
    """
    if Path(text).is_file():
        return read_trace(text)
    if ":" not in text:
        raise ConfigError(f"no file {text!r}; arrivals are {', '.join(ARRIVALS.values())}, or the path of a run log or a trace")
    name, numbers = _split(text, ARRIVALS, "arrivals")
    kind: Any = {"poisson": Poisson, "bursts": Bursts}[name]
    _refuse_numbers(text, numbers, len(attrs.fields(kind)), ARRIVALS[name])
    arrivals: Arrivals = kind(*numbers)
    return arrivals


def _split(text: str, allowed: Mapping[str, str], what: str) -> tuple[str, list[float]]:
    name, _, rest = text.partition(":")
    if name not in allowed:
        refuse(what, text, allowed.values())
    try:
        return name, [float(number) for number in rest.split(",")]
    except ValueError as error:
        raise ConfigError(f"{what} {text!r}: {error}; write {allowed[name]}") from error


def _refuse_numbers(text: str, numbers: Sequence[float], count: int, spelt: str) -> None:
    if len(numbers) != count or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ConfigError(f"{text!r}: write {spelt}, with {count} finite numbers of at least 0")


def _refuse_unless_positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{what} must be a finite number above 0; got {value!r}")


def service_rate(slots: int, output: float, step_s: float) -> float:
    """Most requests a second that `slots` can serve, if a step takes `step_s` and a request `output` steps on average."""
    return slots / (output * step_s)


def refuse_unbounded(arrival_rate: float, served_rate: float) -> None:
    """Raise ConfigError if more requests a second come than can be served: no time a request takes would mean anything."""
    if not arrival_rate < served_rate:
        raise ConfigError(
            f"{arrival_rate:g} requests a second arrive and at most {served_rate:g} can be served (load {arrival_rate / served_rate:.2f}): "
            "the queue grows without bound, and every latency is a matter of how long is simulated; "
            f"lower the rate below {served_rate:g}, or serve faster"
        )


# ---- workloads ----


def workload(
    arrivals: Arrivals, count: int, seed: int = 0, prompt: Length | str = "fixed:1024", output: Length | str = "fixed:128"
) -> tuple[Item, ...]:
    """The first `count` requests; fewer only where no more were recorded. Lengths that are not known are drawn from these laws.

    Raises ConfigError for a count below 1, a law that `length` does not know, and a seed that is not an int of at least 0.
    """
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"count is how many requests shall come, an int of at least 1; got {count!r}")
    prompts, outputs = (length(law) if isinstance(law, str) else law for law in (prompt, output))
    drawn = zip(itertools.islice(arrivals.items(seed), count), uniform(seed, "prompts"), uniform(seed, "outputs"), strict=False)
    return tuple(item._replace(prompt=item.prompt or prompts(p), output=item.output or outputs(o)) for item, p, o in drawn)


def slot_request(item: Item) -> Request:
    """What a SlotScheduler serves as this item: token 1 as often as the prompt is long, and an answer of exactly that length."""
    return Request(item.id, prompt=(1,) * item.prompt, max_tokens=item.output, ignore_eos=True)


def admission(items: Iterable[Item], request: Callable[[Item], Any] = slot_request) -> AdmissionQueue:
    """The admission queue of a run in which these come, and no others. `request` makes what your own scheduler takes."""
    queue = AdmissionQueue((item.at_s, request(item)) for item in items)
    queue.close()
    return queue
