"""What `import ovsdk` costs a fresh interpreter: at most 100 ms, so that a command line or a worker may begin with it.

CPU time, which with cached files is all there is to it, and which other programs disturb less. Alternates with the import of
what it cannot do without (attrs, pluggy); the first round compiles the files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from _table import Row, Section, alternate, main, median

ROUNDS = {False: 15, True: 3}
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


def measure(quick: bool) -> Iterator[Row | str]:
    """One row for each import."""
    with tempfile.TemporaryDirectory() as cache:
        runs = alternate({statement: partial(import_ms, statement, cache) for statement in IMPORTS}, ROUNDS[quick])
    yield f"{ROUNDS[quick]} alternating interpreters of each, after one of each that is dropped"
    for statement, target in IMPORTS.items():
        yield median(statement, runs[statement], "ms", target)


if __name__ == "__main__":
    sys.exit(main(__doc__, {"import": Section("CPU time of an import", measure)}))
