"""The `sim` backend: the same run in virtual time, at the prices of a price file.

The scheduler, the executor's host code and the driver are the real ones; only time and device are simulated. Its
figures are simulated, not measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import attrs

from ...errors import ConfigError, DeviceLost, refuse
from ...types import RESIDENT_KEYS, Capabilities, Launch, Resident, bind
from .._residents import Residents
from .device import Resolve, SimStream, VirtualClock
from .hardware import LEVELS
from .inline import InlineDriver
from .kernel import Kernel
from .lanes import LanesDriver
from .prices import Prices, load_prices


class SimBackend:
    """A device in virtual time.

    prices      name of a shipped profile, path of a .toml file, or a mapping like one; see `ovsdk.backends.sim.prices`
    seed        of the draws from prices with quantiles
    execute     call `Launch.fn` when a launch begins, and load residents, on "cpu"; otherwise the output is `Launch.stub()`, or None
    timeout_s   most virtual seconds that a launch may take before a driver calls it DeviceTimeout; None: no limit
    tilings     operator -> placement of its tiling, one of those that the price file lists for it, in place of the file's own
    graph       True: launches of every kind that has a graph in the file are replays; False: none; None: those with a `Launch.graph`
    level       torch_npu's task queue level, 0, 1 or 2, in place of the file's
    by_events   simulate launches operator by operator, with events, even where a recurrence gives the same times sooner (see `ahead`)

    Raises ConfigError for what cannot be chosen, and what `load_prices` raises.
    """

    name = "sim"
    drivers = {"inline": InlineDriver, "threads": LanesDriver}  # noqa: RUF012
    """Drivers that virtual time needs in place of the real ones."""

    def __init__(
        self,
        prices: str | Path | Mapping[str, Any] | Prices | None = None,
        seed: int = 0,
        execute: bool = False,
        timeout_s: float | None = None,
        tilings: Mapping[str, str] | None = None,
        graph: bool | None = None,
        level: int | None = None,
        by_events: bool = False,
    ) -> None:
        if not isinstance(seed, int):
            raise ConfigError(f"seed is an int; got {seed!r}")
        self.prices, self.execute, self.timeout_s = at_level(load_prices(prices), level), execute, timeout_s
        self.host = self.prices.host
        chosen = dict(tilings or {})
        refuse_no_graph(self.prices, graph)
        self.clock = VirtualClock(Kernel(), self.prices, seed, chosen, graph, execute, by_events)
        self.capabilities = Capabilities(
            {
                "asynchronous": True,
                "executes": True if execute else "virtual time: pass execute=True",
                "wall_clock": "virtual time: figures are simulated, not measured",
                "parallel": True,
            },
            {
                "prices": self.prices.name,
                "source": self.prices.source,
                "seed": seed,
                "tilings": {**{name: op.placement for name, op in self.prices.ops.items() if len(op.placements) > 1}, **chosen},
                "graph": graph,
                "level": self.prices.machine.level,
            },
        )
        self._streams: dict[str, SimStream] = {}
        self._residents = Residents()
        self._resolve: Resolve = self._executed if execute else attrgetter("stub")

    @property
    def computed(self) -> str:
        """How it is found out what launches do: see `Report.computed`."""
        return self.clock.computed

    def stream(self, name: str = "compute") -> SimStream:
        """See `Backend.stream`. An operator whose price names that stream runs there too."""
        if name not in self._streams:
            self._streams[name] = SimStream(name, self.clock, self._resolve)
        return self._streams[name]

    def load(self, build: Callable[[str], Any]) -> Resident:
        """See `Backend.load`; takes no virtual time. Without `execute` nothing is built."""
        if self._resolve is _gone:
            _gone()
        return self._residents.add(build("cpu")) if self.execute else Resident(next(RESIDENT_KEYS))

    def close(self) -> None:
        """Nothing is open but what was loaded."""
        self._resolve = _gone
        for stream in self._streams.values():
            stream.resolve = _gone
        self._residents.clear()

    def _executed(self, launch: Launch) -> Callable[[], Any]:
        """What gives the launch's output. Inputs are copied: the caller may reuse them, and the launch begins later."""
        args, kwargs = bind(attrs.evolve(launch, inputs=copy.deepcopy(launch.inputs)))
        return partial(self._residents.function(launch), *args, **kwargs)

    def __enter__(self) -> SimBackend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _gone(_: Launch | None = None) -> NoReturn:
    raise DeviceLost("the sim backend is closed")


def at_level(prices: Prices, level: int | None) -> Prices:
    """The same prices at a level of the task queue; None: the file's. Raises ConfigError."""
    if level is None:
        return prices
    if isinstance(level, bool) or level not in LEVELS:
        refuse("level of the task queue", level, map(str, LEVELS))
    hardware = prices.hardware
    return attrs.evolve(prices, hardware=attrs.evolve(hardware, rows=hardware.rows._replace(level=level)))


def refuse_no_graph(prices: Prices, graph: bool | None) -> None:
    """Raise ConfigError for launches that shall be replays where the file has no price for one."""
    if graph and not any(launch.graph for launch in prices.launches.values()):
        kinds = ", ".join(sorted(prices.launches)) or "KIND"
        raise ConfigError(f"graph=True, but no launch of {prices.name!r} has a graph: add a section [launch.KIND.graph] for one of {kinds}")
