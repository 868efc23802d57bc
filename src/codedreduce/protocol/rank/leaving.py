"""How a rank leaves a run: when its coordinator has let all be through with the last round, or at once.

A rank that shall leave while the run goes on: first others take what it does for all.

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

from codedreduce.protocol.core.events import AnyAction, Ended, Finished, HandOver, Leave, SetTimer, Transmit
from codedreduce.protocol.core.messages import End, Failure, Go, Goodbye, Have, Leaving, Refuse, Trouble
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, JOINING, LEFT, READY, RESTING, WORKING
from codedreduce.protocol.election.election import Election
from codedreduce.protocol.leader.members import Members, Office
from codedreduce.protocol.rank.catch_up import CatchUp
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.state_transfer import StateGiving
from codedreduce.protocol.rank.worker import RankWorker

#: A timer: a rank that ends has waited long enough for the others.
ENDED = "ended"

#: Seconds that ranks which are behind have to catch up when a run ends; as long again while they do, so often at most.
GRACE = 5.0
GRACES = 12


class Departure:
    """A rank's end. `office`: whether it leads; `go_on` has a rank work on its round, or catch up with it."""

    def __init__(
        self, position: RankPosition, worker: RankWorker, catch_up: CatchUp, office: Office,
        go_on: Callable[[float, list[AnyAction]], None],
    ) -> None:  # fmt: skip
        self._position = position
        self._worker = worker
        self._catch_up = catch_up
        self._office = office
        self._go_on = go_on
        self._why = "the run is over"
        self._graces = 0
        self.refused: str | None = None
        self.left_alone: str | None = None  # why this rank may not leave by itself

    # -- this rank leaves

    def on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        """Leave when the others are through, too; or at once."""
        self._worker.stop("this rank leaves", actions)
        self._why = event.reason
        if event.at_once or self._position.state is JOINING:
            self._say_goodbye(actions)
            return
        end, through = self._position.end, self._position.leave()
        self._drop_all()
        self._object_if_early(end or 0)
        if self._office.is_held:
            self.lead_end(now, actions)
        else:
            have = Have(generation=self._position.generation, round=through)
            self._office.tell_leader(have, actions)

    def lead_end(self, now: float, actions: list[AnyAction]) -> None:
        """On a rank that leads and has left its loop: have the others come to the end, too."""
        assert self._office.leading is not None
        self._tell_all_of_end(self._office.leading, actions)
        self._office.leading.some_catch_up()
        self._graces = 0
        self._wait(now, actions)
        self.leave_if_all_through(actions)

    def _tell_all_of_end(self, leading: Members, actions: list[AnyAction]) -> None:
        leading.tell_all(End(generation=self._position.generation, round=self._position.round), actions)

    def is_left(self, now: float, actions: list[AnyAction]) -> None:
        """Its coordinator is lost: who is through does not wait for another for ever."""
        if self._position.state is ENDING:
            self._wait(now, actions)

    def leave_if_all_through(self, actions: list[AnyAction]) -> None:
        """On a rank that leads: leave, if the others are through."""
        leading = self._office.leading
        if self._position.state is ENDING and leading is not None and leading.all_through:
            self._say_goodbye(actions)

    def on_have(self, message: Have, sender: int, now: float, actions: list[AnyAction]) -> None:
        """To a rank that leads: another is through."""
        assert self._office.lead is not None
        assert self._office.leading is not None
        self._office.leading.through(sender)
        if message.round >= self._position.round:
            self._office.lead.is_ahead(sender, now, actions)
        self.leave_if_all_through(actions)

    def _wait(self, now: float, actions: list[AnyAction]) -> None:
        self._graces += 1
        actions.append(SetTimer(name=ENDED, at=now + max(GRACE, 3 * self._position.round_took)))

    def is_late(self, now: float, actions: list[AnyAction]) -> None:
        """Whoever is not through by now, and has not been heard of, is not waited for."""
        if self._position.state is not ENDING:
            return
        leading = self._office.leading
        if leading is not None and self._graces < GRACES and leading.some_catch_up():
            self._tell_all_of_end(leading, actions)  # it may not have been heard
            self._wait(now, actions)
        else:
            self._say_goodbye(actions)

    # -- the run is over

    def tell_of_end(self, rank: int, actions: list[AnyAction]) -> None:
        """On a rank that leads: one that comes, or is back, is told if the run is over."""
        if self._position.end is not None:
            end = End(generation=self._position.generation, round=self._position.end)
            actions.append(Transmit(to=rank, message=end))

    def on_end(self, message: End, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator says after which round the run is over."""
        position = self._position
        if position.state is ENDING:
            if position.round > message.round:
                self.left_alone = (
                    f"rank {position.node} is in round {position.round}, and rank {sender} ended with {message.round}"
                )
            self._object_if_early(message.round)
            return
        if position.end is not None:
            return  # it has been said, and stands
        position.is_to_end(message.round)
        if position.state in (READY, WORKING) and position.round > message.round:
            self._worker.stop("the run is over", actions)
            self.tell_script(actions)
        elif position.state is WORKING:  # what is missing of the last sum, nobody will send unasked
            self._catch_up.ask_later(now, actions)
        elif position.state is READY:  # its round is over, and nobody told it that it had begun
            self._go_on(now, actions)

    @property
    def is_past(self) -> bool:
        """Whether the script has begun a round that will not be."""
        return self._position.end is not None and self._position.round > self._position.end

    def tell_script(self, actions: list[AnyAction]) -> None:
        """Tell the script that it has had its last round."""
        assert self._position.end is not None
        actions.append(Ended(round=self._position.end))

    def goes_on_without(self, go: Go, actions: list[AnyAction]) -> bool:
        """Whether the coordinator has begun a round that comes after this rank's last."""
        position = self._position
        if position.end is None or position.state is not ENDING or go.round <= position.round:
            return False
        self._object_to_leaving(f"rank {position.coordinator} goes on")
        self._finish(self.left_alone or "", actions)
        return True

    def _object_if_early(self, end: int) -> None:
        """This rank has left its loop; the run ended after that round, as far as is known."""
        if self._position.round < end:
            self._object_to_leaving(f"the run ended after round {end}")

    def _object_to_leaving(self, others: str) -> None:
        position = self._position
        self.left_alone = (
            f"rank {position.node} left its loop after round {position.round}, and {others}: a run ends on all ranks "
            f"when the one that leads leaves its loop (now rank {position.coordinator}), or when all leave it after "
            "the same round"
        )

    def on_goodbye(self, message: Goodbye, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator has left: the run is over."""
        self._worker.stop("the run is over", actions)
        if self._position.state is ENDING:
            self._object_if_early(message.round)
        if self._position.end is None:
            self._position.is_to_end(message.round)
        self._finish(message.reason, actions)

    def fail(self, troubles: tuple[Trouble, ...], actions: list[AnyAction]) -> None:
        """On who coordinates: nobody can compute a part of the round, and with that the run is over, on all ranks."""
        assert self._office.leading is not None
        failure = Failure(
            generation=self._position.generation, round=self._position.round, troubles=troubles[:16], ends=True
        )  # fmt: skip
        self._office.leading.tell_all(failure, actions)
        self._finish_failed(troubles, actions)

    def on_failure(self, message: Failure, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator says that nobody could compute a part of the round."""
        self._finish_failed(message.troubles or ((sender, "no reason given"),), actions)

    def _finish_failed(self, troubles: tuple[Trouble, ...], actions: list[AnyAction]) -> None:
        self._worker.stop("the run is over", actions)
        who = sorted({rank for rank, _ in troubles})
        self._finish(f"a round cannot be computed: ranks {who} failed", actions, troubles)

    def on_refuse(self, message: Refuse, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator does not let this rank in."""
        self.refused = message.reason
        self._finish(message.reason, actions)

    def say_goodbye(self, why: str, actions: list[AnyAction]) -> None:
        """Leave, with a word to the one that leads."""
        self._worker.stop("this rank leaves", actions)
        self._why = why
        self._say_goodbye(actions)

    def vanish(self, why: str, actions: list[AnyAction]) -> None:
        """Leave without a word: who is left finds that this rank is gone."""
        self._worker.stop("this rank leaves", actions)
        self._office.leave()
        self._finish(why, actions)

    def _say_goodbye(self, actions: list[AnyAction]) -> None:
        goodbye = Goodbye(generation=self._position.generation, round=self._position.round, reason=self._why[:1000])
        if self._office.leading is not None:
            self._office.leading.tell_all(goodbye, actions)
        else:
            self._office.tell_leader(goodbye, actions)
        self._finish(self._why, actions)

    def _finish(self, why: str, actions: list[AnyAction], troubles: tuple[Trouble, ...] = ()) -> None:
        self._position.become(LEFT)
        self._drop_all()
        actions.append(Finished(reason=why, troubles=troubles))

    def _drop_all(self) -> None:
        """No model is needed any more, nor another's state."""
        self._worker.drop_model()
        self._catch_up.drop()


#: A timer: a rank that shall leave looks whether it may; and again so many seconds later at least, and such a part of
#: the time that its round has taken.
HANDING_OVER = "handing over"
LOOK_AGAIN, LONGER = 0.02, 0.1

#: Seconds that it waits for somebody who leads.
WITHOUT_LEADER = 1.0

#: Says goodbye to the one that leads, or nothing to anybody; and has left.
LastWord = Callable[[str, list[AnyAction]], None]


class Handover:
    """Whether a rank shall leave, and whether it may."""

    def __init__(
        self, position: RankPosition, worker: RankWorker, exchange: Exchange, links: Outboxes, giving: StateGiving,
        office: Office, election: Election, *, say_goodbye: LastWord, vanish: LastWord,
    ) -> None:  # fmt: skip
        self._position = position
        self._worker = worker
        self._exchange = exchange
        self._links = links
        self._giving = giving
        self._office = office
        self._election = election
        self._say_goodbye = say_goodbye
        self._vanish = vanish
        self._why = ""
        self._told: tuple[int, int] | None = None  # in which generation, and during which round
        self._lost_since: float | None = None  # when it was first seen that nobody leads this rank
        self.goes_on: bool | None = None  # when this rank has left: whether others are there to go on

    def on_hand_over(self, event: HandOver, now: float, actions: list[AnyAction]) -> None:
        """This rank shall leave; one that is not in has nothing to hand over."""
        self._why = event.reason
        if self._position.state is JOINING:
            self.goes_on = True
            self._vanish(self._why, actions)
            return
        self._position.would_leave()
        self._tell(actions)
        self.look_soon(now, actions)

    def look_soon(self, now: float, actions: list[AnyAction]) -> None:
        """Look whether it may go, if it shall: its script has begun a round."""
        if self._position.is_leaving:
            actions.append(SetTimer(name=HANDING_OVER, at=now))

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Go, if this rank shall and may; else look again. While its script is between two rounds nothing is done."""
        position = self._position
        if not position.is_leaving or position.state in (RESTING, ENDING, LEFT):
            return
        self._tell(actions)
        if position.state in (READY, WORKING):
            if self._office.is_held:
                self._hand_over_lead(now, actions)
            elif self._election.is_lost:
                self._wait_for_leader(now, actions)
            elif self._is_free:
                self.goes_on = True
                self._say_goodbye(self._why, actions)
        if not self._election.is_lost:
            self._lost_since = None
        if position.state is not LEFT:
            again = max(LOOK_AGAIN, LONGER * (now - position.began_at))
            actions.append(SetTimer(name=HANDING_OVER, at=now + again))

    def _tell(self, actions: list[AnyAction]) -> None:
        """Tell the one that leads; and again in every round, since it may be another, or may not have heard."""
        position = self._position
        now = (position.generation, position.go.round)
        if not self._office.is_held and not self._election.is_lost and self._told != now:
            self._told = now
            leaving = Leaving(generation=position.generation, round=position.round, reason=self._why[:1000])
            self._office.tell_leader(leaving, actions)

    def _hand_over_lead(self, now: float, actions: list[AnyAction]) -> None:
        """Lead no more, before the next round begins; if nobody stays, go."""
        assert self._office.leading is not None
        if self._position.state is not READY:
            return
        if self._office.leading.staying():
            self._office.leave()
            self._election.lose(now, actions)
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
        position, worker = self._position, self._worker
        is_given_nothing = position.go.generation == position.generation and not position.go.parts
        is_idle = worker.is_idle and not worker.has_something_to_do
        keeps_nothing = not self._exchange.keeps_now
        return is_given_nothing and is_idle and keeps_nothing and self._links.are_empty and not self._giving.held
