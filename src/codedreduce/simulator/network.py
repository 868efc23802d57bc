"""A model of the network: each node has one interface, which carries one chunk at a time each way.

A chunk leaves when the sender's interface has finished those before it. It needs `latency` to cross, and occupies the
receiver's interface for its length. Both lengths overlap if no other chunk is in the way. Small messages travel beside
the chunks and never wait behind them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedreduce.errors import UsageError
from codedreduce.simulator.kernel import Kernel

#: Bytes of a small message on the wire, headers included.
SMALL_BYTES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Bytes per second out of and into a node, and seconds to cross.

    `turn`: bytes of a chunk that are sent before the next chunk has its turn; the rest follows after the chunks that
    wait. ZeroMQ does so: it first fills a buffer of 8 KiB from each connection. 0: a chunk is sent as a whole.

    >>> Link(rate=60e6 / 8, latency=0.0005).rate
    7500000.0
    """

    rate: float = 60e6 / 8
    latency: float = 0.0005
    turn: int = 0

    def __post_init__(self) -> None:
        if self.turn < 0:
            raise UsageError(f"a turn is a number of bytes, or 0 for whole chunks; got {self.turn}")
        if not self.rate > 0:
            raise UsageError(f"a link needs a rate above zero, got {self.rate}")
        if not self.latency >= 0:
            raise UsageError(f"a latency cannot be negative, got {self.latency}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One host for all nodes: its cores, and the seconds that a core is busy with a message or a sample.

    Without it every node has a host of its own, and messages cost only their time on the wire. The core time of samples
    is a part of the worker's specified compute time, unless too many nodes need the cores at once.
    """

    cores: int
    message_seconds: float
    arithmetic_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.cores < 1 or not self.message_seconds >= 0 or not self.arithmetic_seconds >= 0:
            raise UsageError(f"a host needs at least one core, and no time can be negative; got {self}")


class Cores:
    """The cores of a host: each does one thing at a time, first come, first served."""

    def __init__(self, host: Host) -> None:
        self._free = [0.0] * host.cores
        self._host = host

    def handled_at(self, now: float) -> float:
        """When a message that arrives now will have been handled."""
        return self._busy(now, self._host.message_seconds)

    def calculated_at(self, now: float, samples: int) -> float:
        """When the arithmetic of this many samples, begun now, will be done."""
        return self._busy(now, samples * self._host.arithmetic_seconds)

    def _busy(self, now: float, seconds: float) -> float:
        end = max(now, self._free[0]) + seconds
        heapq.heapreplace(self._free, end)
        return end


class Network:
    """The interfaces of all nodes."""

    def __init__(self, kernel: Kernel, nodes: int, link: Link) -> None:
        self._kernel = kernel
        self._latency = link.latency
        self._turn = link.turn
        self._seconds_per_byte = [1.0 / link.rate] * nodes
        self._out_free = [0.0] * nodes
        self._in_free = [0.0] * nodes
        self.messages = 0
        self.bytes_out: npt.NDArray[np.int64] = np.zeros(nodes, dtype=np.int64)
        self.bytes_in: npt.NDArray[np.int64] = np.zeros(nodes, dtype=np.int64)

    def slow_down(self, node: int, factor: float) -> None:
        """Make a node's interface slower by this factor (faster, if below one)."""
        self._seconds_per_byte[node] *= factor

    def small(self, sender: int, receiver: int, deliver: Callable[..., None], *arguments: Any) -> None:
        """Deliver a small message."""
        self.messages += 1
        self.bytes_out[sender] += SMALL_BYTES
        self.bytes_in[receiver] += SMALL_BYTES
        arrival = self._kernel.now + self._latency + SMALL_BYTES * self._seconds_per_byte[sender]
        self._kernel.at(arrival, deliver, *arguments)

    def chunk(
        self, sender: int, receiver: int, size: int, deliver: Callable[..., None], *arguments: Any
    ) -> tuple[float, float]:
        """Deliver a chunk. Return when it begins and ends to leave the sender."""
        self.messages += 1
        size += SMALL_BYTES
        self.bytes_out[sender] += size
        self.bytes_in[receiver] += size
        if 0 < self._turn < size:
            begin, end = self._leave(sender, self._turn)
            self._kernel.at(end, self._send_rest, sender, receiver, size, deliver, arguments)
            return begin, end + (size - self._turn) * self._seconds_per_byte[sender]
        begin, end = self._leave(sender, size)
        self._kernel.at(end + self._latency, self._arrive, receiver, size, deliver, arguments)
        return begin, end

    def _send_rest(
        self, sender: int, receiver: int, size: int, deliver: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        _, end = self._leave(sender, size - self._turn)
        self._kernel.at(end + self._latency, self._arrive, receiver, size, deliver, arguments)

    def _leave(self, sender: int, size: int) -> tuple[float, float]:
        """Occupy the sender's interface, when it is free, for this many bytes."""
        begin = max(self._kernel.now, self._out_free[sender])
        end = begin + size * self._seconds_per_byte[sender]
        self._out_free[sender] = end
        return begin, end

    def _arrive(self, receiver: int, size: int, deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        end = max(self._kernel.now, self._in_free[receiver] + size * self._seconds_per_byte[receiver])
        self._in_free[receiver] = end
        if end == self._kernel.now:
            deliver(*arguments)
        else:
            self._kernel.at(end, deliver, *arguments)

    def busiest_bytes(self) -> int:
        """The most bytes any node sent or received."""
        return int(max(self.bytes_out.max(), self.bytes_in.max()))
