"""The `sim` backend: the same run in virtual time, at the prices of a price file.

The scheduler, the executor's host code and the driver are the real ones; only time and device are simulated. Its
figures are simulated, not measured.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from ...errors import ConfigError, DeviceLost
from ...types import Capabilities, Launch, Method, Resident, bind
from .device import SimStream, VirtualClock
from .kernel import Kernel
from .lanes import LanesDriver
from .prices import Prices, load_prices


class SimBackend:
    """A device in virtual time.

    prices      name of a shipped profile, path of a .toml file, or a mapping like one; see `ovsdk.backends.sim.prices`
    seed        of the draws from prices with quantiles
    execute     call `Launch.fn` when a launch begins, and load residents, on "cpu"; otherwise the output is `Launch.stub()`, or None
    timeout_s   most virtual seconds that a launch may take before a driver calls it DeviceTimeout; None: no limit

    Raises ConfigError and ProfileError as `load_prices` does.
    """

    name = "sim"
    drivers = {"threads": LanesDriver}  # noqa: RUF012
    """Drivers that virtual time needs in place of the real ones."""

    def __init__(
        self,
        prices: str | Path | Mapping[str, Any] | Prices | None = None,
        seed: int = 0,
        execute: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        if not isinstance(seed, int):
            raise ConfigError(f"seed is an int; got {seed!r}")
        self.prices, self.execute, self.timeout_s = load_prices(prices), execute, timeout_s
        self.clock = VirtualClock(Kernel(), self.prices, seed)
        self.capabilities = Capabilities(
            {
                "asynchronous": True,
                "executes": True if execute else "virtual time: pass execute=True",
                "wall_clock": "virtual time: figures are simulated, not measured",
                "parallel": True,
            },
            {"prices": self.prices.name, "source": self.prices.source, "seed": seed},
        )
        self._streams: dict[str, SimStream] = {}
        self._residents: dict[int, Any] = {}
        self._keys, self._closed = itertools.count(), False

    def stream(self, name: str = "compute") -> SimStream:
        """See `Backend.stream`: streams run beside each other and slow each other by nothing."""
        if name not in self._streams:
            self._streams[name] = SimStream(name, self.clock, self._resolve)
        return self._streams[name]

    def load(self, build: Callable[[str], Any]) -> Resident:
        """See `Backend.load`; takes no virtual time. Without `execute` nothing is built."""
        self._refuse_closed()
        key = next(self._keys)
        if not self.execute:
            return Resident(key)
        built = self._residents[key] = build("cpu")
        return Resident(key, frozenset(name for name in dir(built) if not name.startswith("__") and callable(getattr(built, name))))

    def close(self) -> None:
        """Nothing is open but what was loaded."""
        self._closed = True
        self._residents.clear()

    def _resolve(self, launch: Launch) -> Callable[[], Any]:
        """What gives the launch's output. Inputs are copied: the caller may reuse them, and the launch begins later."""
        self._refuse_closed()
        if not self.execute:
            return launch.stub or _nothing
        args, kwargs = bind(attrs.evolve(launch, inputs=copy.deepcopy(launch.inputs)))
        return partial(self._function(launch), *args, **kwargs)

    def _function(self, launch: Launch) -> Callable[..., Any]:
        fn = launch.fn
        if not isinstance(fn, Method):
            return fn
        if fn.resident not in self._residents:
            raise ConfigError(f"launch {launch.kind!r}: {fn!r} is of an object that this backend did not load; use backend.load")
        return getattr(self._residents[fn.resident], fn.name)  # type: ignore[no-any-return]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise DeviceLost("the sim backend is closed")

    def __enter__(self) -> SimBackend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _nothing() -> None:
    """The output of a launch without a stub."""
