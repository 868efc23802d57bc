"""How a rank comes in, and back: it says hello to whoever leads until it is welcomed."""

from __future__ import annotations

from collections.abc import Callable

from codedreduce.protocol.core.events import AnyAction, EveryoneIn, SetTimer, Transmit
from codedreduce.protocol.core.membership import run_name
from codedreduce.protocol.core.messages import Have, Hello, Welcome
from codedreduce.protocol.core.rank_position import Place
from codedreduce.protocol.core.rank_table import ENDING, JOINING, READY, RENEWING, RESTING, WORKING
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.catch_up import Behind
from codedreduce.protocol.rank.worker import Doing
from codedreduce.schemes import StripedPlan

#: A timer: a rank has not been welcomed.
GREETING = "greeting"

#: Seconds after which a rank that has not been welcomed says hello again, for the first time.
HELLO_AGAIN = 2.0


class Joining:
    """A rank that another leads, before it is in, and over every new connection.

    `adopt` makes a generation its own; `is_in` is told that it was welcomed, and whether it is new.
    """

    def __init__(
        self, place: Place, plan: StripedPlan, settings: Settings, doing: Doing, behind: Behind,
        adopt: Callable[[int], None], is_in: Callable[[Welcome, bool, list[AnyAction]], None],
    ) -> None:  # fmt: skip
        self._place = place
        self._run = run_name(plan, settings)
        self._doing = doing
        self._behind = behind
        self._adopt = adopt
        self._is_in = is_in
        self._process = settings.process
        self._hellos = 0  # that were not answered
        self._to = place.coordinator

    def say_hello(self, now: float, actions: list[AnyAction], to: int | None = None) -> None:
        """Ask to be let in, with the plan that this rank has, by its coordinator or by another that is said to lead."""
        place = self._place
        self._to = place.coordinator if to is None else to
        is_in = place.state is not JOINING
        hello = Hello(
            generation=place.generation, round=place.round, plan=self._run, is_in=is_in, process=self._process
        )  # fmt: skip
        actions.append(Transmit(to=self._to, message=hello))
        self._hellos += 1
        actions.append(SetTimer(name=GREETING, at=now + HELLO_AGAIN * self._hellos))

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Say hello again, if nobody answered."""
        if self._hellos and self._to != self._place.node:
            self.say_hello(now, actions, self._to)

    def has_lead(self) -> None:
        """This rank leads: nobody has to welcome it."""
        self._hellos = 0

    def on_welcome(self, message: Welcome, sender: int, now: float, actions: list[AnyAction]) -> None:
        """This rank is in, or back; what it said last may not have been heard.

        The one that leads a later generation welcomes it, too. An earlier one is past.
        """
        place = self._place
        if message.generation < place.generation or place.leader_of(message.generation) != sender:
            return
        self._adopt(message.generation)
        place.is_over(message.round)
        self._hellos = 0
        if place.state is not JOINING:
            self._is_in(message, False, actions)
        if place.state is JOINING:
            place.become(RESTING)
            if message.round > place.round:  # it comes late, or the others went on from a checkpoint
                self._behind.begin_after(message.round)
            self._is_in(message, True, actions)
            actions.append(EveryoneIn())
        elif place.state is ENDING:
            actions.append(Transmit(to=sender, message=Have(generation=place.generation, round=place.round)))
        elif place.state is RESTING and place.through > message.round:  # which nobody may be able to compute any more
            self._doing.tell_ahead(actions)
        elif place.state in (READY, WORKING) and place.round <= message.round:
            place.become(WORKING)
            self._behind.was_overtaken(now, actions)
        elif place.state is WORKING and place.is_on:
            self._doing.repeat_done(actions)
            self._doing.tell_status(actions)
        elif place.state is READY and place.round == place.first:
            self._doing.tell_again(actions)
        elif place.state is RENEWING and not self._behind.is_taking:  # nobody may have heard that it asked
            self._behind.renew(now, actions)
