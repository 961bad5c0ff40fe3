"""`socket.send` that keeps the GIL: a launch is on its way before any other thread of the host goes on.

`socket.send` lets go of the GIL before its system call. If a thread waits for it then (the scheduling thread, because an earlier
launch has just come back) and both share a core, that thread goes on first, and the device idles until it blocks: 2.5 ms of a 4 ms
step, measured. A send that never blocks gains nothing by letting go.
"""

from __future__ import annotations

import ctypes
import socket

from ._wire import Send


def keeping_gil(sock: socket.socket) -> Send:
    """`sock.send` for sends that cannot block. Where this system's C library cannot be called, `sock.send` itself."""
    try:
        send = ctypes.PyDLL(None).send
    except (AttributeError, OSError, TypeError):
        return sock.send
    send.argtypes, send.restype = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_ssize_t

    def offer(data: bytes | bytearray, flags: int) -> int:
        taken: int = send(sock.fileno(), data, len(data), flags) if type(data) is bytes else -1
        return taken if taken >= 0 else sock.send(data, flags)  # which knows what errors mean

    return offer
