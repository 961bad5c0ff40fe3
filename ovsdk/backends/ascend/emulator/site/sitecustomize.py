"""Put on PYTHONPATH by `ovsdk emulate`: a Python process activates the emulated NPU right before it imports torch, or never.

Python imports a module of this name at its start. The one that this file hides, if any, is imported after it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def activate() -> None:
    """torch_npu imports torch first, so that torch alone is watched."""
    importlib.import_module("ovsdk.backends.ascend.emulator").activate()


def importing() -> Any:
    """The emulator's module of that name, loaded as a file: its package is not, as long as nobody needs it."""
    spec = importlib.util.spec_from_file_location("importing", HERE.parent / "importing.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{HERE.parent / 'importing.py'} is gone")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def uncover() -> None:
    """Import the `sitecustomize` that this one hides."""
    sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]
    mine = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = mine


if __name__ == "sitecustomize":
    importing().Around("torch", before=activate).watch()
    uncover()
