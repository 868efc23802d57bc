"""Checkpoints: files with the state of a training after a round.

A checkpoint is two files. `round-00000120.npz` (or `.pt`) is the packed state. `round-00000120.json` is the manifest:
the subject, length and digest of the state. Each file is written under a temporary name, synced and renamed, the
manifest last, so a checkpoint appears atomically. A checkpoint with another length or digest is damaged: it is renamed,
and the one before it is used. A checkpoint that cannot be read, without permission or a free descriptor, may be
undamaged: that is an error, and no file is changed. Only old checkpoints are removed, after a newer one is written.

A separate thread writes the files. The state is copied before the next round begins, so it cannot change while it is
written. While the thread writes one checkpoint, one other can wait; a newer one replaces it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import msgspec
import numpy as np

from codedreduce.errors import UsageError
from codedreduce.launch.environment import Membership
from codedreduce.units import seconds
from codedreduce.vectors import Vector

#: The version of the files' format. Older formats are read; newer ones are refused.
VERSION = 1

#: The default number of checkpoints to keep.
KEPT = 3

#: The identity of a training, by property: the model, the data, the seed, ...
Subject = Mapping[str, str]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the manifest file."""

    version: int
    round: int
    file: str
    bytes: int
    blake2b: str
    subject: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class When:
    """The number of rounds, or seconds, between checkpoints; the last round always has one.

    >>> When(rounds=10).is_due(round_=30, last=20, elapsed=0.0), When(seconds=60).is_due(round_=30, last=20, elapsed=5)
    (True, False)
    """

    rounds: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"the rounds between checkpoints must be 1 or more, got {self.rounds}")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the seconds between checkpoints must be above 0, got {self.seconds}")

    @classmethod
    def parse(cls, text: str | int) -> When:
        """Parse an interval: a number of rounds, or a time.

        >>> When.parse(100), When.parse("5min")
        (When(rounds=100, seconds=None), When(rounds=None, seconds=300.0))
        """
        said = str(text).strip()
        return cls(rounds=int(said)) if re.fullmatch(r"[0-9]{1,18}", said) else cls(seconds=seconds(said))

    def is_due(self, *, round_: int, last: int, elapsed: float) -> bool:
        """Whether a checkpoint is due after a round, `elapsed` seconds after the last one."""
        by_rounds = self.rounds is not None and round_ - last >= self.rounds
        return by_rounds or (self.seconds is not None and elapsed >= self.seconds)


#: The default interval.
DEFAULT = When(seconds=60.0)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The configuration of checkpoints: their folder, interval and number, and whether to resume from the last one.

    `run` is the name of the run. Its processes share the folder; one at a time writes to it.
    """

    folder: Path
    when: When = DEFAULT
    keep: int = KEPT
    resume: bool = False
    run: str = ""


class _Damaged(Exception):
    """A checkpoint is damaged; the text is the reason."""


class InUse(UsageError):
    """Another process writes to the folder; `by_own_run`: a process of the same run."""

    def __init__(self, folder: Path, *, by_own_run: bool) -> None:
        super().__init__(f"another training writes its checkpoints to {folder}; give this one a folder of its own")
        self.by_own_run = by_own_run


def saving_to(
    folder: str | Path | None, every: int | str, keep: int = KEPT, *, resume: bool, membership: Membership | None = None
) -> Saving | None:
    """The configuration from these options; None without a folder. A process that replaces a failed one resumes."""
    if folder is None:
        if resume:
            raise UsageError("resume needs checkpoints: set their folder")
        return None
    run, restarted = (membership.meeting.run, membership.restarted) if membership is not None else ("", 0)
    return Saving(
        folder=Path(folder), when=When.parse(every), keep=keep, resume=resume or restarted > 0, run=run
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read: its round, and the packed state."""

    round: int
    state: Vector
    path: Path


class Checkpoints:
    """The checkpoints of one training in one folder, which this process locks while it trains.

    `subject` identifies the training; a folder with checkpoints of another one is refused. `say` is called with
    messages for the user: a checkpoint could not be written, or is damaged.
    """

    def __init__(
        self, saving: Saving, subject: Subject, *, suffix: str = ".npz", say: Callable[[str], None] = lambda text: None
    ) -> None:  # fmt: skip
        if saving.keep < 1:
            raise UsageError(f"the number of checkpoints to keep must be 1 or more, got {saving.keep}")
        self.folder = saving.folder
        self._saving = saving
        self._subject = dict(subject)
        self._suffix = suffix
        self._say = say
        self._lock: IO[bytes] | None = None
        self._changed = threading.Condition()
        self._waiting: tuple[int, Callable[[], Vector]] | None = None  # the next checkpoint of the writing thread
        self._over = False
        self._writer: threading.Thread | None = None
        self._last = 0  # the round of the last checkpoint
        self._last_at = 0.0

    # -- the lock of the folder

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK).open("ab+", buffering=0)
            _entered.add(self)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".writable-"):
                _sync(self.folder)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock.truncate(0)
            self._lock.write(self._saving.run.encode())
        except BlockingIOError:
            assert self._lock is not None
            self._lock.seek(0)
            run = self._lock.read().decode(errors="replace")
            self._unlock()
            raise InUse(self.folder, by_own_run=run != "" and run == self._saving.run) from None
        except OSError as error:
            self._unlock()
            raise UsageError(f"checkpoints cannot be written to {self.folder}: {error.strerror}") from None
        self._last_at = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until the thread has written the waiting checkpoint."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join()
        self._unlock()

    def _unlock(self) -> None:
        _entered.discard(self)
        if self._lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
            self._lock = None

    def forget_lock(self) -> None:
        """Close the lock in a forked process; else it would hold the folder after the owner is killed."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- writing

    def is_due(self, round_: int) -> bool:
        """Whether a checkpoint is due after a round."""
        return self._saving.when.is_due(round_=round_, last=self._last, elapsed=time.monotonic() - self._last_at)

    def write(self, round_: int, packed: Callable[[], Vector]) -> None:
        """Let the thread pack and write a state, which must not change any more; return at once."""
        with self._changed:
            self._waiting = (round_, packed)
            self._changed.notify()
        if self._writer is None:  # no thread may run earlier: processes are forked until the first round begins
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
            except Exception as error:  # the training continues after any error
                self._say(f"the checkpoint of round {round_} could not be written to {self.folder}: {_reason(error)}")
                continue
            try:
                self._remove_old(round_)
            except OSError as error:
                self._say(f"an old checkpoint could not be removed: {error.filename or self.folder}: {error.strerror}")

    def _write_one(self, round_: int, state: Vector) -> None:
        data = np.ascontiguousarray(state).view(np.uint8).data
        manifest = Manifest(
            version=VERSION, round=round_, file=f"{_name(round_)}{self._suffix}", bytes=data.nbytes,
            blake2b=_digest(data), subject=self._subject,
        )  # fmt: skip
        words = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        _write({self.folder / manifest.file: data, self.folder / f"{_name(round_)}.json": words})

    def _remove_old(self, written: int) -> None:
        """Remove old checkpoints: keep the newest before the one just written, and any after it."""
        for old in sorted((one for one in self._rounds() if one < written), reverse=True)[self._saving.keep - 1 :]:
            (self.folder / f"{_name(old)}.json").unlink(missing_ok=True)  # first, because it makes a checkpoint valid
            (self.folder / f"{_name(old)}{self._suffix}").unlink(missing_ok=True)
            for path in self.folder.glob(f"{_name(old)}*{BESIDE}"):
                path.unlink(missing_ok=True)

    # -- reading

    def begin(self) -> Checkpoint | None:
        """The checkpoint to resume from, if `resume` is set; else raise `UsageError` if the folder has checkpoints."""
        if self._saving.resume:
            found = self.latest()
            if found is not None:
                self._say(f"Resumed from round {found.round} ({found.path})")
            else:
                self._say(f"Started at round 1: there is no checkpoint in {self.folder} yet")
            return found
        rounds = max(self._found(), default=None)
        if rounds is not None:
            raise UsageError(
                f"{self.folder} has the checkpoints of a training, up to round {rounds}: resume it (--resume, or "
                "resume=True), or give another folder"
            )
        return None

    def _rounds(self, ending: str = ".json") -> Iterator[int]:
        """The rounds that have files with this ending. `OSError` if the folder cannot be listed: it may have some."""
        for name in os.listdir(self.folder):
            number = name.removeprefix("round-").removesuffix(ending)
            if number.isdecimal() and name == f"{_name(int(number))}{ending}":
                yield int(number)

    def _found(self, ending: str = ".json") -> list[int]:
        """The same as a list, newest first; `UsageError` if the folder cannot be listed."""
        try:
            return sorted(self._rounds(ending), reverse=True)
        except OSError as error:
            raise UsageError(f"checkpoints in {self.folder} cannot be listed: {error.strerror}") from None

    def latest(self) -> Checkpoint | None:
        """The last undamaged checkpoint. If there is one, the damaged ones after it are reported and renamed.

        None in a folder without checkpoints. If all are damaged it is an error in each attempt: only the user can
        decide to start again.
        """
        damaged: dict[int, str] = {}
        for round_ in self._found():
            try:
                found = self._read(round_)
            except _Damaged as error:
                damaged[round_] = str(error)
                continue
            for other, why in damaged.items():
                path = self._set_aside(other)
                self._say(f"the checkpoint {path} is damaged: {why}; the one before it is used")
            self._last = found.round
            return found
        for round_ in self._found(self._suffix):
            manifest = self.folder / f"{_name(round_)}.json"
            if _is_missing(manifest) and _is_missing(manifest.with_name(manifest.name + BESIDE)):
                damaged[round_] = f"{manifest.name} is missing"  # else the write was interrupted
        if damaged or self._found(f".json{DAMAGED}"):
            why = "".join(f"; {reason}" for reason in damaged.values())
            raise UsageError(
                f"{self.folder} has checkpoints, but none of them is whole{why}. Restore one from a copy; or, to start "
                "again at round 1, move the folder away or give another"
            )
        return None

    def _set_aside(self, round_: int) -> Path:
        """Rename a damaged checkpoint, so that the user can inspect it; return the new path of the manifest."""
        words = self.folder / f"{_name(round_)}.json"
        data = words.with_suffix(self._suffix)
        ending, others = DAMAGED, 1
        while os.path.lexists(f"{words}{ending}") or os.path.lexists(f"{data}{ending}"):  # from an earlier run
            others += 1
            ending = f"{DAMAGED}-{others}"
        try:
            words.rename(f"{words}{ending}")  # first, because it makes a checkpoint valid
            with contextlib.suppress(FileNotFoundError):
                data.rename(f"{data}{ending}")
        except OSError as error:
            raise UsageError(f"the damaged checkpoint {words} cannot be renamed: {error.strerror}") from None
        return Path(f"{words}{ending}")

    def _read(self, round_: int) -> Checkpoint:
        """Read a checkpoint; `UsageError` if it cannot be read, `_Damaged` if its content is not what was written."""
        path = self.folder / f"{_name(round_)}.json"
        text = _bytes_of(path)
        try:
            version = msgspec.json.decode(text, type=_Version).version
            if version > VERSION:
                raise UsageError(
                    f"{path} was written by a newer version of codedreduce (format {version}, this one reads up to "
                    f"{VERSION}); install that version, or give another folder"
                )
            manifest = msgspec.json.decode(text, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _Damaged(f"{path.name}: {error}") from None
        if manifest.round != round_:
            raise _Damaged(f"{path.name} is of round {manifest.round}")
        self._check_subject(path, manifest)
        data = self.folder / Path(manifest.file).name
        if _is_missing(data):  # it was written before its manifest, so it has been removed
            raise _Damaged(f"{data.name} is missing")
        state = np.frombuffer(_bytes_of(data), dtype=np.uint8)
        if state.nbytes != manifest.bytes:
            raise _Damaged(f"{data.name} has {state.nbytes} bytes of {manifest.bytes}")
        if _digest(state.data) != manifest.blake2b:
            raise _Damaged(f"{data.name} does not have the digest it was written with")
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
                f"{path} is of another training: {'; '.join(differing)}. Resume with the configuration that wrote it, "
                "or give another folder"
            )


#: The open checkpoints of this process, each with the lock of its folder.
_entered: weakref.WeakSet[Checkpoints] = weakref.WeakSet()


def _forget_locks() -> None:
    for checkpoints in list(_entered):
        checkpoints.forget_lock()


os.register_at_fork(after_in_child=_forget_locks)


class _Version(msgspec.Struct):
    version: int


#: The endings of names: of a file that is being written, and of a damaged one.
BESIDE, DAMAGED = ".writing", ".damaged"

#: The lock file of a folder.
LOCK = "codedreduce.lock"


def _name(round_: int) -> str:
    return f"round-{round_:08d}"


def _digest(data: memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _is_missing(path: Path) -> bool:
    """Whether the file does not exist. False if that cannot be determined: reading the file then raises the error."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _bytes_of(path: Path) -> bytes:
    """The content of a file. `UsageError` if it cannot be read; it may be undamaged, so no file is changed."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the checkpoint {path} cannot be read: {error.strerror}. No file was changed: make it readable, and resume"
        ) from None


def _write(files: Mapping[Path, bytes | memoryview]) -> None:
    """Write files in this order, each atomically: complete or not at all, even if the host stops.

    Existing files of these names stay until all new ones have been written.
    """
    beside = {path: path.with_name(path.name + BESIDE) for path in files}
    try:
        for path, data in files.items():
            with beside[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            beside[path].replace(path)
            _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            for path in beside.values():
                path.unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    """Sync the names in a folder to the disk, so that they survive a stop of the host."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
