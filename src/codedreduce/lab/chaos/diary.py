"""What the processes of a chaos run record in a shared folder, and the reader of these records.

`rounds-RANK`: a line for every round that the rank finished. `final-RANK.npy`: its final model. `stop`: a file that the
chaos command creates to end the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class RoundDone(NamedTuple):
    """A rank finished a round, at a time of this host's clock; whether the rank was the leader."""

    round: int
    at: float
    leads: bool
    rank: int


class Diary:
    """The writer, in each process of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = os.environ.get("RANK", "0")
        self._lines = (folder / f"rounds-{self._rank}").open("a", buffering=1)

    def round(self, number: int, *, leads: bool) -> None:
        """Record that this rank finished a round."""
        self._lines.write(f"{number} {time.monotonic():.4f} {int(leads)}\n")

    def is_to_stop(self) -> bool:
        """Whether the run has to stop."""
        return (self._folder / "stop").exists()

    def end(self, model: Array) -> None:
        """Record the final model of this rank."""
        beside = self._folder / f"final-{self._rank}.part"
        with beside.open("wb") as file:
            np.save(file, model)
        beside.rename(self._folder / f"final-{self._rank}.npy")


class Failing:
    """Raises MemoryError at the next `look` after SIGUSR1."""

    def __init__(self) -> None:
        self._is_asked = False
        signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, *_: object) -> None:
        self._is_asked = True

    def look(self) -> None:
        """Fail if SIGUSR1 has arrived."""
        if self._is_asked:
            self._is_asked = False
            raise MemoryError("injected failure (SIGUSR1)")


class Diaries:
    """The reader, in the chaos command: all diaries, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def stop(self) -> None:
        """Make all processes stop."""
        (self._folder / "stop").touch()

    def news(self) -> Iterator[RoundDone]:
        """The rounds that ranks recorded since the last call."""
        for path in sorted(self._folder.glob("rounds-*")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            rank = int(path.name.removeprefix("rounds-"))
            for line in whole.decode().splitlines():
                with contextlib.suppress(ValueError):  # a line that a kill cut short
                    number, at, leads = line.split()
                    yield RoundDone(int(number), float(at), leads == "1", rank)

    def finals(self) -> dict[int, Array]:
        """The final models by rank."""
        found = {}
        for path in self._folder.glob("final-*.npy"):
            found[int(path.stem.removeprefix("final-"))] = np.load(path)
        return found
