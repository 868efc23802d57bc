"""One node of a run over ZeroMQ: sockets, memory, state machine, communicating thread and computing thread."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import numpy as np
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, UsageError
from codedreduce.memory.memory import Memory
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Carrier
from codedreduce.net.keys import Guard
from codedreduce.net.mesh import Mesh
from codedreduce.net.rendezvous.meeting import meet
from codedreduce.net.sockets import Context
from codedreduce.node.computing import Computing, News
from codedreduce.node.driver import Driver
from codedreduce.process.private_folder import leave
from codedreduce.process.telling import What, Word, own_rank, tell
from codedreduce.process.termination import TOLD_TO_END, Asked, Terminated
from codedreduce.protocol import Machine, Rank, Root, TreeWorker, machine_for
from codedreduce.protocol.core.events import (
    Aggregated,
    Begin,
    Ended,
    EveryoneIn,
    Finished,
    Gathered,
    HandOver,
    Leave,
    Note,
    Overtaken,
    Pack,
    Renewed,
    StatePacked,
)
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Run
from codedreduce.run.failures import REFUSE, error_of
from codedreduce.run.injected_delays import DelayInjector, Injection
from codedreduce.run.journal import Interval, Journal
from codedreduce.run.world import Gradient, Outcome, Over, Renewal, Replica, RoundResult
from codedreduce.schemes import RingPlan, StripedPlan
from codedreduce.vectors import Vector

#: The state of a rank without a replica.
NOTHING: Vector = np.zeros(1, dtype=np.uint8)

#: Rounds between two comparisons of the models of all ranks.
COMPARED_EVERY = 64


class Node:
    """Takes part in a run while it is entered: `aggregate` on a node that begins rounds, `serve` on a worker of a tree.

    The first node (0, or 1 on a ring) serves the rendezvous address. `journal` gets the notes of the node; `look` is
    called while it waits, to check other processes. `replica` is the state that a rank updates by itself.
    `is_host`: the other processes end with this one. `step` returns the number of the next round's step, or 0 while a
    script is in the middle of a step: models are then not compared, and a state transfer waits for the next step.
    `memory`: where vectors are stored, if not in host memory.
    """

    def __init__(
        self,
        run: Run,
        number: int,
        *,
        gradient: Gradient | None = None,
        injection: Injection | None = None,
        journal: Journal | None = None,
        record: Callable[[Interval], None] | None = None,
        look: Callable[[], None] | None = None,
        replica: Replica | None = None,
        is_host: bool = False,
        step: Callable[[], int] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._run = run
        self._timing = run.meeting.timing
        self._step = step
        self._owes_since: float | None = None  # since when others wait for a state transfer
        self._memory = memory
        self._is_host = is_host
        self._number = number
        self._replica = replica
        self._gradient = gradient
        self._injector = DelayInjector(injection, number - run.plan.computing.start) if injection is not None else None
        self._journal = journal or Journal()
        self._record = record
        self._look = look
        self._looked_at = 0.0
        self._round = run.settings.after
        self._first = run.settings.after + 1  # the first round
        self._at_once = True
        self._vanishes = False
        self._asked = Asked(run.meeting.grace, self._hand_over)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._at_once = kind is not None and kind is not GeneratorExit and not is_failure(error)
        if is_failure(error):  # for the others this is like a kill of this process
            self._vanishes |= self._hands_over or (self._run.meeting.restarts and isinstance(self.machine, Root))
        what = What.FAILS if isinstance(error, Exception) or is_failure(error) else What.ENDS
        tell(Word(own_rank(), what, step={"round": self._round, "leads": float(self.leads)}))
        self._stack.close()
        if kind is None and self.left_alone is not None:
            raise UsageError(self.left_alone)

    def _start(self, stack: ExitStack) -> None:
        """Listen, meet at the rendezvous, connect, and run the machine; a failure undoes what was begun."""
        run, number = self._run, self._number
        tell(Word(own_rank(), What.TRAINS))
        stack.enter_context(self._asked.listening())
        prepare = getattr(self._gradient, "prepare", None)
        if prepare is not None and number in run.plan.computing:
            prepare(number)
        self._buffers = Buffers(run, number, self._memory)
        stack.callback(self._buffers.close)
        context: Context = zmq.Context()
        self._driver: Driver | None = None
        stack.callback(self._close, context)
        guard: Guard | None = None
        if run.meeting.secret is not None:
            guard = Guard(context, run.meeting.secret, self._timing)
            stack.callback(guard.close)
        carrier = Mesh if isinstance(run.plan, StripedPlan) else Carrier
        transport = carrier(context, number, run.settings, self._buffers, rights_at(number, run.plan), guard)
        met = meet(context, run, transport, self._look or (lambda: None), guard)
        self._computing = Computing(
            number, self._buffers, self._gradient, self._injector, self._record, timing=self._timing,
            reports_failures=not isinstance(run.plan, RingPlan), refuses_nonfinite=run.nonfinite == REFUSE,
        )  # fmt: skip
        machine = machine_for(
            number, run.plan, run.settings, self._buffers.rooms, process=transport.process,
            computes=self._gradient is not None,
        )  # fmt: skip
        self._driver = Driver(
            machine, transport, self._computing.tell, met, timing=self._timing,
            orphaned_after=run.meeting.orphaned_after,
        )  # fmt: skip
        self._driver.start()
        stack.callback(self._leave_run, self._driver)
        if isinstance(machine, TreeWorker):
            self._is_in()

    def _is_in(self) -> None:
        """This node is a member from now on."""
        self._asked.is_in = True
        tell(Word(own_rank(), What.ADMITTED))

    @property
    def _hands_over(self) -> bool:
        """Whether other ranks could continue without this node."""
        plan = self._run.plan
        return isinstance(plan, StripedPlan) and plan.workers > 1 and not self._is_host

    def _hand_over(self) -> None:
        """Leave on request: a worker of a tree leaves after the round, a rank once others have taken over its work."""
        reason = "it was asked to leave"
        if isinstance(self.machine, TreeWorker):
            tell(Word(self._number, What.LEAVES))
            self.leave_soon(reason)
        elif self._hands_over:
            self._talking.post(HandOver(reason=reason))

    def _leave(self, *, goes_on: bool) -> None:
        """End this process after a request to leave; `goes_on`: the run continues."""
        if goes_on:
            tell(Word(self._number, What.LEAVES))
        self._vanishes = True  # the ranks concerned have been informed
        raise Terminated(0 if goes_on else TOLD_TO_END)

    def _leave_run(self, driver: Driver) -> None:
        """Announce the end to all."""
        stays = isinstance(driver.machine, Rank) and not self._at_once and not self._vanishes
        if stays and driver.is_alive():
            self._stay_while_needed()
        if self._vanishes:
            driver.vanish()
        else:
            driver.leave("the run is over")

    def _close(self, context: Context) -> None:
        """Wait until the messages have left before this process may end."""
        if self._driver is None:
            context.destroy(linger=0)
        elif not self._driver.is_alive():
            context.term()
            leave(self._run.meeting.run)

    def _stay_while_needed(self) -> None:
        """On a rank that has finished: serve sums and its state to others, until the leader announces the end."""
        self._talking.post(Leave(reason="the run is over"))
        for news in self._computing.news(self._talking.post, self._look):
            if isinstance(news, Finished):
                return
            if isinstance(news, Pack):
                self._pack(after=self._round)

    @property
    def _talking(self) -> Driver:
        assert self._driver is not None, "the node has not been entered"
        return self._driver

    @property
    def machine(self) -> Machine:
        """The node's state machine, read-only."""
        return self._talking.machine

    @property
    def leads(self) -> bool:
        """Whether this node leads the run; with ranks the leader may change."""
        machine = self.machine
        return machine.leads if isinstance(machine, Rank) else self._number == self._run.plan.first_node

    @property
    def reached(self) -> int:
        """Number of reachable ranks as far as known, including itself; over a tree always 1."""
        machine = self.machine
        return machine.reached if isinstance(machine, Rank) else 1

    @property
    def generation(self) -> int:
        """The generation of the plan, as this node knows it: it determines which rank leads."""
        return self.machine.generation if isinstance(self.machine, Rank) else 0

    @property
    def next_round(self) -> int:
        """The round that the next `aggregate` begins."""
        return self._round + 1

    @property
    def compares_next(self) -> bool:
        """Whether the model of the next `aggregate` is compared with those of others."""
        return self._compares(self._round + 1)

    def _compares(self, round_: int) -> bool:
        step = round_ if self._step is None else self._step()
        return step > 0 and (round_ <= self._first + 1 or is_compared(step))

    @property
    def left_alone(self) -> str | None:
        """Why this rank must not have left when it did, or None."""
        machine = self._driver.machine if self._driver is not None else None
        return machine.left_alone if isinstance(machine, Rank) else None

    def wait_for_all(self) -> None:
        """Wait until every node of a tree or of stripes has joined; a rank other than the first waits for itself."""
        within = self._run.meeting.all_within
        deadline = time.monotonic() + within
        first = self.machine
        assert isinstance(first, Root | Rank)
        refused: dict[int, str] = {}  # ranks with another plan, and the difference
        right_by = float("inf")  # deadline for their correction, if only they are missing

        def come_right(*, are_awaited: bool) -> None:
            nonlocal right_by
            wrong = refused.keys() & set(first.lacking()) if refused else set()
            right_by = (
                min(right_by, time.monotonic() + self._timing.correction_timeout)
                if wrong and are_awaited
                else float("inf")
            )
            if time.monotonic() > right_by:
                raise JoinRefused(refused[min(wrong)])

        def look() -> None:
            if self._look is not None:
                self._look()
            come_right(are_awaited=bool(refused) and refused.keys() >= set(first.lacking()))
            if time.monotonic() > deadline:
                missing = first.lacking()
                raise CodedReduceError(
                    f"not all ranks joined within {within:g} s: {missing}, or ranks below them in the tree, are missing"
                )

        for news in self._computing.news(self._talking.post, look):
            if isinstance(news, EveryoneIn):
                while refused.keys() & set(first.lacking()):  # enough have joined, but the user should correct these
                    come_right(are_awaited=True)
                    time.sleep(self._timing.process_check)
                self._round = max(self._round, first.round)  # the others may have begun after a checkpoint
                self._first = self._round + 1
                self._is_in()
                return
            if isinstance(news, Pack):  # some need the state before all have joined
                self._pack(after=self._round)
            self._hear(news)
            if isinstance(news, Note) and news.kind == "refused":
                refused[news.nodes[0]] = news.reason

    def aggregate(self, model: Vector) -> Outcome:
        """One round: the gradient sum of the whole batch under this model."""
        begin = time.monotonic()
        if self._asked.to_leave and not self._hands_over and self._is_between_steps:
            self._leave(goes_on=False)
        if self._look is not None and begin - self._looked_at > self._timing.process_check:
            self._looked_at = begin
            self._look()
        self._round += 1
        digest = None
        if isinstance(self.machine, Root):  # the workers read it from shared memory
            sent = self._buffers.room(self._round)
            sent[:] = model
            model = sent
        elif isinstance(self.machine, Rank) and self._compares(self._round):
            digest = digest_of(model)
        self._talking.post_begin(Begin(round=self._round, model=model, digest=digest))
        if self._owes_since is not None and self._is_between_steps:
            self._pack(after=self._round - 1)
        look = self._look if self._is_between_steps else self._look_and_give
        for news in self._computing.news(self._talking.post, look):
            if isinstance(news, Aggregated) and news.round == self._round:
                return RoundResult(
                    round=news.round, vector=news.vector, seconds=time.monotonic() - begin, residual=news.residual,
                    late=news.late,
                )  # fmt: skip
            if isinstance(news, Gathered) and news.round == self._round:
                vector = self._buffers.take(news)
                if vector is None:  # this process was paused for some rounds: it continues with another rank's state
                    self._talking.post(Overtaken(round=news.round))
                    return self.aggregate(model)
                return RoundResult(
                    round=news.round, vector=vector, seconds=time.monotonic() - begin, late=news.late
                )  # fmt: skip
            found = self._beside_a_sum(news)
            if found is not None:
                return found
            self._hear(news)
        raise AssertionError("news does not end")

    def _beside_a_sum(self, news: News) -> Renewal | Over | None:
        """Other results of a round at a rank: another rank's state, or the end of the run."""
        if isinstance(news, Renewed):
            if self._replica is not None and news.state is not None:
                self._replica.unpack(news.state)
            self._round = news.round
            return Renewal(news.round)
        if isinstance(news, Pack):
            if self._is_between_steps:
                self._pack(after=self._round - 1)
            else:
                self._owes_since = time.monotonic()
        elif isinstance(news, Ended):
            self._round = news.round
            return Over(news.round)
        elif isinstance(news, Finished) and isinstance(self.machine, Rank):
            if self.machine.has_handed_over is not None:
                self._leave(goes_on=self.machine.has_handed_over)
            end = self.machine.ended_after
            if end is not None and end < self._round:
                return Over(end)
        return None

    @property
    def _is_between_steps(self) -> bool:
        return self._step is None or self._step() > 0

    def _look_and_give(self) -> None:
        """Give a requested state after a timeout: this rank may wait for the very rank that waits for the state."""
        if self._look is not None:
            self._look()
        if self._owes_since is not None and time.monotonic() - self._owes_since > self._timing.state_grace:
            self._pack(after=self._round - 1)

    def drop(self) -> None:
        """Between two rounds: the script cannot use the last sum, and continues with another rank's state."""
        self._talking.post(Overtaken(round=self._round))

    def _pack(self, after: int) -> None:
        """Pass the state of this rank after a round to the machine."""
        self._owes_since = None
        state = self._replica.pack() if self._replica is not None else NOTHING
        self._talking.post(StatePacked(round=after, state=state, digest=digest_of(state)))

    def _hear(self, news: News) -> None:
        if isinstance(news, Note):
            self._journal.note(time.monotonic(), self._number, news)
        elif isinstance(news, Finished):
            machine = self.machine
            if news.troubles:
                raise error_of(machine.round, news.troubles)
            if isinstance(machine, Rank) and machine.ended_after is not None:
                raise CodedReduceError(
                    f"rank {self._number} was behind, in round {self._round}, when the run ended after round "
                    f"{machine.ended_after} without it: its model is not the final one"
                )
            raise CodedReduceError(f"rank {self._number} stopped: {news.reason}") from self._talking.failure

    def leave_soon(self, reason: str) -> None:
        """Leave once others no longer need this node: a worker of a tree after the round; from any thread."""
        self._talking.post(Leave(reason=reason))

    def serve(self) -> Finished:
        """On a worker of a tree: execute orders until the run is over, or SIGTERM asks it to leave."""
        driver = self._talking
        for news in self._computing.news(driver.post):
            if isinstance(news, Finished):
                finished = news
                break
            if isinstance(news, Note):
                self._journal.note(time.monotonic(), self._number, news)
        driver.join(timeout=self._timing.exit_timeout)
        if driver.failure is not None:
            raise driver.failure
        if isinstance(driver.machine, TreeWorker) and driver.machine.refused is not None:
            raise JoinRefused(finished.reason)
        return finished


def is_failure(error: BaseException | None) -> bool:
    """Whether an error comes from the script itself: the others then continue as after a kill.

    Errors of codedreduce are raised on all nodes, or end the run. An interrupt or an exit of the script ends the run.

    >>> [is_failure(error) for error in (ValueError("no"), SystemExit(3), SystemExit(0), KeyboardInterrupt(), None)]
    [True, True, False, False, False]
    """
    if isinstance(error, SystemExit):
        return not isinstance(error, Terminated) and error.code not in (None, 0)
    return isinstance(error, Exception) and not isinstance(error, CodedReduceError)


def is_compared(round_: int) -> bool:
    """Whether ranks compare their models before a round: before the first two, and every 64th.

    >>> [round_ for round_ in range(1, 200) if is_compared(round_)]
    [1, 2, 64, 128, 192]
    """
    return round_ <= 2 or round_ % COMPARED_EVERY == 0


def digest_of(model: Vector) -> str:
    """16 bytes that are equal only for equal models."""
    return hashlib.blake2b(model.view(np.uint8).data, digest_size=16).hexdigest()


@contextmanager
def root_of(
    run: Run, journal: Journal, gradient: Gradient | None = None, step: Callable[[], int] | None = None
) -> Iterator[Node]:
    """The root of a run, once enough workers of a launcher have joined.

    With a gradient it can do their work if more are missing than the plan tolerates.
    """
    gradient = gradient if run.settings.wire is None else None  # the root has the model before rounding
    with Node(run, run.plan.first_node, gradient=gradient, journal=journal, step=step) as node:
        node.wait_for_all()
        yield node
