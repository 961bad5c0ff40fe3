"""One page on this machine: what stands in the way of overlap on an NPU, and what to change.

A check is a row of a table: it reads a `Machine` and says what was seen, what that does to overlap, and what to do. CHANGE
is kept for what prevents overlap or keeps the device from opening; advice is NOTE. Effects are those that torch_npu
documents, or that were seen with torch_npu 2.13.0 on the emulator: none is a measurement on an NPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import attrs

from .machine import PACKAGES, Machine

FINE, NOTE, CHANGE, ABSENT = "fine", "note", "CHANGE", "absent"
"""NOTE: it could be better. CHANGE: it must be changed. ABSENT: not here, which may be as it should."""


class Verdict(NamedTuple):
    """What a check says."""

    seen: str
    state: str = FINE
    effect: str = ""
    """What it does to overlap."""
    remedy: str = ""
    """What to do."""


@attrs.frozen
class Finding:
    """A row of the page."""

    group: str
    name: str
    seen: str
    state: str
    effect: str
    remedy: str


Judge = Callable[[Machine], "Verdict | None"]
"""None: the check does not apply to this machine."""


# ---- software ----


def _package(name: str, machine: Machine) -> Verdict:
    return _found(machine.packages.get(name), "not installed")


def _cann(machine: Machine) -> Verdict:
    if isinstance(machine.device, Mapping) and machine.emulated:
        return Verdict(f"emulated, as {machine.device.get('cann', 'unknown')}")
    return _found(machine.cann)


def _found(version: str | None, otherwise: str = "not found") -> Verdict:
    """What these are good for together, and what to do, is told by the reason why the backend cannot be opened."""
    return Verdict(otherwise, ABSENT) if version is None else Verdict(version)


# ---- device ----


def _backend(machine: Machine) -> Verdict:
    if not isinstance(machine.device, str):
        return Verdict(f"available{', EMULATED NPU' if machine.emulated else ''}")
    if machine.npu:
        return Verdict(machine.device, CHANGE, "", "do what it says")
    return Verdict(machine.device, ABSENT, "`ovsdk emulate -- COMMAND` stands in for an NPU")


def _facts(machine: Machine) -> Verdict | None:
    if isinstance(machine.device, str):
        return None
    return Verdict(", ".join(f"{name} {value}" for name, value in machine.device.items() if name not in ("can", "pinned", "emulated")))


def _asynchronous(machine: Machine) -> Verdict | None:
    if isinstance(machine.device, str):
        return None
    answer = machine.device.get("can", {}).get("asynchronous", True)
    return (
        Verdict("yes") if answer is True else Verdict(answer, CHANGE, "a launch waits for its work, so nothing overlaps", "do what it says")
    )


def _pinned(machine: Machine) -> Verdict | None:
    if isinstance(machine.device, str):
        return None
    if machine.device.get("pinned", True):
        return Verdict("yes")
    return Verdict(
        "no", CHANGE, "copies from other memory make torch_npu wait for the stream", "allow it (ulimit -l; the container's limits)"
    )


# ---- environment ----


class Variable(NamedTuple):
    """An environment variable that matters. `judge(value, machine)`: the state and what to do, or None where it is fine."""

    name: str
    unset: str
    """What holds where it is not set; empty: nothing in particular."""
    effect: str
    judge: Callable[[str, Machine], tuple[str, str] | None] = lambda value, machine: None


def _bad(**values: tuple[str, str]) -> Callable[[str, Machine], tuple[str, str] | None]:
    """A judge of known values: `_1=(state, what to do)` is for the value "1"."""
    return lambda value, _: values.get(f"_{value}")


def _affinity(value: str, machine: Machine) -> tuple[str, str] | None:
    loose = value.partition(",")[0].strip() == "0" and machine.npu and machine.cores >= 8
    return (NOTE, "2 gives each busy thread a core of its own; 1 keeps all to the device's share") if loose else None


def _threads(value: str, machine: Machine) -> tuple[str, str] | None:
    most = max(1, machine.cores - 2)
    few = value.isdecimal() and 0 < int(value) <= most
    return None if few else (NOTE, f"at most {most} here: two cores are for Python and the task queue")


def _autoload(value: str, machine: Machine) -> tuple[str, str] | None:
    broken = value != "0" and "torch_npu" in machine.packages and machine.why_not is not None
    return (CHANGE, "set it to 0: the backend imports torch_npu itself") if broken else None


def _home(value: str, machine: Machine) -> tuple[str, str] | None:
    return (NOTE, "source CANN's set_env.sh, which sets it") if not value and machine.npu and not machine.emulated else None


VARIABLES = (
    Variable(
        "TASK_QUEUE_ENABLE",
        "1",
        "1: a native thread launches while Python goes on; 2: it also makes workspaces, takes more memory, captures no graphs; 0: neither",
        _bad(_0=(NOTE, "1: at 0 the host pays for each operator's launch"), _2=(NOTE, "1, if your launches have graph keys")),
    ),
    Variable(
        "ASCEND_LAUNCH_BLOCKING",
        "0",
        "1: every operator waits for the device, and the task queue is off; it hides bugs of order, too",
        _bad(_1=(CHANGE, "unset it: with it nothing overlaps")),
    ),
    Variable(
        "PYTORCH_NO_NPU_MEMORY_CACHING",
        "0",
        "1: the driver allocates and frees every tensor, on the launching thread",
        _bad(_1=(CHANGE, "unset it")),
    ),
    Variable(
        "PYTORCH_NPU_ALLOC_CONF",
        "",
        "a fragmented cache is given back and allocated anew in mid-run, which waits for the device; less so with expandable_segments:True",
    ),
    Variable(
        "MULTI_STREAM_MEMORY_REUSE",
        "1 or 2, by version",
        "1 and 3 may erase record_stream marks: ovsdk does not need them, side streams of your own may",
    ),
    Variable("CPU_AFFINITY_CONF", "0", "0: the threads that launch move from core to core, on a server also between sockets", _affinity),
    Variable("OMP_NUM_THREADS", "", "unset: a CPU operator of the host takes all cores, also from the launching threads", _threads),
    Variable("TORCH_DEVICE_BACKEND_AUTOLOAD", "1", "1: `import torch` imports torch_npu, and fails where that cannot be", _autoload),
    Variable("ASCEND_HOME_PATH", "", "where CANN's libraries and operators are looked for", _home),
    Variable("ASCEND_RT_VISIBLE_DEVICES", "all", "which NPUs this process sees, counted from 0"),
    Variable(
        "ASCEND_GLOBAL_LOG_LEVEL",
        "3",
        "0 and 1 log each call of the runtime, on the launching threads",
        _bad(**dict.fromkeys(("_0", "_1"), (NOTE, "3, unless you look for a fault"))),
    ),
    Variable("PER_STREAM_QUEUE", "0", "1: a task queue a stream, experimental", _bad(_1=(NOTE, "unset it: not tested with ovsdk"))),
    Variable(
        "TORCH_NPU_SANITIZER",
        "0",
        "1: torch_npu looks for races between streams at each access",
        _bad(_1=(NOTE, "unset it outside of tests: every launch is slower")),
    ),
)


def _variable(variable: Variable, machine: Machine) -> Verdict:
    value = machine.environ.get(variable.name)
    state, remedy = variable.judge(variable.unset if value is None else value, machine) or (FINE, "")
    unset = f"{variable.unset} (unset)" if variable.unset else "unset"
    return Verdict(unset if value is None else value or "empty", state, variable.effect, remedy)


# ---- host ----


def _cores(machine: Machine) -> Verdict:
    quota = machine.quota or float(machine.cores)
    seen = f"{machine.cores}{f', with the time of {quota:g}' if quota < machine.cores else ''}"
    enough = min(machine.cores, quota) >= 2
    effect = "Python, the task queue and the runtime's threads want to run at the same time"
    return Verdict(seen, FINE if enough else CHANGE, effect, "" if enough else "allow this process at least 2 cores")


def _governor(machine: Machine) -> Verdict | None:
    if machine.governor is None:
        return None
    if machine.governor in ("performance", "schedutil"):
        return Verdict(machine.governor)
    return Verdict(machine.governor, NOTE, "a core that was idle is slow at first, and a launching thread often idles", "performance")


def _switch(machine: Machine) -> Verdict:
    if not machine.gil:
        return Verdict("no interpreter lock", FINE, "Python threads run at the same time")
    fine = machine.switch_s <= 0.005
    effect = "how long one Python thread may keep the others waiting: matters with driver='threads' and threads of your own"
    return Verdict(f"{machine.switch_s * 1e3:g} ms", FINE if fine else NOTE, effect, "" if fine else "sys.setswitchinterval(0.005)")


CHECKS: tuple[tuple[str, str, Judge], ...] = (
    ("software", "Python", lambda machine: Verdict(machine.python)),
    *(("software", name, partial(_package, name)) for name in PACKAGES),
    ("software", "CANN", _cann),
    ("software", "driver", lambda machine: _found(machine.driver)),
    ("device", "backend ascend", _backend),
    ("device", "device 0", _facts),
    ("device", "asynchronous launches", _asynchronous),
    ("device", "pinned memory", _pinned),
    *(("environment", variable.name, partial(_variable, variable)) for variable in VARIABLES),
    ("host", "cores", _cores),
    ("host", "CPU governor", _governor),
    ("host", "switch interval", _switch),
)
"""Group, name and judge, in the order of the page."""


@attrs.frozen
class Diagnosis:
    """The page."""

    npu: bool
    emulated: bool
    findings: tuple[Finding, ...]

    @property
    def changes(self) -> tuple[Finding, ...]:
        """What must be changed."""
        return tuple(finding for finding in self.findings if finding.state == CHANGE)

    @property
    def bad(self) -> bool:
        """Whether something must be changed for overlap on an NPU that is here."""
        return self.npu and bool(self.changes)

    def __str__(self) -> str:
        here = "an EMULATED NPU is here" if self.emulated else "an NPU is here" if self.npu else "no NPU is here"
        return f"{here}; to change: {', '.join(finding.name for finding in self.changes) or 'nothing'}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        checks = [attrs.asdict(finding) for finding in self.findings]
        return {"npu": self.npu, "emulated": self.emulated, "summary": str(self), "checks": checks}


def diagnose(machine: Machine, checks: Iterable[tuple[str, str, Judge]] = CHECKS) -> Diagnosis:
    """What the checks say of a machine."""
    verdicts = ((group, name, judge(machine)) for group, name, judge in checks)
    return Diagnosis(machine.npu, machine.emulated, tuple(Finding(group, name, *verdict) for group, name, verdict in verdicts if verdict))
