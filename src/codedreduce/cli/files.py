"""Files the user names."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from codedreduce.comparison.result import Result
from codedreduce.errors import UsageError


def open_to_write(path: Path) -> IO[str]:
    """Open a file for text, or say why it cannot be."""
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from None


def check_writable(*paths: Path | None) -> None:
    """Refuse files that cannot be written, before anything is computed; what is there is not touched."""
    for path in paths:
        if path is not None:
            write_whole(path, lambda file: None, is_trial=True)


def write_whole(path: Path, write: Callable[[IO[bytes]], None], *, is_trial: bool = False) -> None:
    """Put a file in the place of `path` when all of it is written: what was there stays if that never happens."""
    try:
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():  # a pipe, /dev/stdout
            if not is_trial:
                with path.open("wb") as file:
                    write(file)
            return
        target = path.resolve()  # of a link, what it points to
        beside = target.with_name(f".{target.name}-{os.getpid()}.writing")
        try:
            with beside.open("wb") as file:
                write(file)
            if target.exists():
                shutil.copymode(target, beside)
            if not is_trial:
                beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from None


def write_results(path: Path, *, conditions: object, seed: int, results: Sequence[Result]) -> None:
    """Write what was compared, under which conditions, as JSON."""
    document = {"conditions": conditions, "seed": seed, "results": results}
    with open_to_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")
