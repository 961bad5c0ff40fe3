"""When launches were on the device, told on the host's clock, from events that tell only how far they are apart.

A chain: each launch is placed by its distance from the end of the one before, the first one by an anchor whose host time is
known to half a round trip. What two clocks drift apart, causality takes back: no launch begins before it was submitted or the
one before has ended, and none ends after it was seen to be done. Lengths are the device's own unless that contradicts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


class DeviceTime:
    """Places launches in the order in which they end. `elapsed_ms(event, later)` waits for nothing; both have happened."""

    def __init__(self, elapsed_ms: Callable[[Any, Any], float], anchor: Any, anchor_ns: int) -> None:
        self._elapsed_ms, self._last, self._last_ns = elapsed_ms, anchor, anchor_ns
        self._ended_ns = -math.inf

    def place(self, begin: Any, end: Any, submitted_ns: int, seen_ns: int) -> tuple[int, int]:
        """Begin and end of a launch in host ns. `end` may not be recorded anew before the next launch has been placed."""
        told_ns = self._last_ns + round(self._elapsed_ms(self._last, begin) * 1e6)
        length_ns = max(0, round(self._elapsed_ms(begin, end) * 1e6))
        begin_ns = int(max(min(told_ns, seen_ns - length_ns), submitted_ns, self._ended_ns))
        self._last, self._last_ns = end, min(begin_ns + length_ns, seen_ns)
        self._ended_ns = self._last_ns
        return begin_ns, self._last_ns
