"""Enter a network namespace, permanently or for a while, and list its processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator

from codedreduce.errors import LabFailed
from codedreduce.process.processes import state_of

#: The folder in which `ip netns` has a file for every namespace.
FOLDER = "/run/netns"

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: str) -> None:
    """Move the calling thread, and all threads and processes that it starts later, into a namespace."""
    try:
        file = os.open(f"{FOLDER}/{namespace}", os.O_RDONLY)
    except OSError as error:
        raise LabFailed(f"there is no namespace {namespace}: {error.strerror}") from None
    try:
        if _libc.setns(file, _CLONE_NEWNET):
            raise LabFailed(f"cannot enter the namespace {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(file)


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move the calling thread into a namespace for a while; sockets that it opens stay there."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(namespace)
        yield
    finally:
        if _libc.setns(home, _CLONE_NEWNET):
            raise LabFailed(f"cannot leave the namespace {namespace}: {os.strerror(ctypes.get_errno())}")
        os.close(home)


def processes_in(namespace: str) -> list[int]:
    """The processes with their main thread in a namespace."""
    try:
        wanted = os.stat(f"{FOLDER}/{namespace}").st_ino
    except FileNotFoundError:
        return []
    return processes_by_namespace().get(wanted, [])


def processes_by_namespace() -> dict[int, list[int]]:
    """All processes of this host by the inode of their network namespace."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.setdefault(os.stat(f"/proc/{name}/ns/net").st_ino, []).append(int(name))
    return found


def wait_until_gone(processes: list[int]) -> None:
    """Wait until processes that got a signal to end have ended, at most 5 s."""
    deadline = time.monotonic() + 5.0
    while any(is_running(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Whether another process is alive."""
    return state_of(process) not in ("", "Z", "X") and process != os.getpid()
