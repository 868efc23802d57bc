"""A rank that shall leave while the run goes on: first others take what it does for all.

It tells the one that leads (*leaving*), and goes on as before. From the next round on it is given nothing to compute
and nothing to keep. When it has heard of such a round, and what it kept of the last one is on its way to all, it says
goodbye and goes: nobody waits for it, and nothing is done twice.

One that leads does not begin the next round. It says that it leads no more (*stand*), the others choose another of
them, and it follows that one like any rank that shall leave. It votes, and does not offer to lead itself. One with
whom nobody stays has nobody to hand over to, and goes without a word; so does one that is left without anybody who
leads for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from codedreduce.protocol.doing import Doing
from codedreduce.protocol.electing import Electing
from codedreduce.protocol.events import AnyAction, HandOver, SetTimer
from codedreduce.protocol.exchange import Exchange
from codedreduce.protocol.messages import Leaving
from codedreduce.protocol.office import Office
from codedreduce.protocol.outboxes import Outboxes
from codedreduce.protocol.place import Place
from codedreduce.protocol.rank_table import ENDING, JOINING, LEFT, READY, RESTING, WORKING
from codedreduce.protocol.renewing import Giving

#: A timer: a rank that shall leave looks whether it may; and again so many seconds later at least, and such a part of
#: the time that its round has taken.
HANDING_OVER = "handing over"
LOOK_AGAIN, LONGER = 0.02, 0.1

#: Seconds that it waits for somebody who leads.
WITHOUT_LEADER = 1.0

#: Says goodbye to the one that leads, or nothing to anybody; and has left.
Go = Callable[[str, list[AnyAction]], None]


class HandingOver:
    """Whether a rank shall leave, and whether it may."""

    def __init__(
        self, place: Place, doing: Doing, exchange: Exchange, links: Outboxes, giving: Giving, office: Office,
        electing: Electing, *, say_goodbye: Go, vanish: Go,
    ) -> None:  # fmt: skip
        self._place = place
        self._doing = doing
        self._exchange = exchange
        self._links = links
        self._giving = giving
        self._office = office
        self._electing = electing
        self._say_goodbye = say_goodbye
        self._vanish = vanish
        self._why = ""
        self._told: tuple[int, int] | None = None  # in which generation, and during which round
        self._lost_since: float | None = None  # when it was first seen that nobody leads this rank
        self.goes_on: bool | None = None  # when this rank has left: whether others are there to go on

    def on_hand_over(self, event: HandOver, now: float, actions: list[AnyAction]) -> None:
        """This rank shall leave; one that is not in has nothing to hand over."""
        self._why = event.reason
        if self._place.state is JOINING:
            self.goes_on = True
            self._vanish(self._why, actions)
            return
        self._place.would_leave()
        self._tell(actions)
        self.look_soon(now, actions)

    def look_soon(self, now: float, actions: list[AnyAction]) -> None:
        """Look whether it may go, if it shall: its script has begun a round."""
        if self._place.is_leaving:
            actions.append(SetTimer(name=HANDING_OVER, at=now))

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Go, if this rank shall and may; else look again. While its script is between two rounds nothing is done."""
        place = self._place
        if not place.is_leaving or place.state in (RESTING, ENDING, LEFT):
            return
        self._tell(actions)
        if place.state in (READY, WORKING):
            if self._office.is_held:
                self._hand_over_lead(now, actions)
            elif self._electing.is_lost:
                self._wait_for_leader(now, actions)
            elif self._is_free:
                self.goes_on = True
                self._say_goodbye(self._why, actions)
        if not self._electing.is_lost:
            self._lost_since = None
        if place.state is not LEFT:
            again = max(LOOK_AGAIN, LONGER * (now - place.began_at))
            actions.append(SetTimer(name=HANDING_OVER, at=now + again))

    def _tell(self, actions: list[AnyAction]) -> None:
        """Tell the one that leads; and again in every round, since it may be another, or may not have heard."""
        place = self._place
        now = (place.generation, place.go.round)
        if not self._office.is_held and not self._electing.is_lost and self._told != now:
            self._told = now
            leaving = Leaving(generation=place.generation, round=place.round, reason=self._why[:1000])
            self._office.tell_leader(leaving, actions)

    def _hand_over_lead(self, now: float, actions: list[AnyAction]) -> None:
        """Lead no more, before the next round begins; if nobody stays, go."""
        assert self._office.leading is not None
        if self._place.state is not READY:
            return
        if self._office.leading.staying():
            self._office.leave()
            self._electing.lose(now, actions)
        else:
            self.goes_on = False  # others that are there were told to leave, too
            self._vanish(self._why, actions)

    def _wait_for_leader(self, now: float, actions: list[AnyAction]) -> None:
        """Others choose who leads; not for ever."""
        if self._lost_since is None:
            self._lost_since = now
        elif now - self._lost_since >= WITHOUT_LEADER:
            self.goes_on = True
            self._vanish(self._why, actions)

    @property
    def _is_free(self) -> bool:
        """Whether nobody counts on this rank in the round that is on, and it owes nothing of the one before."""
        place, doing = self._place, self._doing
        is_given_nothing = place.go.generation == place.generation and not place.go.parts
        is_idle = doing.is_idle and not doing.has_something_to_do
        keeps_nothing = not self._exchange.keeps_now
        return is_given_nothing and is_idle and keeps_nothing and self._links.are_empty and not self._giving.held
