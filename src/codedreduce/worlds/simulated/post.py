"""Messages under way: over the network, through the hands of nodes that tamper with them, onto shared cores."""

from __future__ import annotations

import random
from collections import Counter

from codedreduce.errors import CodedReduceError, WireError
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Drained, Received, Transmit
from codedreduce.protocol.messages import AnyMessage
from codedreduce.protocol.wire import decode, encode
from codedreduce.vectors import Vector
from codedreduce.worlds.journal import Interval
from codedreduce.worlds.simulated.network import Cores, Network
from codedreduce.worlds.simulated.nodes import Nodes


class Tampering:
    """Which nodes send their messages twice, late or damaged."""

    def __init__(self, settings: Settings, *, latency: float, seed: int) -> None:
        self._settings = settings
        self._latency = latency
        self._random = random.Random(seed)
        self._kinds: dict[int, Counter[str]] = {}

    def begin(self, node: int, kind: str) -> None:
        """A node's messages are no longer what they should be."""
        self._kinds.setdefault(node, Counter())[kind] += 1

    def end(self, node: int, kind: str) -> None:
        """One fault of that kind is over."""
        self._kinds[node][kind] -= 1
        if not +self._kinds[node]:
            del self._kinds[node]

    def __contains__(self, node: int) -> bool:
        return node in self._kinds

    def copies(self, sender: int, message: AnyMessage, data: Vector | None) -> tuple[float, ...]:
        """How much later than it should each copy of a message arrives; none, if it is damaged."""
        kinds = self._kinds[sender]
        if kinds["corrupt"] and self._random.random() < 0.3:
            self._damage(message, data)
            return ()
        extra = self._random.random() * 50 * self._latency if kinds["reorder"] else 0.0
        return (extra, extra / 2) if kinds["duplicate"] else (extra,)

    def _damage(self, message: AnyMessage, data: Vector | None) -> None:
        """Change one bit on the wire; whoever reads it must notice."""
        header = bytearray(encode(message))
        header[self._random.randrange(len(header))] ^= 1 << self._random.randrange(8)
        try:
            decode(bytes(header), 0 if data is None else data.nbytes, self._settings.chunk_bytes)
        except WireError:
            return
        raise CodedReduceError(f"a damaged {type(message).__name__} was taken for a good one")


class Post:
    """Carries messages from node to node."""

    def __init__(self, nodes: Nodes, network: Network, tampering: Tampering, cores: Cores | None) -> None:
        self._nodes = nodes
        self._kernel = nodes.kernel
        self._network = network
        self._tampering = tampering
        self._cores = cores

    def transmit(self, sender: int, action: Transmit) -> None:
        """Send a message over the connection that the nodes have now."""
        receiver, message, data = action.to, action.message, action.data
        connection = self._nodes.connection(sender, receiver)
        if sender in self._tampering:
            self._tamper(sender, action, connection)
        elif data is None:
            self._network.small(
                sender, receiver, self._deliver, sender, receiver, message, None, action.marked, connection
            )
        else:
            begin, end = self._network.chunk(
                sender, receiver, data.nbytes, self._deliver, sender, receiver, message, data, action.marked, connection
            )
            if message.round in self._nodes.recorder.timeline:
                self._nodes.recorder.add(Interval(message.round, sender, "send", begin, end))

    def _tamper(self, sender: int, action: Transmit, connection: tuple[int, int]) -> None:
        receiver, data, marked = action.to, action.data, action.marked
        copies = self._tampering.copies(sender, action.message, data)
        if not copies and marked:
            self._kernel.at(self._kernel.now, self._nodes.dispatch, sender, Drained(peer=receiver))
        for extra in copies:
            self._network.chunk(
                sender, receiver, 0 if data is None else data.nbytes, self._later, extra,
                (sender, receiver, action.message, data, marked, connection),
            )  # fmt: skip
            marked = False

    def _later(self, extra: float, letter: tuple[int, int, AnyMessage, Vector | None, bool, tuple[int, int]]) -> None:
        self._kernel.at(self._kernel.now + extra, self._deliver, *letter)

    def _deliver(
        self,
        sender: int,
        receiver: int,
        message: AnyMessage,
        data: Vector | None,
        marked: bool,
        connection: tuple[int, int],
    ) -> None:
        if not self._nodes.carries(connection, sender, receiver):
            return
        event = Received(sender=sender, message=message, data=data)
        acknowledge = sender if marked else -1
        if self._cores is None:
            self._nodes.dispatch(receiver, event, acknowledge)
        else:
            handled = self._cores.handled_at(self._kernel.now)
            self._kernel.at(handled, self._nodes.dispatch, receiver, event, acknowledge)
