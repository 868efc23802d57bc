"""Optional dependencies: imported at first use; the error for a missing one contains the pip command."""

from __future__ import annotations

import importlib
from types import ModuleType

from codedreduce.errors import MissingExtra


def require(package: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error with the command that installs it.

    >>> require("json", extra="dev").__name__
    'json'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but one of its own imports is missing
        raise MissingExtra(package, extra=extra) from None
