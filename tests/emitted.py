"""A derivation with everything that the subset has, for test_tiling_emit. `derive` runs every case and writes one number of each."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

N, SUM, BACK = 4, 0, -1
LARGE = 2**62


def derive(a: Sequence[int], v: Sequence[int], out: MutableSequence[int]) -> None:
    """Every case below; a text with a \\ at its end \\"""
    out[SUM] = total(v, a[0])
    out[1] = descending(a[1])
    out[2] = collatz(a[2] + 1)
    out[3] = carried(v, a[0])
    fill(v, a[0], out)
    out[5], out[6] = a[0] - a[1], -a[2]
    out[7] = clamp(a[1], 3, 7) * clamp(-a[1], -5, -2)
    out[8] = sized(v, a[0])
    out[9] = chosen(a[0], a[1], a[2])
    out[10] = logic(a[0], a[1], a[2])
    out[11] = wide(a[0])
    out[12] = early(v, a[0], a[1])
    out[13] = nested(a[0], a[1])
    out[14] = kept(a[1])
    out[15] = precedence(a[0], a[1], a[2])
    out[16] = remembered(v, a[0])


def total(v: Sequence[int], n: int) -> int:
    """A loop with an end that its body changes."""
    found = 0
    for i in range(n):
        n = n - 1
        found += v[i]
    return found * 100 + n


def descending(n: int) -> int:
    """Downwards, by a number and in steps of a local that changes."""
    found, by = 0, 2
    for i in range(n, 0, -1):
        found = found * 3 % 10007 + i
    for i in range(0, n, by):
        by = by + 1
        found = found * 5 % 10007 + i + by
    for i in range(n, -1, -3):
        found = found * 7 % 10007 + i
    return found


def collatz(n: int) -> int:
    """While, with an if in it."""
    steps = 0
    while n != 1 and steps < 1000:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def carried(v: Sequence[int], n: int) -> int:
    """A local that outlives a turn of a loop without being assigned in each, and one that is declared in each."""
    found = 0
    for i in range(n):
        twice = v[i] * 2
        if i == 0:
            last = v[i]
        if twice > last:
            last = twice
            found += 1
    if n > 0:
        found = found * 1000 + last
    return found


def remembered(v: Sequence[int], n: int) -> int:
    """Locals that are read in a turn before they are assigned in it, but not in the first."""
    found = 0
    for i in range(n):
        found = found * 3 + (before if i > 0 else 0)  # noqa: F821
        before = v[i] % 7 if v[i] > 0 else 1
        grown = grown + before if i > 0 else 5  # noqa: F821
        found = found + grown
    return found


def fill(v: Sequence[int], n: int, out: MutableSequence[int]) -> int:
    """Writes, and gives a number that nobody takes."""
    counts = [0] * N
    for i in range(n):
        counts[abs(v[i]) % N] += 1
    out[4] = counts[0] + 10 * counts[1] + 100 * counts[2] + 1000 * counts[N - 1]
    return n


def clamp(x: int, low: int, high: int) -> int:
    """min and max of two and of three."""
    return max(low, min(x, high, 1000))


def sized(v: Sequence[int], n: int) -> int:
    """An array of a size known when run, fresh in each turn."""
    found = 0
    for k in range(3):
        seen = [0] * (n + 1)
        put(v, n, k, seen)
        found = found * 31 + seen[0] + 7 * seen[n]
    return found


def put(v: Sequence[int], n: int, k: int, to: list[int]) -> None:
    """Writes into the caller's array."""
    for i in range(n):
        to[i] += v[i] + k
    to[n] = n


def chosen(x: int, y: int, z: int) -> int:
    """elif, and choices inside choices."""
    if x > y:
        found = 1
    elif x == y and z != 0:
        found = 2
    elif not (x < 2 or z):
        found = 3
    else:
        found = 4
        if y:
            found += 10
    return (found if x < 3 else -found) + (2 if (1 if x else 0) == 1 else 3)


def logic(x: int, y: int, z: int) -> bool:
    """Conditions as values."""
    both = 0 <= x < y <= z
    some: int = x > 1 or (y > 2 and not (z == 3 and y < 30))
    return both != (some == 1)


def wide(x: int) -> int:
    """What would overflow in 32 bits."""
    large = 1024 * 1024 * 1024 * 1024
    return large + (2000000000 if x > 2 else 1500000000) * 3 + (x < 100) * 2000000000 * 2 + LARGE - LARGE // 2


def early(v: Sequence[int], n: int, limit: int) -> int:
    """break, continue, pass, return out of a loop."""
    found = 0
    for i in range(n):
        if v[i] < 0:
            continue
        if v[i] > limit * 10:
            break
        if v[i] == 77:
            return i
        if v[i] == 78:
            pass
        found += 1
    return found


def nested(x: int, y: int) -> int:
    """Loops in loops, and the same variable twice, one after the other."""
    found = 0
    for i in range(x):
        for j in range(i, y):
            found += i * 10 + j
        for j in range(2):
            found = found - j
    i_end = found
    for i in range(abs(i_end) % 5):
        found += i
    return found


def kept(x: int) -> int:
    """One value for two locals; a local of two branches."""
    low = high = x
    if x % 2 == 1:
        side = low + 1
    else:
        side = high - 1
    return side * 3 + low - high


def precedence(x: int, y: int, z: int) -> int:
    """Who binds tighter."""
    return x - (y - z) - (x + y) * (z - 1) + (x * 7 // (y + 1)) * 2 - x * (7 // (y + 1) * 2) + -(x + y) - -z + (x + 1) // (z + 1) % 3
