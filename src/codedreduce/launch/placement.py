"""Where a launcher places the processes of a run: on this machine, on a lab's nodes, on other machines.

A placement says at which address each rank is; who starts them there, signals them and sees them end is a `Starter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from codedreduce.process.addresses import free_port
from codedreduce.process.processes import Processes
from codedreduce.process.telling import Word
from codedreduce.run.site import Site, meeting_at


class Starter(Protocol):
    """Starts the processes of a run, wherever, and ends them however the run ends."""

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> IO[bytes]:
        """Run a command; what it prints can be read. Again, if the one of that number has ended."""

    def signal(self, number: int, what: int) -> None:
        """Send a process a signal, if it is there."""

    def is_stopped(self, number: int) -> bool:
        """Whether a process is paused: it cannot end by itself."""

    def is_waiting(self, number: int) -> bool:
        """Whether a process is not there yet: it waits for a place, or for its host."""

    def take_told(self) -> list[Word]:
        """What processes have told beside what they print, since last asked."""

    def newly_ended(self) -> list[tuple[int, int]]:
        """Who has ended since last asked, with the exit code; negative: the signal that killed it."""

    def end(self, grace: float) -> None:
        """Give all so many seconds to leave, and end those that have not."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The address of each rank, and the port of rank 0's at which the run meets (0: one that is free).

    Ranks at one address share a machine. `inherits`: processes get this process's environment, and not only what a
    launcher says to them.
    """

    addresses: tuple[str, ...]
    starter: Callable[[], Starter]
    port: int = 0
    inherits: bool = True

    @classmethod
    def here(cls, count: int) -> Placement:
        """All on this machine.

        >>> Placement.here(2).names_of(1)
        {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
        """
        return cls(addresses=("127.0.0.1",) * count, starter=Processes)

    @classmethod
    def at(cls, site: Site, count: int) -> Placement:
        """Each on its node of a site."""
        return cls(
            addresses=(site.host, *(site.address(rank) for rank in range(1, count))),
            starter=lambda: Processes(site.enter), port=meeting_at(site).port,
        )  # fmt: skip

    @property
    def is_here(self) -> bool:
        """Whether all share this machine."""
        return set(self.addresses) == {"127.0.0.1"}

    @property
    def here_alone(self) -> int:
        """How many processes this machine has, as they see it; who shares a machine elsewhere inherits nothing."""
        return len(self.addresses) if self.is_here and self.inherits else 1

    def meets_at(self, port: int) -> dict[str, str]:
        """Where all find each other, at that port or the placement's own."""
        port = port or self.port or free_port()
        said = {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(port)}
        if not self.is_here:
            said["CODEDREDUCE_ALSO_AT"] = ",".join(dict.fromkeys(self.addresses))
        return said

    def names_of(self, rank: int) -> dict[str, str]:
        """What a process is told of the machine it is on, as torchrun does.

        >>> Placement(addresses=("10.0.0.1", "10.0.0.2", "10.0.0.1"), starter=Processes).names_of(2)
        {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
        """
        address = self.addresses[rank]
        return {
            "LOCAL_RANK": str(self.addresses[:rank].count(address)),
            "LOCAL_WORLD_SIZE": str(self.addresses.count(address)),
        }
