"""A flag that is a file descriptor: what a thread that waits for a process, or for another thread, polls together.

The kernel holds the flag, so no lock does: `set` is safe in any thread and in a signal handler, and stays until `clear`.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref


class FdSignal:
    """A `Signal` whose `fd` is readable while it is set. After `close` it does nothing and reads as set: nobody waits for it."""

    __slots__ = ("__weakref__", "_closer", "_write_fd", "fd")

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._write_fd, False)
        self._closer = weakref.finalize(self, _close_all, {self.fd, self._write_fd})
        self._closer.atexit = False

    def set(self) -> None:
        """Raise the flag and end every wait for it."""
        if self._write_fd >= 0:
            with contextlib.suppress(BlockingIOError):  # full of earlier sets
                os.write(self._write_fd, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Lower the flag."""
        if self.fd >= 0:
            with contextlib.suppress(BlockingIOError):  # not set
                while len(os.read(self.fd, 4096)) == 4096:
                    pass

    def is_set(self) -> bool:
        """Whether the flag is up."""
        if self.fd < 0:
            return True
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Give the descriptors back. Twice is fine."""
        self.fd = self._write_fd = -1
        self._closer()


def _close_all(fds: set[int]) -> None:
    for fd in fds:
        os.close(fd)
