"""The folder of a user's local sockets, which nobody else may enter.

Sockets of a run lie together in a folder in it. A process that was killed leaves its socket behind; whoever begins or
ends a run takes away what nobody listens at any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
from collections.abc import Iterator

from codedreduce.errors import UsageError

#: Not by TMPDIR: all processes of a run must come to the same.
PARENT = "/tmp"

#: What processes have said already (plainly.py) lies in folders beside those of runs, which begin so.
SAID = "said-"


def user_folder() -> str:
    """This user's folder."""
    return f"{PARENT}/codedreduce-{os.getuid()}"


def run_folder(run: str) -> str:
    """Where the sockets of a run lie, as seen from a network namespace: names in two of them are apart."""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        network = ""
    return f"{user_folder()}/{hashlib.blake2b(f'{run} {network}'.encode(), digest_size=10).hexdigest()}"


@contextlib.contextmanager
def alone_in_it() -> Iterator[str]:
    """This user's folder, made if need be, checked, and for a moment this process's alone to change."""
    folder = user_folder()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{folder}, for sockets of this machine, cannot be used: {error.strerror}") from None
    try:
        status = os.fstat(file)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"{folder}, for sockets of this machine, must belong to user {os.getuid()} and be closed to others "
                f"(mode 0700): it belongs to {status.st_uid} and has {stat.S_IMODE(status.st_mode):04o}"
            )
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(file)


def is_listened_at(path: str) -> bool:
    """Whether a process listens at a local socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # more knock there than are let in: somebody is there
            return True
        except OSError:
            return False
    return True


@contextlib.contextmanager
def place_for(path: str) -> Iterator[None]:
    """A local socket is about to be made here: its folder is there, and nobody listens, or FileExistsError."""
    with alone_in_it() as folder:
        if path.startswith(f"{folder}/"):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if is_listened_at(path):
            raise FileExistsError(path)
        yield


def leave(run: str) -> None:
    """Take away the folder of a run if its last socket has gone."""
    with contextlib.suppress(UsageError, OSError), alone_in_it():
        os.rmdir(run_folder(run))


def tidy() -> None:
    """Take away the sockets that nobody listens at any more, of all runs of this user."""
    with contextlib.suppress(UsageError), alone_in_it() as folder:
        for run in os.scandir(folder):
            if not run.is_dir(follow_symlinks=False) or run.name.startswith(SAID):
                continue
            with contextlib.suppress(OSError):
                paths = [entry.path for entry in os.scandir(run.path)]
                if not any(is_listened_at(path) for path in paths):
                    for path in paths:
                        os.unlink(path)
                    os.rmdir(run.path)
