"""Packages that need not be there: imported where they are needed, with what to install if they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import ConfigError


def need(module: str, what: str, install: str) -> Any:
    """The module. Raises ConfigError, "`what` needs PACKAGE ...: `install`", if it cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(f"{what} needs {package}, which cannot be imported here ({error}): {install}") from error
