"""Optional dependencies: imported on first use, and named with their pip command when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from codedreduce.errors import MissingExtra


def require(package: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say how to install it.

    >>> require("json", extra="dev").__name__
    'json'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is there, and something inside it is broken: that is another story
        raise MissingExtra(package, extra=extra) from None
