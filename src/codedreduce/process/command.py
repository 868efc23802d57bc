"""The command with which each process of a run runs a script, or a module."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence

from codedreduce.errors import UsageError


def python_command(script: str, arguments: Sequence[str], *, is_module: bool = False) -> list[str]:
    """The command that runs a script, or a module."""
    if is_module:
        if not _can_be_found(script):
            raise UsageError(f"there is no module {script!r} that can be found from {os.getcwd()}")
        return [sys.executable, "-m", script, *arguments]
    if not os.path.isfile(script):
        hint = f"; for a module write -m {script}" if not script.endswith(".py") and _can_be_found(script) else ""
        raise UsageError(f"there is no script {script!r}{hint}")
    return [sys.executable, script, *arguments]


def _can_be_found(module: str) -> bool:
    """Whether a module exists, without running any of its code."""
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    for name in module.split("."):
        if not name or path is None:
            return False
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None:
            return False
        path = found.submodule_search_locations
    return True
