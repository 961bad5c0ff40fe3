"""Which streams have work that another does not wait for: vector clocks over streams and events (Fidge, Mattern 1988)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable


class Forks:
    """Told, in order, what a host does with streams and events; both are known by any key."""

    def __init__(self) -> None:
        self._seen: defaultdict[Hashable, defaultdict[Hashable, int]] = defaultdict(lambda: defaultdict(int))
        """Stream -> stream -> how much of its work comes before whatever is launched on the former next."""
        self._events: dict[Hashable, dict[Hashable, int]] = {}

    def worked(self, stream: Hashable) -> None:
        """Work was launched on a stream."""
        self._seen[stream][stream] += 1

    def recorded(self, event: Hashable, stream: Hashable) -> None:
        """An event was recorded on a stream."""
        self._events[event] = dict(self._seen[stream])

    def waited(self, event: Hashable, stream: Hashable) -> None:
        """A stream was made to wait for an event."""
        seen = self._seen[stream]
        for other, work in self._events.get(event, {}).items():
            seen[other] = max(seen[other], work)

    def open(self, main: Hashable) -> set[Hashable]:
        """The streams with work that `main` does not wait for."""
        known = self._seen[main]
        return {stream for stream, seen in tuple(self._seen.items()) if seen[stream] > known[stream]}
