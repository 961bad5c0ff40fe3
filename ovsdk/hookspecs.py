"""Every hook, grouped by phase of a run. Hooks run when something opens or ends, never per step or per launch.

A plugin is a module or an object with some of these functions, marked `@hookimpl`, taking any subset of the arguments
by name. None means "not mine"; an exception means "mine, and broken" and is reported with the plugin's distribution.
Where one owner makes sense, two plugins that answer for one name are a PluginConflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from .types import Span

if TYPE_CHECKING:
    from .interfaces import Backend, Executor, Queue, Scheduler, Tiler
    from .run import RunInfo

hookspec = pluggy.HookspecMarker("ovsdk")
hookimpl = pluggy.HookimplMarker("ovsdk")

# ---- loading ----


@hookspec(historic=True)
def ovsdk_configure(config: Mapping[str, str]) -> None:
    """Called once for each plugin and plugin manager. `config`: the `OVSDK_*` environment variables."""


# ---- opening ----


@hookspec
def ovsdk_probe_backends() -> Mapping[str, str | None]:  # type: ignore[empty-body]
    """Name the backends that you offer: None where one can be opened here, else the reason why not and what to install.

    May not import a device library: listing backends stays fast.
    """


@hookspec
def ovsdk_open_backend(name: str, index: int, options: Mapping[str, Any]) -> Backend | None:
    """Open device `index` of the backend `name` if you offer it. One owner. Unknown options are to be refused."""


@hookspec
def ovsdk_prices(name: str) -> Mapping[str, Any] | str | None:
    """The price file called `name`, if it is yours: its path, or its content as a mapping. One owner."""


@hookspec
def ovsdk_make_scheduler(name: str, options: Mapping[str, Any]) -> Scheduler | None:
    """Make the scheduler called `name`, if it is yours. One owner."""


@hookspec
def ovsdk_make_executor(name: str, options: Mapping[str, Any]) -> Executor | None:
    """Make the executor called `name`, if it is yours. One owner."""


@hookspec
def ovsdk_make_queue(name: str, options: Mapping[str, Any]) -> Queue | None:
    """Make the queue called `name`, if it is yours, for the threads driver. One owner.

    `options["capacity"]`: most items that will ever be in it; `options["role"]`: "input" or "output".
    """


@hookspec
def ovsdk_make_tiler(name: str, options: Mapping[str, Any]) -> Tiler | None:
    """Make the tiler called `name`, if it is yours. One owner.

    The built-in one, "auto", is `ovsdk.tiling.Tiler`; hold one of those to extend it.
    """


# ---- a run ----


@hookspec
def ovsdk_run_started(run: RunInfo) -> None:
    """A run is about to make its first ask; its executor is open."""


@hookspec
def ovsdk_observers(run: RunInfo) -> Iterable[Callable[[Span], None]]:  # type: ignore[empty-body]
    """Callables that are given every span of this run as it ends. The callables run per stage, this hook once.

    They may be called from the execution thread, and may change nothing. One that raises stops the run.
    """


@hookspec(firstresult=True)
def ovsdk_step_failed(run: RunInfo, step: int, stage: str, batch: Any, error: BaseException) -> Literal["stop", "abandon"] | None:
    """Decide about a failed step, when its turn to retire has come; stops at the first answer; default "stop".

    "abandon" calls the scheduler's `fail` in place of `retire` and goes on. Not asked after DeviceLost or DeviceTimeout.
    """


@hookspec
def ovsdk_run_finished(run: RunInfo, report: Any, error: BaseException | None) -> None:
    """A run has ended and everything it opened is closed. `report` is None if `error` ended it."""


# ---- the command line ----


@hookspec
def ovsdk_cli(app: Any) -> None:
    """Add commands to `ovsdk`; `app` is its typer.Typer."""
