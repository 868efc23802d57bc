"""Checkpoints: a training as it is after a round, in files that outlive it.

A checkpoint is two files. `round-00000120.npz` (or `.pt`) is the state as it was packed; `round-00000120.json` says
what it is of, how long it is and what its digest is. Each is written beside, synced and renamed, the second after the
first: so a checkpoint is there, whole, from one moment on. One whose digest differs is damaged, and the one before it
is used.

Files are written by a thread of their own. The state is packed before the next round begins, and what is then written
cannot change; while one is being written, a newer one waits in place of any that waited before.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec
import numpy as np

from codedreduce.errors import UsageError
from codedreduce.units import seconds
from codedreduce.vectors import Vector

#: Of the files' format. Older ones are read; newer ones are refused.
VERSION = 1

#: Checkpoints that are kept, if nothing is said.
KEPT = 3

#: What a training is, by what may differ: the model, the data, the seed, ...
Subject = Mapping[str, str]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the second file says."""

    version: int
    round: int
    file: str
    bytes: int
    blake2b: str
    subject: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class When:
    """After how many rounds, or seconds, the next checkpoint is written; after the last round one always is.

    >>> When(rounds=10).is_due(round_=30, last=20, elapsed=0.0), When(seconds=60).is_due(round_=30, last=20, elapsed=5)
    (True, False)
    """

    rounds: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"a checkpoint every {self.rounds} rounds cannot be; say 1 or more")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"a checkpoint every {self.seconds} seconds cannot be; say more than 0")

    @classmethod
    def parse(cls, text: str | int) -> When:
        """Every so many rounds, or seconds.

        >>> When.parse(100), When.parse("5min")
        (When(rounds=100, seconds=None), When(rounds=None, seconds=300.0))
        """
        said = str(text).strip()
        return cls(rounds=int(said)) if said.isdigit() else cls(seconds=seconds(said))

    def is_due(self, *, round_: int, last: int, elapsed: float) -> bool:
        """Whether one is due after a round, so many seconds after the last one."""
        by_rounds = self.rounds is not None and round_ - last >= self.rounds
        return by_rounds or (self.seconds is not None and elapsed >= self.seconds)


#: When one is written, if nothing is said.
DEFAULT = When(seconds=60.0)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What is asked for: where checkpoints are written, when, how many stay, and whether to go on from the last one.

    `run` is the name of the run that they are of: its processes take turns at writing them.
    """

    folder: Path
    when: When = DEFAULT
    keep: int = KEPT
    resume: bool = False
    run: str = ""


class InUse(UsageError):
    """Another process writes to the folder; `by_own_run`: one of the same run."""

    def __init__(self, folder: Path, *, by_own_run: bool) -> None:
        super().__init__(f"another training writes its checkpoints to {folder}; give this one a folder of its own")
        self.by_own_run = by_own_run


def saving_to(folder: str | Path | None, every: int | str, keep: int = KEPT, *, resume: bool) -> Saving | None:
    """What is asked for by words; None if no folder is named."""
    if folder is None:
        if resume:
            raise UsageError("to resume, checkpoints must be named: the folder they are in")
        return None
    return Saving(folder=Path(folder), when=When.parse(every), keep=keep, resume=resume)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A state that was read: after which round, and as it was packed."""

    round: int
    state: Vector
    path: Path


class Checkpoints:
    """The checkpoints of one training in one folder, which is this process's as long as it trains.

    `subject` says what is trained; a folder with checkpoints of something else is refused. `say` is told, in words,
    what a person should hear of: a checkpoint that could not be written, or one that is damaged.
    """

    def __init__(
        self, saving: Saving, subject: Subject, *, suffix: str = ".npz", say: Callable[[str], None] = lambda text: None
    ) -> None:  # fmt: skip
        if saving.keep < 1:
            raise UsageError(f"{saving.keep} checkpoints cannot be kept; say 1 or more")
        self.folder = saving.folder
        self._saving = saving
        self._subject = dict(subject)
        self._suffix = suffix
        self._say = say
        self._lock: IO[str] | None = None
        self._changed = threading.Condition()
        self._waiting: tuple[int, Callable[[], Vector]] | None = None  # what the writing thread is to write next
        self._over = False
        self._writer: threading.Thread | None = None
        self._last = 0  # the round of the last one
        self._last_at = 0.0

    # -- a folder of one's own

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("a+")
            _write(self.folder / "writable", b"")
            (self.folder / "writable").unlink()
        except OSError as error:
            self._unlock()
            raise UsageError(f"checkpoints cannot be written to {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            run = self._lock.read()
            self._unlock()
            raise InUse(self.folder, by_own_run=run != "" and run == self._saving.run) from None
        self._lock.truncate(0)
        self._lock.write(self._saving.run)
        self._lock.flush()
        self._last_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all that was handed over is written."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):  # processes that were forked meanwhile have it, too, until they end
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
            self._lock = None

    # -- writing

    def is_due(self, round_: int) -> bool:
        """Whether a checkpoint is to be written after a round."""
        return self._saving.when.is_due(round_=round_, last=self._last, elapsed=time.monotonic() - self._last_at)

    def write(self, round_: int, packed: Callable[[], Vector]) -> None:
        """Have a state packed, which must not change any more, and written; this does not wait for it."""
        with self._changed:
            self._waiting = (round_, packed)
            self._changed.notify()
        if self._writer is None:  # not before: processes are forked until the first round begins
            self._writer = threading.Thread(target=self._write_all, name="codedreduce-checkpoints", daemon=True)
            self._writer.start()
        self._last, self._last_at = round_, time.monotonic()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._over)
                if self._waiting is None:
                    return
                round_, packed = self._waiting
                self._waiting = None
            try:
                self._write_one(round_, packed())
            except Exception as error:  # whatever it is, the training goes on
                why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self._say(f"the checkpoint of round {round_} could not be written to {self.folder}: {why}")
                with contextlib.suppress(OSError):
                    self._remove(round_)

    def _write_one(self, round_: int, state: Vector) -> None:
        data = np.ascontiguousarray(state).view(np.uint8).data
        manifest = Manifest(
            version=VERSION, round=round_, file=f"{_name(round_)}{self._suffix}", bytes=data.nbytes,
            blake2b=_digest(data), subject=self._subject,
        )  # fmt: skip
        _write(self.folder / manifest.file, data)
        _write(self.folder / f"{_name(round_)}.json", msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        for old in sorted(self._rounds(), reverse=True)[self._saving.keep :]:
            self._remove(old)

    def _remove(self, round_: int) -> None:
        """First what says that it is there."""
        for path in (self.folder / f"{_name(round_)}.json", self.folder / f"{_name(round_)}{self._suffix}"):
            path.unlink(missing_ok=True)
        for path in self.folder.glob(f"{_name(round_)}*{BESIDE}"):
            path.unlink(missing_ok=True)

    # -- reading

    def begin(self) -> Checkpoint | None:
        """Where the training goes on, if that is asked for; a folder with checkpoints is not begun anew in silence."""
        if self._saving.resume:
            return self.latest()
        rounds = max(self._rounds(), default=None)
        if rounds is not None:
            raise UsageError(
                f"{self.folder} has the checkpoints of a training, up to round {rounds}: resume it (--resume, or "
                "resume=True), or give another folder"
            )
        return None

    def _rounds(self) -> Iterator[int]:
        for path in self.folder.glob("round-*.json"):
            number = path.stem.removeprefix("round-")
            if number.isdigit():
                yield int(number)

    def latest(self) -> Checkpoint | None:
        """The last checkpoint that is whole, if there is one. Those after it that are not are said, and removed."""
        for round_ in sorted(self._rounds(), reverse=True):
            path = self.folder / f"{_name(round_)}.json"
            found = self._read(path)
            if isinstance(found, Checkpoint):
                self._last = found.round
                return found
            self._say(f"the checkpoint {path} is damaged: {found}; the one before it is used")
            self._remove(round_)
        return None

    def _read(self, path: Path) -> Checkpoint | str:
        """A checkpoint, or what is wrong with it."""
        try:
            text = path.read_bytes()
            version = msgspec.json.decode(text, type=_Version).version
            if version > VERSION:
                raise UsageError(
                    f"{path} was written by a newer version of codedreduce (format {version}, this one reads up to "
                    f"{VERSION}); install that version, or give another folder"
                )
            manifest = msgspec.json.decode(text, type=Manifest)
            self._check_subject(path, manifest)
            state = np.fromfile(self.folder / Path(manifest.file).name, dtype=np.uint8)
        except msgspec.MsgspecError as error:
            return str(error)
        except OSError as error:
            return f"{error.strerror}: {error.filename}"
        if state.nbytes != manifest.bytes:
            return f"{manifest.file} has {state.nbytes} bytes of {manifest.bytes}"
        if _digest(state.data) != manifest.blake2b:
            return f"{manifest.file} does not have the digest it was written with"
        return Checkpoint(round=manifest.round, state=state, path=path)

    def _check_subject(self, path: Path, manifest: Manifest) -> None:
        names = [*self._subject, *(name for name in manifest.subject if name not in self._subject)]
        differing = [
            f"{name} {manifest.subject.get(name, 'none')!r}, now {self._subject.get(name, 'none')!r}"
            for name in names
            if manifest.subject.get(name) != self._subject.get(name)
        ]
        if differing:
            raise UsageError(
                f"{path} is of another training: {'; '.join(differing)}. Resume with what it was written by, or give "
                "another folder"
            )


class _Version(msgspec.Struct):
    version: int


#: How the name of a file ends that is being written.
BESIDE = ".writing"


def _name(round_: int) -> str:
    return f"round-{round_:08d}"


def _digest(data: memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _write(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is there whole, or not at all, whenever the machine stops."""
    beside = path.with_name(path.name + BESIDE)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
