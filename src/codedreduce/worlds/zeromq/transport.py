"""Messages between neighbours of a tree or ring: the parent binds, children connect, on each plane apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping

from codedreduce.protocol import Settings
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.zeromq.carrier import CONTROL, DATA, Arrived, Carrier, Endpoints, Unsent, name_of
from codedreduce.worlds.zeromq.sockets import Context, Socket, bound, connected, connections

#: Seconds a neighbour has to connect its second socket after its first; then it counts as gone.
CONNECTING = 1.0


class Transport(Carrier):
    """The sockets of one node of a tree or ring: two that its children connect to, two connected to its parent."""

    def __init__(self, context: Context, node: int, settings: Settings, buffers: Buffers) -> None:
        super().__init__(context, node, settings, buffers)
        self._down: tuple[Socket, Socket] | None = None
        self._up: tuple[Socket, Socket] | None = None
        self._up_node = -1

    @property
    def needs(self) -> int | None:
        """The parent, or the next in the ring; a root has none."""
        return self._up_node if self._up is not None else None

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind for children, at any free port of a host, at a name of this machine, or exactly there."""
        found = []
        for address in self._addresses(where):
            socket, listens_at = bound(self._context, address, f"node {self.node}")
            self.sockets.append(socket)
            found.append(listens_at)
        self._down = (self.sockets[0], self.sockets[1])
        return Endpoints(*found)

    def connect(self, neighbours: Mapping[int, Endpoints]) -> None:
        """Connect to the parent, or to the next in the ring: to one."""
        ((self._up_node, endpoints),) = neighbours.items()
        control, monitor = connected(self._context, endpoints.control, name_of(self.node), watched=True)
        data, _ = connected(self._context, endpoints.data, name_of(self.node), watched=False)
        assert monitor is not None
        self.monitors.append(monitor)
        self._up = (control, data)
        self.sockets += self._up

    def wait_until_connected(self, within: float, look: Callable[[], None]) -> None:
        """Nothing to wait for: what is sent up waits until the parent is there, and children say hello."""

    def comes_and_goes(self) -> list[tuple[int, bool]]:
        """That the connection to the parent has come (True) or gone (False) since last asked."""
        return [(self._up_node, is_there) for _, is_there in connections(self.monitors)]

    def _way(self, to: int, plane: int) -> tuple[Socket | None, bytes | None]:
        if to == self._up_node and self._up is not None:
            return self._up[plane], None
        return (self._down[plane], name_of(to)) if self._down is not None else (None, None)

    def _gives_up(self, unsent: Unsent) -> bool:
        """A child that does not connect its second socket is gone, whatever else is to be sent to it."""
        if unsent.to not in self.lost and time.monotonic() > unsent.since + CONNECTING:
            self.lost.append(unsent.to)
        return unsent.to in self.lost

    def receive(self, ready: Container[object]) -> Iterator[Arrived]:
        """A message from each socket that has one, small messages first; what cannot be read is skipped."""
        for plane in (CONTROL, DATA):
            for sockets, sender in ((self._down, None), (self._up, self._up_node)):
                if sockets is not None and sockets[plane] in ready:
                    arrived = self._take(sockets[plane], plane, sender)
                    if arrived is not None:
                        yield arrived
