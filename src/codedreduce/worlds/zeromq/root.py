"""The root of a run over ZeroMQ: begins rounds, waits for their gradient, listens to what its machine has to tell."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused
from codedreduce.protocol import Root, Settings
from codedreduce.protocol.events import Aggregated, Begin, Finished, Note, Vector
from codedreduce.schemes import Plan
from codedreduce.worlds.zeromq.arena import Arena
from codedreduce.worlds.zeromq.driver import Driver, Outward
from codedreduce.worlds.zeromq.node import Meeting, arena_for, start_root
from codedreduce.worlds.zeromq.rendezvous import Directory

#: Seconds that all workers together have to come up.
START_UP = 120.0

#: Seconds between two looks after the workers.
WATCH_EVERY = 0.05

#: Notes that a person should hear of.
WORTH_SAYING = ("waiting", "approximate", "dead", "left", "refused", "unreadable")

#: Notes kept; a run that makes more says the same again and again.
MOST_NOTES = 1000


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """A worker's result of a round would have come, or came, so long after the round was over."""

    round: int
    node: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What a round gave: the gradient sum, how long it took, who was late, and what is known of late ones by now."""

    round: int
    vector: Vector
    seconds: float
    residual: float = 0.0
    late: tuple[int, ...] = ()
    lateness: tuple[Lateness, ...] = ()


class RootNode:
    """The root's driver and what is needed to talk with it. `watch` is called while waiting, to look after workers."""

    def __init__(
        self,
        meeting: Meeting,
        plan: Plan,
        settings: Settings,
        dtype: np.dtype[np.generic],
        watch: Callable[[], None],
        noted: Callable[[Note], None] | None = None,
    ) -> None:
        self._noted = noted
        self._watched_at = 0.0
        self._meeting = meeting
        self._watch = watch
        self._news: queue.SimpleQueue[Outward] = queue.SimpleQueue()
        self._round = 0
        self.notes: list[Note] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._directory = directory = Directory(self._context, meeting.address, meeting.run, meeting.subject)
        try:
            self._arena: Arena | None = arena_for(meeting, 0, plan, settings, dtype)
        except BaseException:
            directory.socket.close()
            raise
        self._driver: Driver = start_root(
            meeting, plan, settings, dtype, self._arena, self._news.put, directory, self._context
        )

    @property
    def machine(self) -> Root:
        """The root's state machine, to look at."""
        machine = self._driver.machine
        assert isinstance(machine, Root)
        return machine

    def wait_for_all(self, patience: float = START_UP) -> None:
        """Wait until every worker, on every level, is in."""
        deadline = time.monotonic() + patience
        while not self.machine.everyone_is_in:
            self._watch()
            if self._driver.failure is not None:
                raise CodedReduceError(f"the root stopped: {self._driver.failure}")
            if self._directory.refused is not None:
                raise JoinRefused(self._directory.refused)
            if time.monotonic() > deadline:
                missing = sorted(set(self.machine.children) - self.machine.ready)
                raise CodedReduceError(
                    f"workers did not all come up within {patience:g} s; {missing} or some below are missing"
                )
            time.sleep(0.002)

    def aggregate(self, model: Vector) -> RoundResult:
        """One round: the gradient sum of the whole batch under this model."""
        begin = time.monotonic()
        if begin - self._watched_at > WATCH_EVERY:
            self._watched_at = begin
            self._watch()
        self._round += 1
        sent = self._arena.slot(self._round) if self._arena is not None else np.empty_like(model)
        np.copyto(sent, model)
        self._driver.post(Begin(round=self._round, model=sent))
        lateness: list[Lateness] = []
        for news in self._listen():
            if isinstance(news, Note):
                self._remember(news, lateness)
            elif isinstance(news, Aggregated) and news.round == self._round:
                return RoundResult(
                    round=news.round, vector=news.vector, seconds=time.monotonic() - begin, residual=news.residual,
                    late=news.late, lateness=tuple(lateness),
                )  # fmt: skip
            elif isinstance(news, Finished):
                raise CodedReduceError(f"the root stopped: {news.reason}")
        raise AssertionError("unreachable")

    def _remember(self, note: Note, lateness: list[Lateness]) -> None:
        if note.kind == "late" and note.seconds is not None:
            lateness.append(Lateness(round=note.round, node=note.nodes[0], seconds=note.seconds))
        elif len(self.notes) < MOST_NOTES:
            self.notes.append(note)
            if self._noted is not None and note.kind in WORTH_SAYING:
                self._noted(note)

    def _listen(self) -> Iterator[Outward]:
        while True:
            try:
                yield self._news.get(timeout=0.2)
            except queue.Empty:
                self._watch()

    def close(self) -> None:
        """Tell everyone that it is over, and see to it that the words leave before this process may end."""
        self._driver.leave("the run is over")
        if not self._driver.is_alive():
            self._context.term()
        if self._arena is not None:
            self._arena.close()
