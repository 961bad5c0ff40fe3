"""What torch_npu raises, as our errors: by the ACL code in its text, and where there is none by the words it uses.

With the task queue on, an error of a task is raised by the next launch, whoever makes it, and without a code, which torch_npu
prints on stderr alone; the queue's thread has ended by then, so nothing in flight comes back. The codes and their meanings are
public: "aclError" in CANN's reference, and torch_npu prints them.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import DeviceError, DeviceLost, DeviceMemoryExhausted, DeviceTimeout

CODE = re.compile(r"(?:error code is|returned) (\d{6})\b")
KINDS: dict[int, type[DeviceError]] = {
    107015: DeviceLost,  # the device is not there any more
    107019: DeviceLost,  # its tasks have been aborted
    107022: DeviceLost,
    107020: DeviceTimeout,
    200003: DeviceMemoryExhausted,
    207001: DeviceMemoryExhausted,
    207018: DeviceMemoryExhausted,
    507010: DeviceLost,  # no heartbeat
    507013: DeviceLost,  # device memory fails
    507014: DeviceTimeout,  # a kernel of an AI core
    507017: DeviceTimeout,  # one of the AICPU
    507034: DeviceTimeout,  # one of a vector core
    507046: DeviceTimeout,
    507047: DeviceTimeout,
    507053: DeviceLost,  # memory with errors beyond repair
    507054: DeviceLost,
    507055: DeviceLost,
}
"""ACL code -> our error; DeviceError for all others."""
ENDS = (
    "Inner error is reported as above",
    "FORCE STOP",
    "UCE ERROR",
    "HBM MULTI BIT ECC ERROR",
    "SUSPECT MEM ERROR",
    "SUSPECT REMOTE ERROR",
    "HCCS LINK ERROR",
)
"""What torch_npu says when its task queue has ended."""
QUEUE_ENDED = "torch_npu's task queue ended with an error that it has printed above"
RUNTIME = ("NPU function error", "ERR00100", "ERR00101", "ERR00102")
"""What torch_npu says when the runtime has refused a call."""
NOISE = re.compile(
    r"\s*(\[ERROR\] \d{4}-\S+ \(PID:.*?\) ERR\d+( PTA call acl api failed\.?)?"
    r"|Since the operator is called asynchronously.*?(?=\[ERROR\]|\Z)"
    r"|The Inner error is reported as above\. The process exits for this inner error, and"
    r"|Rectify the fault based on the error information in the ascend log\.)",
    re.DOTALL,
)
"""Dates, and what is no use to whoever reads it here."""


def understand(what: str, error: Exception) -> Exception:
    """Our error for what was raised while doing `what`; the same exception if it is not the device's."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return DeviceMemoryExhausted(f"{what}: the NPU has no memory left: {told(text)}")
    if not isinstance(error, RuntimeError) or isinstance(error, (NotImplementedError, RecursionError)):
        return error
    if any(words in text for words in ENDS):
        return DeviceLost(f"{what}: {QUEUE_ENDED}; nothing in flight will come back: {told(text)}", code(text))
    found = code(text)
    if found is None and not any(words in text for words in RUNTIME):
        return error
    kind: Any = KINDS.get(found or 0, DeviceError)
    return kind(f"{what}: {'' if found is None else f'ACL error {found}: '}{told(text)}", found)  # type: ignore[no-any-return]


def code(text: str) -> int | None:
    """The ACL code in what torch_npu says, if it says one."""
    match = CODE.search(text)
    return int(match[1]) if match else None


def told(text: str) -> str:
    """The runtime's words in one line, without dates and general advice."""
    return " ".join(NOISE.sub(" ", text).split())
