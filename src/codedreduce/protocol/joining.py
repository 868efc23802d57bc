"""How a rank comes in, and back: it says hello to its coordinator until it is welcomed."""

from __future__ import annotations

from codedreduce.protocol.behind import Behind
from codedreduce.protocol.doing import Doing
from codedreduce.protocol.events import AnyAction, EveryoneIn, SetTimer, Transmit
from codedreduce.protocol.exchange import Exchange
from codedreduce.protocol.membership import run_name
from codedreduce.protocol.messages import Have, Hello, Welcome
from codedreduce.protocol.place import Place
from codedreduce.protocol.rank_table import ENDING, JOINING, RESTING, WORKING
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import StripedPlan

#: A timer: a rank has not been welcomed.
GREETING = "greeting"

#: Seconds after which a rank that has not been welcomed says hello again, for the first time.
HELLO_AGAIN = 2.0


class Joining:
    """A rank other than the first, before it is in, and over every new connection to the first."""

    def __init__(
        self, place: Place, plan: StripedPlan, settings: Settings, exchange: Exchange, doing: Doing, behind: Behind
    ) -> None:
        self._place = place
        self._run = run_name(plan, settings)
        self._exchange = exchange
        self._doing = doing
        self._behind = behind
        self._hellos = 0  # that were not answered

    def say_hello(self, now: float, actions: list[AnyAction]) -> None:
        """Ask to be let in, with the plan that this rank has."""
        hello = Hello(generation=self._place.generation, round=self._place.round, plan=self._run)
        actions.append(Transmit(to=0, message=hello))
        self._hellos += 1
        actions.append(SetTimer(name=GREETING, at=now + HELLO_AGAIN * self._hellos))

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Say hello again, if nobody answered."""
        if self._hellos:
            self.say_hello(now, actions)

    def on_welcome(self, message: Welcome, sender: int, now: float, actions: list[AnyAction]) -> None:
        """This rank is in, or back; what it said last may not have been heard."""
        place = self._place
        place.speak_of(message.generation)
        self._exchange.speak_of(message.generation)
        self._hellos = 0
        if place.state is JOINING:
            place.become(RESTING)
            if message.round > place.round:  # it comes late, or the others went on from a checkpoint
                self._behind.begin_after(message.round)
            actions.append(EveryoneIn())
        elif place.state is ENDING:
            actions.append(Transmit(to=0, message=Have(generation=place.generation, round=place.round)))
        elif place.state is WORKING and place.is_on:
            self._doing.repeat_done(actions)
            self._doing.tell_status(actions)
