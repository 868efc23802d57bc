"""Messages between neighbours of a tree or ring: the parent binds, children connect, with one connection for each
plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Carrier, Endpoints, PeerLink
from codedreduce.net.keys import Guard
from codedreduce.net.sessions import PLANES
from codedreduce.net.sockets import Context, Socket, bound, connecting
from codedreduce.protocol import Settings
from codedreduce.protocol.rights import Rights
from codedreduce.run.quorum import Gathering


class Transport(Carrier):
    """The sockets of one node of a tree or ring: two that its children connect to, and two connected to its parent.

    In a ring of two the next node is also the previous one: there is a link each way. A peer that connects to the lower
    sockets is a child, whatever its name.
    """

    def __init__(
        self, context: Context, node: int, settings: Settings, buffers: Buffers, rights: Rights,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, node, settings, buffers, rights, guard)
        self._down: list[Socket] = []
        self._up: list[Socket] = []
        self._parent: PeerLink | None = None
        self._children: dict[int, PeerLink] = {}

    @property
    def needs(self) -> int | None:
        """The parent, or the next node in the ring; None for a root."""
        return self._parent.peer if self._parent is not None else None

    def listen(self, where: str | Endpoints) -> Endpoints:
        """Bind for children: at any free port of a host, at a name on this host, or exactly there."""
        found = []
        for plane, address in enumerate(self._addresses(where).planes):
            limits, keys = self._limits[plane], self._guard
            socket, monitor, listens_at = bound(
                self._context, address, f"rank {self.node}", limits, keys, hands_over=not self._own_key
            )
            self._down.append(socket)
            self._listens(socket, monitor, plane, listens_at)
            found.append(listens_at)
        self._children = {child: self._link(child, kinds) for child, kinds in self._rights.below.items()}
        self._reads(self._down)
        return Endpoints(*found)._replace(key=self._own_key)

    def expect(self, neighbours: Iterable[int]) -> None:
        """Prepare the link to the parent, or to the next node in the ring. A root has none."""
        for parent in neighbours:
            self._parent = self._link(parent, self._rights.above[parent])
            for plane in PLANES:
                socket, monitor = connecting(self._context, self._limits[plane])
                self._up.append(socket)
                self._monitors[monitor] = socket
            self._reads(self._up, self._parent)

    def wait_until_connected(self, within: float, look: Callable[[], None], gathering: Gathering | None = None) -> None:
        """Return at once: messages to the parent wait until it is connected, and children send Hello."""

    def _planes_to(self, peer: int) -> tuple[int, ...]:
        return PLANES if peer == self.needs else ()

    def _link_to(self, peer: int) -> PeerLink:
        if self._parent is not None and peer == self._parent.peer:
            return self._parent
        return self._children[peer]

    def _link_called(self, name: bytes) -> PeerLink | None:
        return self._children.get(int.from_bytes(name, "big")) if len(name) == 4 else None

    def _way(self, link: PeerLink, plane: int) -> tuple[Socket | None, bytes | None]:
        if link is self._parent:
            return self._up[plane], None
        return (self._down[plane], link.called[plane]) if self._down else (None, None)
