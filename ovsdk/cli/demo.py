"""`ovsdk demo`: a real language model, serial and overlapped, on a device of this machine; then the source text's case, simulated.

The host's work is an engine's: incremental text, stop strings, log-probabilities, block hashes for a prefix cache, stream
frames; each product is used in what is shown. The runs alternate, depth by depth, on one device with weights loaded once.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .. import pictures
from ..backends.sim.prices import Prices
from ..errors import ConfigError
from ..models.causal_lm import CausalLM
from ..models.slots import Output, Request, SlotScheduler
from ..models.smollm2 import smollm2
from ..models.text import Transcript
from ..models.tokenizer import Tokenizer
from ..plugins import PluginManager, open_backend
from ..report import Report
from ..run import run
from ..simulation import batch_of, figures
from ..simulation import simulate as run_simulated
from . import simulate
from .output import console, print_json, print_table, shaped

PROFILE = "longcat-flash-b8-4k"
PROMPTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("What is the capital of France?", {}),
    ("What is 2+2?", {}),
    ("Write one sentence about the sea.", {}),
    ("List three colors.", {}),
    ("Why is the sky blue?", {"stop": (".",)}),
    ("Count from one to ten in words.", {"stop": ("seven", "Seven")}),
    ("Give my cat a name.", {"temperature": 0.8, "seed": 7}),
    ("Write a haiku about waiting.", {"temperature": 0.8, "seed": 11}),
)
DEPTHS = (1, 2)


@attrs.frozen
class Trial:
    """One run of all prompts."""

    report: Report
    outputs: Mapping[Any, Output]
    frames: int
    """Stream frames sent."""

    @property
    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Prompt -> answer, as token ids."""
        return {str(key): output.tokens for key, output in sorted(self.outputs.items())}

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests, over the run's time."""
        return sum(len(t) for t in self.tokens.values()) / self.report.makespan_s


def command(
    context: typer.Context,
    backend: str = typer.Option("cpu", "--backend", help="A backend that executes."),
    max_tokens: int = typer.Option(40, "--max-tokens", help="Most new tokens of an answer."),
    repeats: int = typer.Option(2, "--repeats", help="Timed runs at each depth, alternating; the median counts."),
    dtype: str = typer.Option("float32", "--dtype", help="float32, bfloat16 or float16."),
    out: Path = typer.Option(Path("ovsdk-demo"), "--out", help="Folder for the PNG and the Perfetto files."),  # noqa: B008
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Stream eight answers of a real model at depth 1 and 2, compare tokens and throughput; then simulate the source text's case."""
    if repeats < 1 or max_tokens < 1:
        raise ConfigError(f"repeats and max_tokens must be at least 1; got {repeats!r} and {max_tokens!r}")
    manager: PluginManager = context.obj
    say = shaped(Console(stderr=True, markup=False, highlight=False)) if as_json else console()
    trials = measure(manager, backend, max_tokens, repeats, dtype, say)
    identical = len({json.dumps(t.tokens) for runs in trials.values() for t in runs}) == 1
    written = write(out, trials, say)
    if as_json:
        print_json(as_dict(trials, identical, written, simulated(manager)))
    else:
        show(say, trials, identical, written)
        show_simulated(manager)
    if not identical:
        raise typer.Exit(1)


def measure(manager: PluginManager, backend: str, max_tokens: int, repeats: int, dtype: str, say: Console) -> dict[int, list[Trial]]:
    """Runs at each depth, alternating, after one that warms up, streams to the terminal and is not counted."""
    folder = smollm2()
    tokenizer = Tokenizer(folder)
    requests = [Request(i, tokenizer.chat(text), max_tokens=max_tokens, **options) for i, (text, options) in enumerate(PROMPTS)]
    engine = CausalLM(folder, slots=len(PROMPTS), max_len=max(len(r.prompt) for r in requests) + max_tokens, dtype=dtype)
    trials: dict[int, list[Trial]] = {depth: [] for depth in DEPTHS}
    with open_backend(backend, plugins=manager) as device:
        say.print(f"SmolLM2-135M-Instruct, {dtype}, on {backend} ({_facts(device.capabilities.facts)})\n")
        trial = functools.partial(_trial, requests, tokenizer, engine, device)
        with _stream(say) as emit:
            trial(DEPTHS[-1], emit)
        for repeat in range(repeats):
            for depth in DEPTHS:
                done = trial(depth, lambda frame: None)
                trials[depth].append(done)
                say.print(f"run {repeat + 1} of {repeats} at depth {depth}: {done.tokens_per_s:.1f} tokens/s")
    return trials


def _trial(
    requests: Sequence[Request], tokenizer: Tokenizer, engine: CausalLM, device: Any, depth: int, emit: Callable[[str], None]
) -> Trial:
    sent: list[str] = []

    def send(frame: str) -> None:
        sent.append(frame)
        emit(frame)

    text = functools.partial(Transcript, decode=tokenizer.decode, emit=send)
    scheduler = SlotScheduler(requests, slots=engine.slots, eos=tokenizer.eos, max_len=engine.max_len, text=text)
    report = run(scheduler, engine, device, depth=depth)
    return Trial(report, scheduler.outputs, len(sent))


@contextmanager
def _stream(say: Console) -> Iterator[Callable[[str], None]]:
    """A live table of the answers, fed with the frames that a client would get. On no terminal, only its last state is printed."""
    answers = [""] * len(PROMPTS)

    def table() -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("prompt", no_wrap=True)
        table.add_column("answer")
        for (prompt, _), answer in zip(PROMPTS, answers, strict=True):
            table.add_row(prompt, " ".join(answer.split()))
        return table

    def emit(frame: str) -> None:
        fields = json.loads(frame.removeprefix("data: "))
        answers[fields["id"]] += fields["text"]

    with Live(console=say, get_renderable=table, transient=True, auto_refresh=say.is_terminal, refresh_per_second=8):
        yield emit
    say.print(table())
    say.print()


def write(out: Path, trials: Mapping[int, Sequence[Trial]], say: Console) -> list[str]:
    """PNG of both timelines, Perfetto files; returns their paths. Without matplotlib, says so and goes on."""
    out.mkdir(parents=True, exist_ok=True)
    reports = {depth: runs[-1].report for depth, runs in trials.items()}
    written = []
    for depth, report in reports.items():
        written.append(str(out / f"depth{depth}.perfetto.json"))
        report.perfetto(written[-1])
    try:
        pictures.png([(r._title(), r._shown()) for r in reports.values()], out / "timelines.png", "SmolLM2-135M, measured")
        written.append(str(out / "timelines.png"))
    except ConfigError as error:
        say.print(f"no PNG: {error}")
    return written


def row(depth: int, runs: Sequence[Trial]) -> dict[str, Any]:
    """Medians over the runs of one depth; the idle causes are the last run's."""
    last = runs[-1].report
    host_s = sum(last.stage_s.values()) / last.steps
    return {
        "depth": depth,
        "tokens_per_s": round(statistics.median(t.tokens_per_s for t in runs), 2),
        "tokens_per_s_runs": [round(t.tokens_per_s, 2) for t in runs],
        "step_ms": round(statistics.median((t.report.step_s or 0.0) * 1e3 for t in runs), 3),
        "host_ms": round(host_s * 1e3, 3),
        "device_busy": last.device_busy,
        "idle": last.idle,
        "overlap": str(last.overlap),
        "overruns": last.overruns,
    }


def as_dict(trials: Mapping[int, Sequence[Trial]], identical: bool, written: list[str], simulation: Mapping[str, Any]) -> dict[str, Any]:
    """All of it for JSON."""
    first = trials[DEPTHS[0]][0]
    return {
        "tokens_identical": identical,
        "runs": [row(depth, runs) for depth, runs in trials.items()],
        "answers": {
            PROMPTS[key][0]: {"text": o.text, "tokens": list(o.tokens), "finish_reason": o.finish_reason}
            for key, o in first.outputs.items()
        },
        "files": written,
        "simulated": simulation,
    }


def show(say: Console, trials: Mapping[int, Sequence[Trial]], identical: bool, written: list[str]) -> None:
    """What the runs showed, for people."""
    rows = [row(depth, runs) for depth, runs in trials.items()]
    last, runs = trials[DEPTHS[-1]][-1], sum(map(len, trials.values()))
    counts = f"{sum(map(len, last.tokens.values()))} tokens, {last.frames} stream frames, {_blocks(last)} blocks for a prefix cache"
    say.print(f"\ntokens identical in all {runs} runs: {'yes' if identical else 'NO'} ({counts} in each)")
    print_table([">depth", ">tokens/s", ">ms/step", ">host ms/step", ">device busy", ">overruns", "idle for"], [_cells(r) for r in rows])
    say.print(f"measured: {rows[-1]['tokens_per_s'] / rows[0]['tokens_per_s']:.3f}x; {_bound(rows)}; {_noise(rows)}\n")
    say.print(pictures.text([(t[-1].report._title(), t[-1].report._shown()) for t in trials.values()]), soft_wrap=True)
    say.print("wrote " + ", ".join(written))


def _blocks(trial: Trial) -> int:
    return sum(len(output.blocks) for output in trial.outputs.values())


def _cells(r: Mapping[str, Any]) -> tuple[Any, ...]:
    idle = ", ".join(f"{cause} {share:.1%}" for cause, share in r["idle"].items() if share >= 0.0005)
    return r["depth"], r["tokens_per_s"], r["step_ms"], r["host_ms"], f"{r['device_busy']:.1%}", r["overruns"], idle


def _noise(rows: Sequence[Mapping[str, Any]]) -> str:
    """How far runs of one depth lie apart: a gain smaller than that shows nothing."""
    runs = [r["tokens_per_s_runs"] for r in rows]
    if len(runs[0]) == 1:
        return "one run of each depth does not tell how far runs differ"
    return f"runs of one depth differ by up to {max((max(r) - min(r)) / min(r) for r in runs):.1%}"


def _bound(rows: Sequence[Mapping[str, Any]]) -> str:
    step_ms, host_ms = rows[0]["step_ms"], rows[0]["host_ms"]
    device_ms = step_ms - host_ms
    most = step_ms / max(device_ms, host_ms)
    return f"hiding all {host_ms:.2f} ms of host work beside {device_ms:.1f} ms of device work would give {most:.3f}x"


def simulated(manager: PluginManager) -> dict[str, Any]:
    """The source text's case at each depth."""
    prices, reports = _simulations(manager)
    return {"profile": PROFILE, "runs": [figures(report, batch_of(prices)) for report in reports]}


def show_simulated(manager: PluginManager) -> None:
    """The same for people."""
    prices, reports = _simulations(manager)
    print("\nThe same loop in virtual time:")
    simulate.show(PROFILE, prices, [figures(report, batch_of(prices)) for report in reports], reports)


def _simulations(manager: PluginManager) -> tuple[Prices, list[Report]]:
    prices = simulate.load_profile(manager, PROFILE)
    return prices, [run_simulated(manager, prices, depth=depth) for depth in DEPTHS]


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items()) or "no facts"
