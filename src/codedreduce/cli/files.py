"""Files the user names."""

from __future__ import annotations

from collections.abc import Sequence
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


def open_to_write_bytes(path: Path) -> IO[bytes]:
    """Open a file for bytes, or say why it cannot be."""
    open_to_write(path).close()
    return path.open("wb")


def write_results(path: Path, *, conditions: object, seed: int, results: Sequence[Result]) -> None:
    """Write what was compared, under which conditions, as JSON."""
    document = {"conditions": conditions, "seed": seed, "results": results}
    with open_to_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")
