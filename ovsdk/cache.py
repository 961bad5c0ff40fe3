"""Where ovsdk keeps what can be made again: converted weights, results of sweeps."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$OVSDK_CACHE, else $XDG_CACHE_HOME/ovsdk, else ~/.cache/ovsdk."""
    own, shared = os.environ.get("OVSDK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(shared) if shared else Path.home() / ".cache") / "ovsdk"
