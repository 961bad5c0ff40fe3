"""A device made of one child process: it really runs beside the host's Python, as an accelerator does.

    one device, one FIFO        every stream name is the same stream; a launch begins when all earlier ones have ended
    functions travel by value   cloudpickle sends those of `__main__`, lambdas and closures; a script needs no main guard
    data travel by copy         inputs may be changed once `submit` has returned, results are the caller's own
    the clock is one            `time.perf_counter_ns` counts the same in both processes: checked when the device opens
    the host comes first        the device is pinned to the other cores, ignores Ctrl-C, and never outlives its host

What a launch should find again (weights, caches) is built on the device with `load`; a function that is launched
directly is sent anew each time and keeps nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ..errors import ConfigError, DeviceError, DeviceLost
from ..interfaces import Future, Signal
from ..types import RESIDENT_KEYS, Capabilities, Launch, Method, Resident, bind
from ._fd_signal import FdSignal
from ._link import CpuFuture, Link
from ._send import keeping_gil
from ._wire import AHEAD, Arena, Channel, Packed, by_value, nameless_file, pack, plain

START_S = 60.0
"""How long the device process may take to say that it is there (it takes some 40 ms)."""

AUTOLOAD = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Unless the user has it otherwise: this device is no torch plugin's, and one without its driver would let no torch be imported."""

_BOOT = """# ovsdk cpu device
import sys, types
package = sys.modules["_ovsdk_device"] = types.ModuleType("_ovsdk_device")
package.__path__ = [{folder!r}]
sys.path[:] = {path!r}
from _ovsdk_device._cpu_device import main
del sys, types, package
main{given!r}
"""  # the device's two files under a package of their own: to import ovsdk whole would double the time to start


class DeviceClock:
    """`time.perf_counter_ns`, and sleep that ends when the device answers."""

    def __init__(self, link: Link) -> None:
        self.now_ns = time.perf_counter_ns
        self._link, self._signals = link, weakref.WeakSet[FdSignal]()

    def lap(self, stage: int, step: int, features: Mapping[str, float] | None) -> int:
        """Read the clock: the stage has already taken its time."""
        return time.perf_counter_ns()

    def wait(self, futures: Sequence[Future], signal: Signal | None, deadline_ns: int | None) -> int:
        """See `Clock.wait`. Raises ConfigError for a signal that is not of a `cpu` clock. A lost device settles its futures."""
        return self._link.wait(futures, signal, deadline_ns)

    def signal(self) -> FdSignal:
        """See `Clock.signal`. It is closed together with the backend."""
        made = FdSignal()
        self._signals.add(made)
        return made

    def close(self) -> None:
        """Give the signals' descriptors back."""
        for signal in tuple(self._signals):
            signal.close()


class CpuStream:
    """The one FIFO of the device process."""

    def __init__(self, link: Link, residents: set[int]) -> None:
        self._link, self._residents = link, residents

    def submit(self, launch: Launch) -> CpuFuture:
        """See `Stream.submit`. ConfigError: the launch cannot be sent, nothing was. DeviceLost. DeviceMemoryExhausted."""
        ahead = AHEAD if type(launch.fn) is Method else 0  # what comes with a function may have to be imported in the main thread
        return self._link.submit(launch.kind, self._pack(launch), ahead)

    def _pack(self, launch: Launch) -> Packed:
        message = self._message(launch)
        named, args, kwargs = message[0] == "method", message[-2], message[-1]
        try:
            return pack(message, pickle.dumps if named and plain(args) and plain(kwargs.values()) else by_value)
        except Exception as error:
            raise _unsendable(launch, error) from error

    def _message(self, launch: Launch) -> tuple[Any, ...]:
        fn = launch.fn
        if not isinstance(fn, Method):
            if not callable(fn):
                raise ConfigError(f"launch {launch.kind!r}: fn is a method of what backend.load returned, or a callable; got {fn!r}")
            return ("call", fn, *bind(launch))
        if fn.resident not in self._residents:
            raise ConfigError(f"launch {launch.kind!r}: {fn!r} is of an object that this backend did not load; use this backend's load")
        return ("method", fn.resident, fn.name, *bind(launch))


def _unsendable(launch: Launch, error: Exception) -> ConfigError:
    """The error that names the first part of a launch that pickling refuses."""
    inputs = launch.inputs.items() if isinstance(launch.inputs, Mapping) else enumerate(launch.inputs)
    parts = [("fn", launch.fn), *((f"inputs[{key!r}]", part) for key, part in inputs)]
    parts += [(f"host[{key!r}]", part) for key, part in launch.host.items()]
    part, why = next(((name, why) for name, value in parts if (why := _refusal(value))), ("it", error))
    return ConfigError(
        f"launch {launch.kind!r}: {part} cannot be sent to the device process: {why}. Build what it holds on the device "
        "(backend.load(build), then fn=loaded.method); send numpy arrays, CPU tensors and plain values"
    )


def _refusal(value: Any) -> Exception | None:
    try:
        pack(value, by_value)
        return None
    except Exception as error:
        return error


class CpuBackend:
    """A device process. A context manager; a forgotten one ends with its last future, at the latest with the host.

    threads: torch's thread count on the device; None: as many as it has cores.
    pin: keep the device off the first core that the host may use, where there are two. The host is never pinned; to keep it off the
        device's cores, `capabilities.facts["cores"]`, is up to you, and pays with `driver="threads"`.
    timeout_s: most that a launch may take before a driver, or `result`, calls it DeviceTimeout.
    load_timeout_s: the same for `load`, together with the launches before it.
    Raises ConfigError for a wrong option; DeviceLost or DeviceTimeout if the process does not start.
    """

    name = "cpu"

    def __init__(self, *, threads: int | None = None, pin: bool = True, timeout_s: float = 300.0, load_timeout_s: float = 900.0) -> None:
        _check(threads, pin, {"timeout_s": timeout_s, "load_timeout_s": load_timeout_s})
        cores = _cores(pin)
        threads = threads or len(cores)
        self.timeout_s, self.load_timeout_s = timeout_s, load_timeout_s
        began_ns = time.perf_counter_ns()
        self._link = _start(cores, threads, timeout_s)
        self._residents: set[int] = set()
        self._stream, self.clock = CpuStream(self._link, self._residents), DeviceClock(self._link)
        try:
            self._meet(began_ns)
        except BaseException:
            self.close()
            raise
        self.capabilities = _capabilities(self._link.process.pid, cores, threads)

    def _meet(self, began_ns: int) -> None:
        """Take the device's first word. Its stamp lies between two of ours, or the clocks are two."""
        hello = self._link.greeted()
        self._link.await_answer(hello, START_S)
        if hello.span_ns is None:
            raise DeviceLost(f"the device process did not start, see its error output: {hello.error}")
        if not began_ns <= hello.span_ns[0] <= time.perf_counter_ns():
            raise DeviceError(
                "the clocks of host and device process differ, so no timeline would be true; use another backend on this system"
            )

    def stream(self, name: str = "compute") -> CpuStream:
        """The one stream, under any name."""
        return self._stream

    def load(self, build: Callable[[str], Any]) -> Resident:
        """See `Backend.load`; `build` runs in the device process with the device name "cpu".

        Raises what `build` raises; ConfigError if it cannot be sent; DeviceLost; DeviceTimeout after `load_timeout_s`.
        """
        key = next(RESIDENT_KEYS)
        try:
            packed = pack(("load", key, build), by_value)
        except Exception as error:
            raise ConfigError(f"load: {build!r} cannot be sent to the device process: {error}; make there what it holds") from error
        future = self._link.submit("load", packed)
        self._link.await_answer(future, self.load_timeout_s)
        names = future.result()
        self._residents.add(key)
        return Resident(key, None if names is None else frozenset(names))

    def close(self) -> None:
        """End the device process within about a second, whatever it does; launches in flight are lost. Twice is fine."""
        self._link.end("the cpu backend is closed")
        self.clock.close()

    def __enter__(self) -> CpuBackend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _check(threads: Any, pin: Any, seconds: Mapping[str, Any]) -> None:
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise ConfigError(f"threads is torch's thread count on the device, an int of at least 1, or None: one a core; got {threads!r}")
    if not isinstance(pin, bool):
        raise ConfigError(f"pin is True (keep the device off the host's core) or False; got {pin!r}")
    for name, value in seconds.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
            raise ConfigError(f"{name} is a time in seconds, more than 0 and less than 1e9; got {value!r}")


def _cores(pin: bool) -> tuple[int, ...]:
    """The cores that the device may use: all that the host may, without the first if it is to be pinned."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return cores[1:] if pin and len(cores) > 1 else cores


def _capabilities(pid: int, cores: tuple[int, ...], threads: int) -> Capabilities:
    allowed = _cores(pin=False)
    pinned = cores != allowed
    parallel: Literal[True] | str = True if len(allowed) > 1 else "host and device share the only core that this process may use"
    facts = {"pid": pid, "cores": cores, "threads": threads, "pinned": pinned, "clock": "perf_counter_ns, one for host and device: checked"}
    return Capabilities({"asynchronous": True, "executes": True, "wall_clock": True, "parallel": parallel}, facts)


@contextlib.contextmanager
def _released(*fds: int) -> Iterator[None]:
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)


def _start(cores: tuple[int, ...], threads: int, timeout_s: float) -> Link:
    """Start a device process and return the host's end of it."""
    if not sys.executable:
        raise ConfigError("this interpreter does not know its own path (sys.executable), so it cannot start a device process")
    ours, theirs = socket.socketpair()
    outgoing, incoming = nameless_file(), nameless_file()
    channel = Channel(ours, Arena(outgoing), Arena(incoming), keeping_gil(ours))
    fds = (theirs.detach(), outgoing, incoming)
    try:
        with _released(fds[0]):
            process = subprocess.Popen(
                [sys.executable, "-c", _boot((*fds, os.getpid(), cores, threads))],
                stdin=subprocess.DEVNULL,
                env={**AUTOLOAD, **os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                pass_fds=fds,
                start_new_session=True,  # Ctrl-C in a terminal goes to the whole group, and before Python can ignore it
            )
    except BaseException:
        channel.close()
        raise
    return Link(process, channel, timeout_s)


def _boot(given: tuple[Any, ...]) -> str:
    """The program of the device process: this process's module path, then `_cpu_device.main(*given)`."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return _BOOT.format(folder=os.path.dirname(os.path.abspath(__file__)), path=path, given=given)
