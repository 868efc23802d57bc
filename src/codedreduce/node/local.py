"""The local world: the first node in this process, the others in processes forked from it.

On a site (a lab) each process moves to its node's place first, and they talk by TCP.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec
from threadpoolctl import threadpool_limits

from codedreduce.errors import CodedReduceError, TooManyStragglers
from codedreduce.node.node import Node
from codedreduce.process.nursery import Nursery
from codedreduce.process.private_folder import tidy
from codedreduce.process.restarts import Restarts, ordinal
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Note
from codedreduce.protocol.tree.standing_in import can_stand_in
from codedreduce.run.agreement import FLOAT32, Dtype, Meeting, Run
from codedreduce.run.injected_delays import Injection
from codedreduce.run.journal import Interval, Journal
from codedreduce.run.site import Site, meeting_at
from codedreduce.run.world import Gradient, Outcome, Replica, RoundResult, World
from codedreduce.schemes import Piece, Plan, RingPlan, StripedPlan, TreePlan
from codedreduce.vectors import Vector

#: Seconds that workers have to leave after they were told that the run is over.
GRACE = 2.0


def new_meeting(site: Site | None = None, *, shared_memory: bool = True) -> Meeting:
    """Where a run of this process's own meets: by name on this machine, or on a site."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return meeting_at(site, run) if site is not None else Meeting(run=run, shared_memory=shared_memory)


class LocalCluster:
    """A world of processes on this machine. `gradient` is inherited by the workers as it is.

    On a tree the first node is the root, and the others serve. On a ring and in stripes all nodes compute and begin
    rounds alike, each for itself: `member(world)` is what the others do, and must begin as many rounds as this process
    does. `replica` is what every rank of stripes has; each process has its own. With `restart` a worker that is killed
    is started again, as it was at first, and takes its place from the next round on; not on a ring, which is broken.
    """

    def __init__(
        self,
        run: Run,
        gradient: Gradient,
        *,
        injection: Injection | None = None,
        journal: Journal | None = None,
        site: Site | None = None,
        member: Callable[[World], object] | None = None,
        replica: Replica | None = None,
        restart: bool = False,
    ) -> None:
        self.run = run
        self._restarts = Restarts(None if restart and not isinstance(run.plan, RingPlan) else 0)
        self._due: dict[int, float] = {}  # when workers that were killed are started again
        self._began: dict[int, float] = {}
        self._replica = replica
        self.journal = journal or Journal()
        self._gradient = gradient
        self._injection = injection
        self._site = site
        self._member = member
        self._stack = contextlib.ExitStack()
        self._dead: set[int] = set()
        self._records: _Records | None = None

    @classmethod
    def of(
        cls, plan: Plan, gradient: Gradient, settings: Settings, *, dtype: Dtype = FLOAT32, shared_memory: bool = True,
        injection: Injection | None = None, journal: Journal | None = None,
        member: Callable[[World], object] | None = None, replica: Replica | None = None, restart: bool = False,
    ) -> LocalCluster:  # fmt: skip
        """A cluster of a plan, by name on this machine."""
        run = Run(meeting=new_meeting(shared_memory=shared_memory), plan=plan, settings=settings, dtype=dtype)
        return cls(
            run, gradient, injection=injection, journal=journal, member=member, replica=replica, restart=restart
        )  # fmt: skip

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        run, first = self.run, self.run.plan.first_node
        is_tree = isinstance(run.plan, TreePlan)
        is_ring = isinstance(run.plan, RingPlan)
        if self.journal.timeline:
            self._records = stack.enter_context(_Records())
            stack.callback(self._records.read, self.journal)  # what was written after the last round
        if not is_tree:
            stack.enter_context(threadpool_limits(1))  # this process computes as the others do
        stack.callback(tidy)
        place = None if self._site is None else self._site.enter
        self._processes = Nursery(self._live, (lambda node: place(node - first)) if place else None)
        stack.callback(lambda: self._processes.end(GRACE if self._has_said_goodbye else 0.0))
        self._has_said_goodbye = False
        for node in run.plan.nodes[1:]:
            self._begin(node)
        self._node = Node(
            run, first, gradient=_OnOneCore(self._gradient) if is_tree else self._gradient,
            injection=None if is_tree else self._injection, journal=self.journal, look=self._watch,
            replica=self._replica, record=self._records.write if not is_tree and self._records else None,
            is_host=True,
        )  # fmt: skip
        with self._site.at(0) if self._site is not None else contextlib.nullcontext():
            stack.enter_context(self._node)
        self._has_said_goodbye = not is_ring  # on a ring there is nobody to tell the others, and nothing to wait for
        if not is_ring:
            self._node.wait_for_all()

    def _begin(self, node: int) -> None:
        self._processes.start(node)
        self._began[node] = time.monotonic()

    def _live(self, node: int) -> None:
        """The life of another node, in its process."""
        record = self._records.write if self._records is not None else None
        with Node(
            self.run, node, gradient=self._gradient, injection=self._injection, record=record, replica=self._replica
        ) as member:  # fmt: skip
            if isinstance(self.run.plan, TreePlan):
                member.serve()
                return
            assert self._member is not None, "all nodes begin rounds"
            if isinstance(self.run.plan, StripedPlan):
                member.wait_for_all()
                self._member(member)
            else:
                self._member(member)
                signal.pause()  # others may still need what passes through here; the first ends it

    def _watch(self) -> None:
        """A worker that raised ends the run; one that was killed is late, which is what coding is for, or for ever.

        Beyond that the root does what nobody is left to do, or if it cannot the run ends.
        """
        self._processes.raise_what_was_raised()
        now = time.monotonic()
        for node, code in self._processes.newly_ended():
            how = f"was killed by signal {-code}" if code < 0 else "left"
            pause = self._pause(node, now - self._began[node]) if code < 0 else None
            if pause is not None:
                self._due[node] = now + pause
                how += f", and is started again, the {ordinal(self._restarts.times(node))} time"
            note = Note(kind="dead", reason=f"worker {node} {how}", round=0, nodes=(node,))
            self.journal.note(now, 0, note)
            if pause is not None:
                continue
            self._dead.add(node)
            plan = self.run.plan
            goes_on = isinstance(plan, TreePlan) and can_stand_in(plan)  # the root does what nobody else can
            if not goes_on and not plan.tolerates(self._dead):
                tolerance = getattr(self.run.plan.scheme, "stragglers", len(self.run.plan.group(node)) - 1)
                raise TooManyStragglers(missing=self._dead, tolerance=tolerance, among="workers of this machine")
        for node in [node for node, at in self._due.items() if at <= now]:
            del self._due[node]
            self._begin(node)

    def _pause(self, node: int, lived: float) -> float | None:
        try:
            return self._restarts.pause_after(node, lived)
        except CodedReduceError:  # it does not help; but the others may do without it
            return None

    @property
    def processes(self) -> dict[int, int]:
        """The process id of each node that is not this process."""
        return self._processes.pids

    def aggregate(self, model: Vector) -> Outcome:
        """One round: the gradient sum of the whole batch under this model.

        In stripes this process, too, can fall behind, if it is stopped: the others go on, and it takes their state.
        """
        outcome = self._node.aggregate(model)
        if self._records is not None:
            self._records.read(self.journal)
        return outcome

    def sum_of(self, model: Vector) -> RoundResult:
        """One round, of which this process must have the sum: nobody can go on without it."""
        outcome = self.aggregate(model)
        if not isinstance(outcome, RoundResult):
            raise CodedReduceError(f"the others went on without this process, and are through round {outcome.round}")
        return outcome


class _OnOneCore:
    """A gradient as workers compute it, in the first process of a tree: linear algebra on one core."""

    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient

    def __call__(self, piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> bool | None:
        """Write the gradient sum of a piece into `out`."""
        with threadpool_limits(1):
            return self._gradient(piece, model, round_, out, node)


class _Records:
    """What workers did, written by them into a pipe that the first process reads."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._unread = b""
        self._decoder = msgspec.json.Decoder(Interval)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reading)
        os.close(self._writing)

    def write(self, interval: Interval) -> None:
        """In a worker. What does not fit in the pipe is left out."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, msgspec.json.encode(interval) + b"\n")

    def read(self, journal: Journal) -> None:
        """In the first process: what has come since."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reading, 1 << 20):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            journal.add(self._decoder.decode(line))
