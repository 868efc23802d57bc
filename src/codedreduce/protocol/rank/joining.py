"""How a rank joins a run, or returns to it: it sends hello to the leader until it is welcomed."""

from __future__ import annotations

from collections.abc import Callable

from codedreduce.protocol.core.events import Actions, EveryoneIn, SetTimer, Transmit
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.messages import Have, Hello, Welcome
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, JOINING, READY, RENEWING, RESTING, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.rank.catch_up import CatchUp
from codedreduce.protocol.rank.worker import RankWorker
from codedreduce.schemes import StripedPlan


class Joining:
    """A follower before it is admitted, and over every new connection.

    `adopt` switches this rank to a generation. `is_in` receives the welcome, and whether the rank is new.
    """

    def __init__(
        self, actions: Actions, position: RankPosition, plan: StripedPlan, settings: Settings, worker: RankWorker,
        catch_up: CatchUp, adopt: Callable[[int], None], is_in: Callable[[Welcome, bool], None],
    ) -> None:  # fmt: skip
        self._actions = actions
        self._position = position
        self._run = run_name(plan, settings)
        self._worker = worker
        self._catch_up = catch_up
        self._adopt = adopt
        self._is_in = is_in
        self._process = settings.process
        self._timing = settings.timing
        self._hellos = 0  # hellos without an answer
        self._to = position.leader

    def say_hello(self, now: float, to: int | None = None) -> None:
        """Send hello with this rank's plan, to its leader or to another rank that is reported to lead."""
        position = self._position
        self._to = position.leader if to is None else to
        is_in = position.state is not JOINING
        hello = Hello(
            generation=position.generation, round=position.round, plan=self._run, is_in=is_in, process=self._process
        )  # fmt: skip
        self._actions.append(Transmit(to=self._to, message=hello))
        self._hellos += 1
        self._actions.append(SetTimer(name=Timer.HELLO, at=now + self._timing.hello_retry * self._hellos))

    def look(self, now: float) -> None:
        """Send hello again if there was no answer."""
        if self._hellos and self._to != self._position.node:
            self.say_hello(now, self._to)

    def has_lead(self) -> None:
        """This rank is the leader: it needs no welcome."""
        self._hellos = 0

    def on_welcome(self, message: Welcome, sender: int, now: float) -> None:
        """This rank is admitted, or back. The leader may not have received its last messages, so it repeats them.

        The leader of a later generation sends a welcome, too. A welcome of an earlier generation is ignored.
        """
        position = self._position
        if message.generation < position.generation or position.leader_of(message.generation) != sender:
            return
        self._adopt(message.generation)
        position.is_over(message.round)
        self._hellos = 0
        if position.state is not JOINING:
            self._is_in(message, False)
        if position.state is JOINING:
            position.become(RESTING)
            if message.round > position.round:  # it joins late, or the others continued from a checkpoint
                self._catch_up.begin_after(message.round)
            self._is_in(message, True)
            self._actions.append(EveryoneIn())
        elif position.state is ENDING:
            self._actions.append(
                Transmit(to=sender, message=Have(generation=position.generation, round=position.round))
            )
        elif (
            position.state is RESTING and position.through > message.round
        ):  # perhaps no other rank can compute that round any more
            self._worker.tell_ahead()
        elif position.state in (READY, WORKING) and position.round <= message.round:
            position.become(WORKING)
            self._catch_up.was_overtaken(now)
        elif position.state is WORKING and position.is_on:
            self._worker.repeat_done()
            self._worker.tell_status()
        elif position.state is READY and position.round == position.first:
            self._worker.tell_again()
        elif position.state is RENEWING and not self._catch_up.is_taking:  # its request may be lost
            self._catch_up.renew(now)
