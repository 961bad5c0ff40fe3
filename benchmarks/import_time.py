"""What `import ovsdk` costs a fresh interpreter: at most 100 ms, so that a command line or a worker may begin with it.

CPU time, which with cached files is all there is to it, and which other programs disturb less. Alternates with the import of
what it cannot do without (attrs, pluggy); each is the median of its runs after a first that compiles the files.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

RUNS = 15
TARGET_MS = 100.0
IMPORTS = {"import ovsdk": TARGET_MS, "import attrs, pluggy": None}


def import_ms(statement: str, cache: str) -> float:
    """CPU milliseconds that a statement takes in a new interpreter, its start not included. `cache`: a folder for bytecode."""
    code = f"import time; begin = time.process_time(); {statement}; print((time.process_time() - begin) * 1e3)"
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**usual, "PYTHONPYCACHEPREFIX": cache}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def measure() -> list[dict[str, object]]:
    """One row for each import and one for its spread (half the distance of the quartiles)."""
    with tempfile.TemporaryDirectory() as cache:
        runs = [{statement: import_ms(statement, cache) for statement in IMPORTS} for _ in range(RUNS + 1)][1:]
    rows: list[dict[str, object]] = []
    for statement, target in IMPORTS.items():
        low, median, high = statistics.quantiles([run[statement] for run in runs], n=4)
        rows.append(row(statement, median, target))
        rows.append(row(f"{statement}, spread", (high - low) / 2, None))
    return rows


def row(name: str, value: float, target: float | None) -> dict[str, object]:
    """A row of the table; `ok` is None where there is no target."""
    return {"name": name, "value": round(value, 2), "unit": "ms", "target": target, "ok": None if target is None else value <= target}


def main() -> int:
    """Print the table, or with --json one object. 1 if a target is missed."""
    rows = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps({"rows": rows}))
    else:
        for r in rows:
            print(
                f"{r['name']:<30} {r['value']:>8} {r['unit']}  target {r['target'] or '-'}  {'MISSED' if r['ok'] is False else ''}".rstrip()
            )
    return int(any(r["ok"] is False for r in rows))


if __name__ == "__main__":
    sys.exit(main())
