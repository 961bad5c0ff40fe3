"""Table (d): a real language model at batch 8 with the host work of the demo, serial against overlap.

Every request has the same number of new tokens, so that each step but the first decodes eight rows. The tokens of all runs
must be the same. With eager operators in a `thread` host and device take turns at the GIL, and D grows as S is hidden.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

from _on_device import Torch
from _table import Impossible, Row, alternate, median
from _trial import Trial, from_report, ideal, ideal_rows, step_rows

import ovsdk
from ovsdk import ConfigError
from ovsdk.cli.demo import PROMPTS
from ovsdk.models.causal_lm import CausalLM
from ovsdk.models.slots import Request, SlotScheduler
from ovsdk.models.smollm2 import smollm2
from ovsdk.models.text import Transcript
from ovsdk.models.tokenizer import Tokenizer

BACKENDS = ("cpu", "thread")
DEPTHS = {"serial (depth 1)": 1, "overlap (depth 2)": 2}
WARM = 2
"""Steps: the prefills, and the first decode."""


class Effort(NamedTuple):
    """Rounds, and new tokens of each request: steps of each run."""

    rounds: int
    tokens: int


EFFORT = {False: Effort(3, 24), True: Effort(1, 8)}


class Outcome(NamedTuple):
    """What a run showed, and a hash of all its tokens."""

    trial: Trial
    tokens: str


class Engine:
    """The model, its tokenizer, and eight requests of `tokens` new tokens each."""

    def __init__(self, tokens: int) -> None:
        self.folder = smollm2()
        self.tokenizer = Tokenizer(self.folder)
        prompts = [self.tokenizer.chat(text) for text, _ in PROMPTS]
        self.requests = [Request(i, prompt, max_tokens=tokens, ignore_eos=True) for i, prompt in enumerate(prompts)]
        self.max_len = max(map(len, prompts)) + tokens

    def on(self, device: Any) -> Callable[[int], Outcome]:
        """Load the weights on a device, and return what makes a run there at a given depth."""
        model = CausalLM(self.folder, slots=len(self.requests), max_len=self.max_len)
        model.open(device)
        loaded = SimpleNamespace(prepare=model.prepare, launch=model.launch)  # a run would open, and so load, it again
        return partial(self.run, device, loaded)

    def run(self, device: Any, executor: Any, depth: int) -> Outcome:
        """One run of all requests, with everything that the demo's host does for each token."""
        text = partial(Transcript, decode=self.tokenizer.decode, emit=lambda frame: None)
        rows = len(self.requests)
        scheduler = SlotScheduler(self.requests, slots=rows, prefills=rows, max_len=self.max_len, text=text)
        report = ovsdk.run(scheduler, executor, device, depth=depth)
        tokens = json.dumps([scheduler.outputs[request.id].tokens for request in self.requests])
        return Outcome(from_report(report, WARM), blake2b(tokens.encode(), digest_size=4).hexdigest())


def why_not() -> str:
    """Why this cannot be measured here; '' if it can."""
    missing = [name for name in ("torch", "tokenizers", "jinja2", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed; do: pip install 'ovsdk[llm]'"
    try:
        smollm2()
    except ConfigError as error:
        return str(error)
    return ""


def measure(quick: bool) -> Iterator[Row | str]:
    """Both depths on both devices, by turns; or the reason why not."""
    reason = why_not()
    if reason:
        yield Row(f"skipped: {reason}", None, "")
        return
    rounds, tokens = EFFORT[quick]
    outcomes, threads = _outcomes(Engine(tokens), rounds)
    yield f"SmolLM2-135M, float32, batch {len(PROMPTS)}, torch threads on each device: {threads}"
    yield f"{rounds} alternating runs of {tokens} steps each, after one of each that is dropped, each without its first {WARM} steps"
    yield f"tokens of all runs: {same_tokens(outcomes)}"
    for backend in BACKENDS:
        yield from rows(backend, {depth: [o.trial for o in outcomes[f"{backend}, {depth}"]] for depth in DEPTHS})


def _outcomes(engine: Engine, rounds: int) -> tuple[dict[str, list[Outcome]], int]:
    """The outcomes by backend and depth, and torch's thread count, which is the same on both devices."""
    with contextlib.ExitStack() as opened:
        cpu, thread = (opened.enter_context(ovsdk.open_backend(name)) for name in BACKENDS)
        threads: int = cpu.capabilities.facts["threads"]
        thread.load(partial(Torch, threads))
        runs = {name: engine.on(device) for name, device in zip(BACKENDS, (cpu, thread), strict=True)}
        variants = {f"{name}, {title}": partial(run, depth) for name, run in runs.items() for title, depth in DEPTHS.items()}
        return alternate(variants, rounds), threads


def same_tokens(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """The hash of all tokens. Raises Impossible if runs differ: they did not do the same work."""
    hashes = {name: {outcome.tokens for outcome in runs} for name, runs in outcomes.items()}
    if len(set().union(*hashes.values())) > 1:
        raise Impossible(f"runs of the same requests gave other tokens, so their times do not compare: {hashes}")
    return next(iter(hashes.values())).pop()


def rows(backend: str, trials: Mapping[str, Sequence[Trial]]) -> Iterator[Row]:
    """The table of one device."""
    best = ideal([trial for runs in trials.values() for trial in runs])
    yield from ideal_rows(backend, best)
    for depth, runs in trials.items():
        yield from step_rows(f"{backend}, {depth}", runs, best)
        yield median(f"{backend}, {depth}: device time", [run.device_ns / 1e6 for run in runs], "ms")
        yield median(f"{backend}, {depth}: device idle", [fmean(run.gaps_ns) / 1e6 for run in runs], "ms")
        yield median(f"{backend}, {depth}: host time", [fmean(run.host_ns) / 1e6 for run in runs], "ms")
