"""The emulated ACL called directly, without torch: tasks are fills of device memory, priced by their bytes."""

from __future__ import annotations

import ctypes
from typing import Any

from ovsdk.backends.ascend.emulator import Emulator


class Acl:
    """A few ACL functions; each raises AclError for a code other than 0."""

    def __init__(self, npu: Emulator) -> None:
        self.library: Any = npu._library
        self.call("aclrtSetDevice", 0)
        self.memory = self.made("aclrtMalloc", ctypes.c_size_t(1 << 20), 0)

    def call(self, name: str, *args: Any) -> None:
        """Call an ACL function."""
        code = getattr(self.library, name)(*args)
        if code:
            raise AclError(code)

    def made(self, name: str, *args: Any) -> ctypes.c_void_p:
        """What a function makes whose first argument is where to put it."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *args)
        return handle

    def stream(self) -> ctypes.c_void_p:
        """A new stream."""
        return self.made("aclrtCreateStream")

    def event(self, flags: int = 8) -> ctypes.c_void_p:
        """A new event, with a time unless flags say otherwise."""
        return self.made("aclrtCreateEventExWithFlag", flags)

    def fill(self, stream: ctypes.c_void_p, size: int = 1024, value: int = 0) -> None:
        """A task on the stream."""
        self.call("aclrtMemsetAsync", self.memory, ctypes.c_size_t(1 << 20), value, ctypes.c_size_t(size), stream)

    def done(self, event: ctypes.c_void_p) -> bool:
        """Whether the event's latest record is done."""
        status = ctypes.c_int()
        self.call("aclrtQueryEventStatus", event, ctypes.byref(status))
        return status.value == 1


class AclError(Exception):
    """`.code` is what ACL returned."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ACL returned {code}")
        self.code = code
