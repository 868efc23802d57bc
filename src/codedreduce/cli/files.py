"""Files the user names."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from codedreduce.errors import UsageError


def open_to_write(path: Path) -> TextIO:
    """Open a file for text, or say why it cannot be."""
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from None
