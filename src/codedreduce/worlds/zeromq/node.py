"""Setting up one node of a run: sockets, shared memory, machine and driver."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zmq

from codedreduce._extras import require
from codedreduce.errors import UsageError
from codedreduce.protocol import Settings, machine_for
from codedreduce.schemes import Plan, RingPlan, TreePlan
from codedreduce.worlds.zeromq.arena import Arena
from codedreduce.worlds.zeromq.driver import Driver, Outward
from codedreduce.worlds.zeromq.rendezvous import Directory, Registration, find
from codedreduce.worlds.zeromq.transport import Endpoints, Transport


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where a run meets: its name, the root's address, and whether its nodes share this machine's memory."""

    run: str
    host: str = "127.0.0.1"
    port: int = 0
    same_machine: bool = True
    shared_memory: bool = True
    patience: float = 30.0
    subject: str = ""  # what is trained, in words; all nodes must say the same
    wire: str | None = None  # numbers travel as these, if not as they are: bfloat16

    @property
    def address(self) -> str:
        """Where the root answers: at a port, or without one at a name on this machine."""
        return f"tcp://{self.host}:{self.port}" if self.port else f"ipc://@{self.run}-directory"

    def wire_dtype(self) -> np.dtype[np.generic] | None:
        """What numbers travel as, if not as they are."""
        if self.wire is None:
            return None
        if self.wire != "bfloat16":
            raise UsageError(f"numbers can travel as they are, or as bfloat16; not as {self.wire!r}")
        found: np.dtype[np.generic] = np.dtype(require("ml_dtypes", extra="torch").bfloat16)
        return found

    def listen_at(self) -> str:
        """Where a node listens: a name on this machine, or an address others can reach."""
        if self.same_machine:
            return f"ipc://@{self.run}"
        return f"tcp://{_own_address(self.host, self.port)}"


def _own_address(host: str, port: int) -> str:
    """The address this machine has on the way to another."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect((host, port or 1))
        return str(probe.getsockname()[0])
    finally:
        probe.close()


def free_port() -> int:
    """A port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arena_for(meeting: Meeting, node: int, plan: Plan, settings: Settings, dtype: np.dtype[np.generic]) -> Arena | None:
    """A node's shared memory: room for what may be read while the next is written."""
    if not (meeting.shared_memory and meeting.same_machine) or meeting.wire is not None:
        return None
    stragglers = plan.scheme.stragglers if isinstance(plan, TreePlan) else 0
    slots = 3 if node == 0 else 5 + stragglers  # a group's other shares, the parent's unit, and what may be repeated
    return Arena(meeting.run, node, slots=slots, length=settings.length, dtype=dtype)


def start_root(
    meeting: Meeting, plan: Plan, settings: Settings, dtype: np.dtype[np.generic], arena: Arena | None,
    tell: Callable[[Outward], None], directory: Directory, context: zmq.Context[zmq.Socket[bytes]],
) -> Driver:  # fmt: skip
    """Listen, be found, and run the root's machine."""
    transport = Transport(context, 0, settings, dtype, arena, meeting.wire_dtype())
    directory.add(0, transport.listen(meeting.listen_at()))
    driver = Driver(machine_for(0, plan, settings), transport, tell, directory)
    driver.start()
    return driver


def start_worker(
    meeting: Meeting, node: int, plan: Plan, settings: Settings, dtype: np.dtype[np.generic], arena: Arena | None,
    tell: Callable[[Outward], None], context: zmq.Context[zmq.Socket[bytes]],
) -> Driver:  # fmt: skip
    """Listen if there are children, find the parent, and run the worker's machine."""
    transport = Transport(context, node, settings, dtype, arena, meeting.wire_dtype())
    seeks, listens = _neighbours(plan, node)
    endpoints: Endpoints | None = transport.listen(meeting.listen_at()) if listens else None
    registration = Registration(meeting.run, node, seeks, endpoints, meeting.subject)
    transport.connect(seeks, find(context, meeting.address, registration, meeting.patience))
    driver = Driver(machine_for(node, plan, settings), transport, tell, patience=meeting.patience)
    driver.start()
    return driver


def _neighbours(plan: Plan, node: int) -> tuple[int, bool]:
    """Whom a node connects to, and whether others connect to it."""
    if isinstance(plan, RingPlan):
        return plan.ring.next(node), True
    assert isinstance(plan, TreePlan)
    return plan.tree.parent(node), bool(plan.tree.children(node))
