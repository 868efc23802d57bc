"""The local world: the first node in this process, the others in processes forked from it.

On a site (a lab) each process first moves to the place of its node, and the processes communicate by TCP.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

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
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.injected_delays import Injection
from codedreduce.run.journal import Interval, Journal
from codedreduce.run.site import Site, meeting_at
from codedreduce.run.world import Gradient, Outcome, Replica, RoundResult, World
from codedreduce.schemes import Piece, Plan, RingPlan, StripedPlan, TreePlan
from codedreduce.vectors import Vector


def new_meeting(site: Site | None = None, *, shared_memory: bool = True) -> Meeting:
    """The rendezvous of a run of this process: at a local socket, or on a site."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return meeting_at(site, run) if site is not None else Meeting(run=run, shared_memory=shared_memory)


class LocalCluster:
    """A world of processes on this host. The workers inherit `gradient` as it is.

    On a tree the first node is the root, and the others serve. On a ring and in stripes every node computes and begins
    rounds by itself: the others run `member(world)`, which must begin as many rounds as this process does. `replica` is
    the state of each rank of stripes; each process has its own. With `restart` a killed worker is restarted in its
    initial state, and takes part again from the next round on. A ring has no restarts, since a kill breaks it.
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
        self._due: dict[int, float] = {}  # restart times of killed workers
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
        cls, plan: Plan, gradient: Gradient, settings: Settings, *, shared_memory: bool = True, **options: Any
    ) -> LocalCluster:
        """A cluster for a plan, with its rendezvous at a local socket, and these options of a cluster."""
        meeting = replace(new_meeting(shared_memory=shared_memory), timing=settings.timing)
        run = Run(meeting=meeting, plan=plan, settings=settings)
        return cls(run, gradient, **options)

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
            stack.callback(self._records.read, self.journal)  # records from after the last round
        if not is_tree:
            stack.enter_context(threadpool_limits(1))  # this process computes like the others
        stack.callback(tidy)
        place = None if self._site is None else self._site.enter
        self._processes = Nursery(self._live, (lambda node: place(node - first)) if place else None)
        stack.callback(lambda: self._processes.end(run.meeting.timing.worker_grace if self._has_said_goodbye else 0.0))
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
        self._has_said_goodbye = not is_ring  # on a ring no node announces the end, so there is nothing to wait for
        if not is_ring:
            self._node.wait_for_all()

    def _begin(self, node: int) -> None:
        self._processes.start(node)
        self._began[node] = time.monotonic()

    def _live(self, node: int) -> None:
        """Run another node in its own process."""
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
                signal.pause()  # others may still need messages through this node; the first process ends it

    def _watch(self) -> None:
        """A worker that raised ends the run. A killed worker is late until it is restarted, or for the rest of the run.

        If more are lost than the plan tolerates, the root of a tree does their work; if it cannot, the run ends.
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
            goes_on = isinstance(plan, TreePlan) and can_stand_in(plan)  # the root does the work of lost workers
            if not goes_on and not plan.tolerates(self._dead):
                tolerance = getattr(self.run.plan.scheme, "stragglers", len(self.run.plan.group(node)) - 1)
                raise TooManyStragglers(missing=self._dead, tolerance=tolerance, among="workers of this host")
        for node in [node for node, at in self._due.items() if at <= now]:
            del self._due[node]
            self._begin(node)

    def _pause(self, node: int, lived: float) -> float | None:
        try:
            return self._restarts.pause_after(node, lived)
        except CodedReduceError:  # a restart does not help, but the run may continue without it
            return None

    @property
    def processes(self) -> dict[int, int]:
        """The process id of each node in another process."""
        return self._processes.pids

    def aggregate(self, model: Vector) -> Outcome:
        """One round: the gradient sum of the whole batch under this model.

        In stripes this process may fall behind, too, if it is paused: the others go on, and it gets their state.
        """
        outcome = self._node.aggregate(model)
        if self._records is not None:
            self._records.read(self.journal)
        return outcome

    def sum_of(self, model: Vector) -> RoundResult:
        """One round of which this process must have the sum: the caller cannot continue without it."""
        outcome = self.aggregate(model)
        if not isinstance(outcome, RoundResult):
            raise CodedReduceError(f"this process fell behind: the others finished round {outcome.round} without it")
        return outcome


class _OnOneCore:
    """A gradient for the first process of a tree, computed like those of workers: linear algebra on one core."""

    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient

    def __call__(self, piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> bool | None:
        """Write the gradient sum of a piece into `out`."""
        with threadpool_limits(1):
            return self._gradient(piece, model, round_, out, node)


class _Records:
    """Activities of workers: they write them into a pipe that the first process reads."""

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
        """Called in a worker. A record that does not fit into the pipe is dropped."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, msgspec.json.encode(interval) + b"\n")

    def read(self, journal: Journal) -> None:
        """Called in the first process: pass the records since the last call to the journal."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reading, 1 << 20):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            journal.add(self._decoder.decode(line))
