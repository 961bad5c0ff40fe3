"""Integer arithmetic that derivations share: written in their subset, so it is emitted with them."""

from __future__ import annotations


def parts(x: int, by: int) -> int:
    """How many parts of size `by` hold x."""
    return (x + by - 1) // by


def up(x: int, to: int) -> int:
    """x, rounded up to a multiple."""
    return (x + to - 1) // to * to
