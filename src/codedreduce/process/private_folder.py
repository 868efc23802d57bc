"""The folder of a user's local sockets, which no other user may enter.

It has a folder for the sockets of each run. A process that was killed leaves its socket behind; a process that begins
or ends a run removes the sockets without a listener.
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

#: Not from TMPDIR: all processes of a run must use the same folder.
PARENT = "/tmp"

#: Prefix of folders, beside those of runs, that record which errors were printed (error_lines.py).
SAID = "said-"


def user_folder() -> str:
    """This user's folder."""
    return f"{PARENT}/codedreduce-{os.getuid()}"


def run_folder(run: str) -> str:
    """The folder of the sockets of a run; it differs between network namespaces."""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        network = ""
    return f"{user_folder()}/{hashlib.blake2b(f'{run} {network}'.encode(), digest_size=10).hexdigest()}"


@contextlib.contextmanager
def alone_in_it() -> Iterator[str]:
    """This user's folder, created if necessary, checked, and locked for this process."""
    folder = user_folder()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{folder}, for local sockets, cannot be used: {error.strerror}") from None
    try:
        status = os.fstat(file)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"{folder}, for local sockets, must belong to user {os.getuid()} and be closed to others "
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
        except BlockingIOError:  # the queue of connections is full, so there is a listener
            return True
        except OSError:
            return False
    return True


@contextlib.contextmanager
def place_for(path: str) -> Iterator[None]:
    """Prepare to create a local socket: create its folder; FileExistsError if a process listens at `path`."""
    with alone_in_it() as folder:
        if path.startswith(f"{folder}/"):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if is_listened_at(path):
            raise FileExistsError(path)
        yield


def leave(run: str) -> None:
    """Remove the folder of a run if it has no sockets left."""
    with contextlib.suppress(UsageError, OSError), alone_in_it():
        os.rmdir(run_folder(run))


def tidy() -> None:
    """Remove the sockets without a listener, of all runs of this user."""
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
