"""Output files that the user names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from codedreduce.errors import UsageError


def check_writable(*paths: Path | None) -> None:
    """Refuse files that cannot be written, before anything is computed. Existing contents stay until the write."""
    named: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path.resolve() in named and not path.is_dir() and not path.is_char_device():
            raise UsageError(f"two results cannot be written to one file, {str(path)!r}; name different files")
        named.add(path.resolve())
        if (path.exists() and not path.is_file() and not path.is_dir()) and os.access(path, os.W_OK):
            continue
        was_there = path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise _cannot_write(path, error) from None
        if not was_there:
            path.resolve().unlink()  # the target, if it is a link


def check_folder(folder: Path | None) -> None:
    """Create the folder of a report; refuse it if no report can be written there."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    check_writable(folder / "index.html")


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace `path` once the new file is completely written; the old file stays if that fails."""
    target = path.resolve()  # the target, if it is a link
    beside = target.with_name(f".{target.name}-{os.getpid()}.writing")
    is_other = path.exists() and not path.is_file()  # a pipe, /dev/stdout
    try:
        if is_other or not os.access(target.parent, os.W_OK):
            with path.open("wb") as file:
                write(file)
            return
        try:
            with beside.open("wb") as file:
                write(file)
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {str(path)!r}: {error.strerror}")


def write_json(path: Path, document: object) -> None:
    """Write a document as JSON."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    write_whole(path, lambda file: file.write(text))
