"""Message delivery: over the network, with tampering by faulty nodes, onto shared cores."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

from codedreduce.errors import CodedReduceError, WireError
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Drained, Received, Transmit
from codedreduce.protocol.core.messages import AnyMessage, PartChunk, ShareChunk
from codedreduce.protocol.core.wire import decode, encode
from codedreduce.run.journal import Interval
from codedreduce.simulator.network import Cores, Network
from codedreduce.simulator.nodes import Nodes
from codedreduce.simulator.wrong import flipped
from codedreduce.vectors import Vector

#: The part of a node's chunks that is damaged without detection.
DAMAGED = 0.3


class Letter(NamedTuple):
    """A message on its way, over the connection that its nodes had when it was sent."""

    sender: int
    receiver: int
    message: AnyMessage
    data: Vector | None
    marked: bool
    connection: tuple[int, int]

    @property
    def size(self) -> int:
        """Bytes of the chunk it carries."""
        return 0 if self.data is None else self.data.nbytes


class Tampering:
    """The nodes that send their messages twice, late or damaged."""

    def __init__(self, settings: Settings, *, latency: float, seed: int) -> None:
        self._settings = settings
        self._latency = latency
        self._random = random.Random(seed)
        self._flips = random.Random(seed + 1)
        self.kinds: dict[int, Counter[str]] = {}

    def begin(self, node: int, kind: str) -> None:
        """Begin a fault of this kind in a node's messages."""
        self.kinds.setdefault(node, Counter())[kind] += 1

    def end(self, node: int, kind: str) -> None:
        """End one fault of this kind."""
        self.kinds[node][kind] -= 1
        if not +self.kinds[node]:
            del self.kinds[node]

    def copies(self, letter: Letter) -> tuple[float, ...]:
        """The extra delay of each copy of a message; no copy, if it is damaged."""
        kinds = self.kinds[letter.sender]
        if kinds["corrupt"] and self._random.random() < 0.3:
            self._damage(letter)
            return ()
        extra = self._random.random() * 50 * self._latency if kinds["reorder"] else 0.0
        return (extra, extra / 2) if kinds["duplicate"] else (extra,)

    def damaged(self, letter: Letter) -> Letter:
        """Flip one bit of some gradients on their way, without detection: as in memory, or in a switch."""
        if letter.data is None or not isinstance(letter.message, ShareChunk | PartChunk):
            return letter
        if not self.kinds[letter.sender]["damage"] or self._flips.random() > DAMAGED:
            return letter
        return letter._replace(data=flipped(letter.data, self._flips.randrange(1 << 20)))

    def _damage(self, letter: Letter) -> None:
        """Flip one bit on the wire; the receiver must detect it."""
        header = bytearray(encode(letter.message))
        header[self._random.randrange(len(header))] ^= 1 << self._random.randrange(8)
        try:
            decode(bytes(header), letter.size, self._settings.chunk_bytes)
        except WireError:
            return
        raise CodedReduceError(f"a damaged {type(letter.message).__name__} was accepted as valid")


class Post:
    """Carries messages from node to node."""

    def __init__(self, nodes: Nodes, network: Network, tampering: Tampering, cores: Cores | None) -> None:
        self._nodes = nodes
        self._kernel = nodes.kernel
        self._network = network
        self._tampering = tampering
        self._cores = cores

    def transmit(self, sender: int, action: Transmit) -> None:
        """Send a message over the nodes' current connection."""
        receiver, message, data = action.to, action.message, action.data
        if receiver == sender:
            raise AssertionError(f"node {sender} sent itself {type(message).__name__}: it has no connection to itself")
        letter = Letter(sender, receiver, message, data, action.marked, self._nodes.connection(sender, receiver))
        if sender in self._tampering.kinds:
            self._tamper(letter)
        elif data is None:
            self._network.small(sender, receiver, self._deliver, letter)
        else:
            begin, end = self._network.chunk(sender, receiver, data.nbytes, self._deliver, letter)
            if message.round in self._nodes.recorder.timeline:
                self._nodes.recorder.add(Interval(message.round, sender, "send", begin, end))

    def _tamper(self, letter: Letter) -> None:
        copies = self._tampering.copies(letter)
        whole = letter
        letter = self._tampering.damaged(letter)
        if letter is not whole and copies:
            self._nodes.recorder.damaged(letter.message.round, letter.sender, letter.receiver)
        if not copies and letter.marked:
            self._kernel.at(self._kernel.now, self._nodes.dispatch, letter.sender, Drained(peer=letter.receiver))
        for extra in copies:
            self._network.chunk(letter.sender, letter.receiver, letter.size, self._later, extra, letter)
            letter = letter._replace(marked=False)

    def _later(self, extra: float, letter: Letter) -> None:
        self._kernel.at(self._kernel.now + extra, self._deliver, letter)

    def _deliver(self, letter: Letter) -> None:
        sender, receiver, message, data, marked, connection = letter
        if not self._nodes.carries(connection, sender, receiver):
            return
        event = Received(sender=sender, message=message, data=data)
        acknowledge = sender if marked else -1
        if self._cores is None:
            self._nodes.dispatch(receiver, event, acknowledge)
        else:
            handled = self._cores.handled_at(self._kernel.now)
            self._kernel.at(handled, self._nodes.dispatch, receiver, event, acknowledge)
