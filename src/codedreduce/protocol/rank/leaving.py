"""How a rank leaves a run: when the leader sees that all have finished the last round, or at once.

A rank that is to leave while the run goes on first hands over its duties to the others.

It notifies the leader (`Leaving`) and goes on as before. From the next round on it is assigned no parts and no stripe.
It says goodbye and leaves when it has received such a round and the sums of its last stripe are on their way to all. So
no rank waits for it, and no work is done twice.

A leader that is to leave does not begin the next round. It reports that it leads no more (`Stand`). The others elect a
new leader, and the rank follows it like any rank that is to leave. It votes, but is no candidate. If no other rank
stays, it leaves without notice, as there is no rank to hand over to. It also does so after a while without a leader.
"""

from __future__ import annotations

from codedreduce.protocol.core.events import Actions, Ended, Finished, HandOver, Leave, SetTimer
from codedreduce.protocol.core.messages import End, Failure, Go, Goodbye, Have, Leaving, Refuse, Trouble, Unable
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import ENDING, JOINING, LEFT, READY, RESTING, WORKING
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.election.election import Election
from codedreduce.protocol.leader.members import Leadership, Members
from codedreduce.protocol.rank.catch_up import CatchUp
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.state_transfer import StateGiving
from codedreduce.protocol.rank.worker import RankWorker

#: The maximum number of grace periods for ranks that are behind when a run ends, while those ranks still catch up.
GRACES = 12


class Departure:
    """How a rank ends."""

    def __init__(
        self, actions: Actions, position: RankPosition, worker: RankWorker, catch_up: CatchUp, leadership: Leadership,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._position = position
        self._timing = position.timing
        self._worker = worker
        self._catch_up = catch_up
        self._leadership = leadership
        self._why = "the run is over"
        self._graces = 0
        self.refused: str | None = None
        self.left_alone: str | None = None  # the error if this rank has left by itself

    # -- this rank leaves

    def on_leave(self, event: Leave, now: float) -> None:
        """Leave when the others have finished, too; or at once."""
        self._worker.stop("this rank leaves")
        self._why = event.reason
        if event.at_once or self._position.state is JOINING:
            self._say_goodbye(now)
            return
        end, through = self._position.end, self._position.leave()
        self._drop_all()
        self._object_if_early(end or 0)
        if self._leadership.is_held:
            self.lead_end(now)
        else:
            have = Have(generation=self._position.generation, round=through)
            self._worker.report(have, now)

    def lead_end(self, now: float) -> None:
        """On a leader that has left its loop: make the others end, too."""
        members = self._leadership.members
        assert members is not None
        self._tell_all_of_end(members)
        members.some_catch_up()
        self._graces = 0
        self._wait(now)
        self.leave_if_all_through(now)

    def _tell_all_of_end(self, members: Members) -> None:
        members.tell_all(End(generation=self._position.generation, round=self._position.round))

    def is_left(self, now: float) -> None:
        """The leader is lost: a rank that has finished sets a time limit for its wait for another leader."""
        if self._position.state is ENDING:
            self._wait(now)

    def leave_if_all_through(self, now: float) -> None:
        """On the leader: leave if all others have finished."""
        members = self._leadership.members
        if self._position.state is ENDING and members is not None and members.all_through:
            self._say_goodbye(now)

    def on_have(self, message: Have, sender: int, now: float) -> None:
        """On the leader: another rank has finished."""
        members = self._leadership.members
        assert members is not None
        members.through(sender)
        if message.round >= self._position.round:
            members.scheduler.is_ahead(sender, now)
        self.leave_if_all_through(now)

    def _wait(self, now: float) -> None:
        self._graces += 1
        self._actions.append(
            SetTimer(name=Timer.END, at=now + max(self._timing.end_grace, 3 * self._position.round_took))
        )

    def is_late(self, now: float) -> None:
        """Stop waiting for ranks that have not finished by now and were not heard of."""
        if self._position.state is not ENDING:
            return
        members = self._leadership.members
        if members is not None and self._graces < GRACES and members.some_catch_up():
            self._tell_all_of_end(members)  # the first message may be lost
            self._wait(now)
        else:
            self._say_goodbye(now)

    # -- the run is over

    def on_end(self, message: End, sender: int, now: float) -> None:
        """The leader reports the last round of the run."""
        position = self._position
        if position.state is ENDING:
            if position.round > message.round:
                self.left_alone = (
                    f"rank {position.node} is in round {position.round}, and rank {sender} ended with {message.round}"
                )
            self._object_if_early(message.round)
            return
        if position.end is not None:
            return  # the first report stands
        position.is_to_end(message.round)
        if position.state in (READY, WORKING) and position.round > message.round:
            self._worker.stop("the run is over")
            self.tell_script()
        elif position.state is WORKING:  # no rank sends the missing chunks of the last sum without a request
            self._catch_up.ask_later(now)
        elif position.state is READY:  # its round is over, and it never received its `Go`
            self._catch_up.go_on(now)

    def tell_script(self) -> None:
        """Tell the script that the last round is over."""
        assert self._position.end is not None
        self._actions.append(Ended(round=self._position.end))

    def goes_on_without(self, go: Go) -> bool:
        """True if the leader has begun a round after this rank's last one; this rank has then left too early."""
        position = self._position
        if position.end is None or position.state is not ENDING or go.round <= position.round:
            return False
        self._object_to_leaving(f"rank {position.leader} goes on")
        self._finish(self.left_alone or "")
        return True

    def _object_if_early(self, end: int) -> None:
        """Object if this rank has left its loop before round `end`, the last one as far as is known."""
        if self._position.round < end:
            self._object_to_leaving(f"the run ended after round {end}")

    def _object_to_leaving(self, others: str) -> None:
        position = self._position
        self.left_alone = (
            f"rank {position.node} left its loop after round {position.round}, and {others}: a run ends on all ranks "
            f"when the leader (now rank {position.leader}) leaves its loop, or when all leave it after "
            "the same round"
        )

    def on_goodbye(self, message: Goodbye, sender: int, now: float) -> None:
        """The leader has left: the run is over."""
        self._worker.stop("the run is over")
        if self._position.state is ENDING:
            self._object_if_early(message.round)
        if self._position.end is None:
            self._position.is_to_end(message.round)
        self._finish(message.reason)

    def on_unable(self, message: Unable, sender: int, now: float) -> None:
        """On the leader: a rank failed at a part."""
        assert self._leadership.members is not None
        troubles = self._leadership.members.scheduler.failed(sender, message, now)
        if troubles:
            self.fail(troubles)

    def fail(self, troubles: tuple[Trouble, ...]) -> None:
        """On the leader: no rank can compute a part of the round, which ends the run on all ranks."""
        assert self._leadership.members is not None
        failure = Failure(
            generation=self._position.generation, round=self._position.round, troubles=troubles[:16], ends=True
        )  # fmt: skip
        self._leadership.members.tell_all(failure)
        self._finish_failed(troubles)

    def on_failure(self, message: Failure, sender: int, now: float) -> None:
        """The leader reports that no rank could compute a part of the round."""
        self._finish_failed(message.troubles or ((sender, "no reason given"),))

    def _finish_failed(self, troubles: tuple[Trouble, ...]) -> None:
        self._worker.stop("the run is over")
        failed = sorted({rank for rank, _ in troubles})
        self._finish(f"a round cannot be computed: ranks {failed} failed", troubles)

    def on_refuse(self, message: Refuse, sender: int, now: float) -> None:
        """The leader refuses this rank."""
        self.refused = message.reason
        self._finish(message.reason)

    def say_goodbye(self, why: str, now: float) -> None:
        """Leave, with a goodbye to the leader."""
        self._worker.stop("this rank leaves")
        self._why = why
        self._say_goodbye(now)

    def vanish(self, why: str) -> None:
        """Leave without notice: the other ranks detect that this rank is gone."""
        self._worker.stop("this rank leaves")
        self._leadership.leave()
        self._finish(why)

    def _say_goodbye(self, now: float) -> None:
        goodbye = Goodbye(generation=self._position.generation, round=self._position.round, reason=self._why[:1000])
        if self._leadership.members is not None:
            self._leadership.members.tell_all(goodbye)
        else:
            self._worker.report(goodbye, now)
        self._finish(self._why)

    def _finish(self, why: str, troubles: tuple[Trouble, ...] = ()) -> None:
        self._position.become(LEFT)
        self._drop_all()
        self._actions.append(Finished(reason=why, troubles=troubles))

    def _drop_all(self) -> None:
        """Drop the model and the state of another rank: they are no longer needed."""
        self._worker.drop_model()
        self._catch_up.drop()


#: A rank that is to leave checks again whether it may after this fraction of its round.
LONGER = 0.1


class Handover:
    """Tracks whether a rank is to leave, and whether it may."""

    def __init__(
        self, actions: Actions, position: RankPosition, worker: RankWorker, exchange: Exchange, links: Outboxes,
        giving: StateGiving, leadership: Leadership, election: Election, departure: Departure,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._position = position
        self._timing = position.timing
        self._worker = worker
        self._exchange = exchange
        self._links = links
        self._giving = giving
        self._leadership = leadership
        self._election = election
        self._departure = departure
        self._why = ""
        self._told: tuple[int, int] | None = None  # the generation and the round of the last notice
        self._lost_since: float | None = None  # when this rank first found that it has no leader
        self.goes_on: bool | None = None  # once this rank has left: whether others go on

    def on_hand_over(self, event: HandOver, now: float) -> None:
        """This rank is to leave. A rank that has not joined has nothing to hand over."""
        self._why = event.reason
        if self._position.state is JOINING:
            self.goes_on = True
            self._departure.vanish(self._why)
            return
        self._position.would_leave()
        self._tell(now)
        self.look_soon(now)

    def look_soon(self, now: float) -> None:
        """The script has begun a round: if this rank is to leave, check soon whether it may."""
        if self._position.is_leaving:
            self._actions.append(SetTimer(name=Timer.HANDOVER, at=now))

    def look(self, now: float) -> None:
        """Leave if this rank is to leave and may; else check again later. Nothing happens between two rounds."""
        position = self._position
        if not position.is_leaving or position.state in (RESTING, ENDING, LEFT):
            return
        self._tell(now)
        if position.state in (READY, WORKING):
            if self._leadership.is_held:
                self._hand_over_lead(now)
            elif self._election.is_lost:
                self._wait_for_leader(now)
            elif self._is_free:
                self.goes_on = True
                self._departure.say_goodbye(self._why, now)
        if not self._election.is_lost:
            self._lost_since = None
        if position.state is not LEFT:
            again = max(self._timing.handover_check, LONGER * (now - position.began_at))
            self._actions.append(SetTimer(name=Timer.HANDOVER, at=now + again))

    def _tell(self, now: float) -> None:
        """Notify the leader; in every round again, since the leader may be new, or the notice may be lost."""
        position = self._position
        current = (position.generation, position.go.round)
        if not self._leadership.is_held and not self._election.is_lost and self._told != current:
            self._told = current
            leaving = Leaving(generation=position.generation, round=position.round, reason=self._why[:1000])
            self._worker.report(leaving, now)

    def _hand_over_lead(self, now: float) -> None:
        """Stop leading before the next round begins; if no other rank stays, leave."""
        assert self._leadership.members is not None
        if self._position.state is not READY:
            return
        if self._leadership.members.staying():
            self._leadership.leave()
            self._election.lose(now)
        else:
            self.goes_on = False  # all other ranks are to leave, too
            self._departure.vanish(self._why)

    def _wait_for_leader(self, now: float) -> None:
        """Wait for the others to elect a leader, for a limited time."""
        if self._lost_since is None:
            self._lost_since = now
        elif now - self._lost_since >= self._timing.handover_timeout:
            self.goes_on = True
            self._departure.vanish(self._why)

    @property
    def _is_free(self) -> bool:
        """True if this rank has no work in the current round, and owes nothing from the last one."""
        position, worker = self._position, self._worker
        is_given_nothing = position.go.generation == position.generation and not position.go.parts
        is_idle = worker.is_idle and not worker.has_something_to_do
        keeps_nothing = not self._exchange.keeps_now
        return is_given_nothing and is_idle and keeps_nothing and self._links.are_empty and not self._giving.held
