"""`ovsdk emulate -- COMMAND...`: run a command in which torch_npu finds an emulated NPU, in it and in its child processes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from ..backends.ascend.emulator import TOLD, Figures, Options, banner, figures
from ..backends.ascend.emulator.build import build
from ..errors import ConfigError
from ..plugins import PluginManager
from .simulate import load_profile

DEFAULT = Options()


def command(
    context: typer.Context,
    words: list[str] = typer.Argument(..., metavar="-- COMMAND...", help="What to run, after two dashes."),  # noqa: B008
    devices: int = typer.Option(DEFAULT.devices, "--devices", min=1, max=8, help="NPUs that there are."),
    memory_gb: float = typer.Option(DEFAULT.memory_gb, "--memory-gb", help="Memory of each, in GB; taken when it is written to."),
    soc: str = typer.Option(DEFAULT.soc, "--soc", help="Name of the chip."),
    cann: str = typer.Option(DEFAULT.cann, "--cann", help="Version of CANN to claim."),
    task_queue: int | None = typer.Option(None, "--task-queue", min=0, max=2, help="Set TASK_QUEUE_ENABLE, torch_npu's task queue."),
    poison: bool = typer.Option(False, "--poison", help="Fill device memory with 0xff the moment it is freed; no caching."),
    prices: str = typer.Option("", "--prices", metavar="FILE", help="Price file, or name of a shipped one; needs --operator."),
    operator: list[str] = typer.Option(  # noqa: B008
        [], "--operator", metavar="OP=ACLNN", help="Which aclnn operator plays an operator of the price file; several."
    ),
    latency: list[str] = typer.Option([], "--latency", metavar="NAME=US", help="What a task takes: aclnnMatmul=900; several."),  # noqa: B008
) -> None:
    """Run a command on an EMULATED NPU: the real torch_npu, no hardware, no CANN. Nothing measured there says how fast an NPU is."""
    manager: PluginManager = context.obj
    played = dict(_pair(word, "operator", "attention=aclnnMatmul") for word in operator)
    if bool(prices) != bool(played):
        raise ConfigError("--prices needs --operator OP=ACLNN for each operator that is to take its time, and --operator needs --prices")
    base = figures(load_profile(manager, prices), played) if prices else Figures()
    given = {name: (_us(us), 0.0) for name, us in (_pair(word, "latency", "aclnnMatmul=900") for word in latency)}
    options = Options(
        devices=devices,
        memory_gb=memory_gb,
        soc=soc,
        cann=cann,
        task_queue=task_queue,
        poison=poison,
        figures=Figures({**base.latencies, **given}, base.copies, base.machine),
    )
    become(words, options)


def become(words: Sequence[str], options: Options) -> None:
    """Build the emulator and turn this process into the command. Raises ConfigError if there is none of that name."""
    build()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    program = shutil.which(words[0], path=path)
    if program is None:
        raise ConfigError(f"there is no command {words[0]!r} to run on the emulated NPU")
    print(banner(options), file=sys.stderr, flush=True)
    os.execve(program, list(words), {**os.environ, **options.environment(), "PATH": path, TOLD: "1"})


def _pair(word: str, what: str, example: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"--{what} is NAME=VALUE, as in {example}; got {word!r}")
    return name, value


def _us(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"a latency is microseconds, as in --latency aclnnMatmul=900; got {text!r}") from error
