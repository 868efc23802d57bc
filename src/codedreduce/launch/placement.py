"""Where a launcher places the processes of a run: on this host, on a lab's nodes, on other hosts.

A placement gives the address of each rank. A `Starter` starts the processes there, signals them and reports their end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from codedreduce.process.addresses import free_port
from codedreduce.process.processes import Processes
from codedreduce.process.telling import Word
from codedreduce.run.site import Site, port_at


class Starter(Protocol):
    """Starts the processes of a run on any host, and ends them however the run ends."""

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> IO[bytes]:
        """Run a command and return its output; a number can be started again once its process has ended."""

    def signal(self, number: int, what: int) -> None:
        """Send a signal to a process, if it exists."""

    def is_stopped(self, number: int) -> bool:
        """Whether a process is paused, so that it cannot end by itself."""

    def is_waiting(self, number: int) -> bool:
        """Whether a process does not exist yet: it waits for a place, or for its host."""

    def take_told(self) -> list[Word]:
        """Reports of processes, apart from their output, since the last call."""

    def newly_ended(self) -> list[tuple[int, int]]:
        """Processes that have ended since the last call, with exit codes; negative: the signal that killed it."""

    def end(self, grace: float) -> None:
        """Give all processes `grace` seconds to end, then kill the rest."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The address of each rank, and the rendezvous port at rank 0 (0: any free port).

    Ranks at one address share a host. `inherits`: processes inherit this process's environment, beside the variables
    that a launcher sets.
    """

    addresses: tuple[str, ...]
    starter: Callable[[], Starter]
    port: int = 0
    inherits: bool = True

    @classmethod
    def here(cls, count: int) -> Placement:
        """All processes on this host.

        >>> Placement.here(2).names_of(1)
        {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
        """
        return cls(addresses=("127.0.0.1",) * count, starter=Processes)

    @classmethod
    def at(cls, site: Site, count: int) -> Placement:
        """Each process on its own node of a site."""
        addresses = tuple(site.address(rank) for rank in range(count))
        return cls(addresses=addresses, starter=lambda: Processes(site.enter), port=port_at(site))

    @property
    def is_here(self) -> bool:
        """Whether all processes are on this host."""
        return set(self.addresses) == {"127.0.0.1"}

    @property
    def here_alone(self) -> int:
        """Number of processes that share this host and its environment, else 1: other hosts inherit nothing."""
        return len(self.addresses) if self.is_here and self.inherits else 1

    def meets_at(self, port: int) -> dict[str, str]:
        """Variables with the rendezvous address: at `port`, the port of the placement, or a free one."""
        port = port or self.port or free_port()
        said = {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(port)}
        if not self.is_here:
            said["CODEDREDUCE_ALSO_AT"] = ",".join(dict.fromkeys(self.addresses))
        return said

    def names_of(self, rank: int) -> dict[str, str]:
        """Variables about the host of a rank, as torchrun sets them.

        >>> Placement(addresses=("10.0.0.1", "10.0.0.2", "10.0.0.1"), starter=Processes).names_of(2)
        {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
        """
        address = self.addresses[rank]
        return {
            "LOCAL_RANK": str(self.addresses[:rank].count(address)),
            "LOCAL_WORLD_SIZE": str(self.addresses.count(address)),
        }
