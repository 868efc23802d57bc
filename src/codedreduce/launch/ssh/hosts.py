"""Lists of hosts as users write them: a:4,b:4 for four processes on each, or a file with one host per line."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from codedreduce.errors import UsageError

_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class SshHost:
    """A host by its name for ssh, and the number of processes it takes."""

    name: str
    slots: int = 1

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.name):
            raise UsageError(f"a host is written as NAME, NAME:SLOTS or USER@NAME:SLOTS; got {self.name!r}")
        if self.slots < 1:
            raise UsageError(f"a host takes at least one process, got {self.slots} for {self.name}")

    @classmethod
    def parse(cls, text: str) -> SshHost:
        """One host; a hostfile may use `slots=4`, as those of mpiexec do.

        >>> SshHost.parse("ann@gpu1:4"), SshHost.parse("gpu2 slots=2"), SshHost.parse("gpu3")
        (SshHost(name='ann@gpu1', slots=4), SshHost(name='gpu2', slots=2), SshHost(name='gpu3', slots=1))
        """
        match = re.fullmatch(r"(\S+?)(?::(\d+)|\s+slots=(\d+))?", text.strip())
        if match is None:
            raise UsageError(f"a host is written as NAME, NAME:SLOTS or USER@NAME:SLOTS; got {text.strip()!r}")
        return cls(match[1], int(match[2] or match[3] or 1))


def parse_hosts(text: str) -> tuple[SshHost, ...]:
    """All hosts of a list or of a file; the slots of a host that occurs twice add up.

    >>> parse_hosts("a:4,b,a")
    (SshHost(name='a', slots=5), SshHost(name='b', slots=1))
    """
    found: dict[str, int] = {}
    for one in _lines_of(text) if os.path.isfile(text) else text.split(","):
        host = SshHost.parse(one)
        found[host.name] = found.get(host.name, 0) + host.slots
    if not found:
        raise UsageError(f"{text!r} names no host; write --hosts a:4,b:4, or a file with one host per line")
    return tuple(SshHost(name, slots) for name, slots in found.items())


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"the hosts in {path!r} cannot be read: {why}") from None
    return [line for line in lines if line]


def laid_out(hosts: tuple[SshHost, ...], processes: int) -> tuple[int, ...]:
    """The index of the host of each rank: the first host takes the first ranks.

    >>> laid_out((SshHost("a", 2), SshHost("b", 2)), 3)
    (0, 0, 1)
    """
    slots = sum(host.slots for host in hosts)
    if processes > slots:
        raise UsageError(
            f"the run has {processes} processes, and the hosts take {slots}: set fewer with -n, or more with "
            f"--hosts {hosts[0].name}:{hosts[0].slots + processes - slots},..."
        )
    return tuple(index for index, host in enumerate(hosts) for _ in range(host.slots))[:processes]
