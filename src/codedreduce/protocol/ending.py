"""How a rank leaves a run: when its coordinator has let all be through with the last round, or at once."""

from __future__ import annotations

from collections.abc import Callable

from codedreduce.protocol.behind import Behind
from codedreduce.protocol.doing import Doing
from codedreduce.protocol.events import AnyAction, Ended, Finished, Leave, SetTimer, Transmit
from codedreduce.protocol.leading import Leading
from codedreduce.protocol.messages import End, Failure, Go, Goodbye, Have, Refuse, Trouble
from codedreduce.protocol.office import Office
from codedreduce.protocol.place import Place
from codedreduce.protocol.rank_table import ENDING, JOINING, LEFT, READY, WORKING

#: A timer: a rank that ends has waited long enough for the others.
ENDED = "ended"

#: Seconds that ranks which are behind have to catch up when a run ends; as long again while they do, so often at most.
GRACE = 5.0
GRACES = 12


class Ending:
    """A rank's end. `office`: whether it leads; `go_on` has a rank work on its round, or catch up with it."""

    def __init__(
        self, place: Place, doing: Doing, behind: Behind, office: Office,
        go_on: Callable[[float, list[AnyAction]], None],
    ) -> None:  # fmt: skip
        self._place = place
        self._doing = doing
        self._behind = behind
        self._office = office
        self._go_on = go_on
        self._why = "the run is over"
        self._graces = 0
        self.refused: str | None = None
        self.left_alone: str | None = None  # why this rank may not leave by itself

    # -- this rank leaves

    def on_leave(self, event: Leave, now: float, actions: list[AnyAction]) -> None:
        """Leave when the others are through, too; or at once."""
        self._doing.stop("this rank leaves", actions)
        self._why = event.reason
        if event.at_once or self._place.state is JOINING:
            self._say_goodbye(actions)
            return
        through = self._place.leave()
        self._drop_all()
        if self._office.is_held:
            self.lead_end(now, actions)
        else:
            have = Have(generation=self._place.generation, round=through)
            self._office.tell_leader(have, actions)

    def lead_end(self, now: float, actions: list[AnyAction]) -> None:
        """On a rank that leads and has left its loop: have the others come to the end, too."""
        assert self._office.leading is not None
        self._tell_all_of_end(self._office.leading, actions)
        self._office.leading.some_catch_up()
        self._graces = 0
        self._wait(now, actions)
        self.leave_if_all_through(actions)

    def _tell_all_of_end(self, leading: Leading, actions: list[AnyAction]) -> None:
        leading.tell_all(End(generation=self._place.generation, round=self._place.round), actions)

    def is_left(self, now: float, actions: list[AnyAction]) -> None:
        """Its coordinator is lost: who is through does not wait for another for ever."""
        if self._place.state is ENDING:
            self._wait(now, actions)

    def leave_if_all_through(self, actions: list[AnyAction]) -> None:
        """On a rank that leads: leave, if the others are through."""
        leading = self._office.leading
        if self._place.state is ENDING and leading is not None and leading.all_through:
            self._say_goodbye(actions)

    def on_have(self, message: Have, sender: int, now: float, actions: list[AnyAction]) -> None:
        """To a rank that leads: another is through."""
        assert self._office.lead is not None
        assert self._office.leading is not None
        self._office.leading.through(sender)
        if message.round >= self._place.round:
            self._office.lead.is_ahead(sender, now, actions)
        self.leave_if_all_through(actions)

    def _wait(self, now: float, actions: list[AnyAction]) -> None:
        self._graces += 1
        actions.append(SetTimer(name=ENDED, at=now + max(GRACE, 3 * self._place.round_took)))

    def is_late(self, now: float, actions: list[AnyAction]) -> None:
        """Whoever is not through by now, and has not been heard of, is not waited for."""
        if self._place.state is not ENDING:
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
        if self._place.end is not None:
            end = End(generation=self._place.generation, round=self._place.end)
            actions.append(Transmit(to=rank, message=end))

    def on_end(self, message: End, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator says after which round the run is over."""
        place = self._place
        if place.state is ENDING:
            if place.round > message.round:
                self.left_alone = (
                    f"rank {place.node} is in round {place.round}, and rank {sender} ended with {message.round}"
                )
            return
        if place.end is not None:
            return  # it has been said, and stands
        place.is_to_end(message.round)
        if place.state in (READY, WORKING) and place.round > message.round:
            self._doing.stop("the run is over", actions)
            self.tell_script(actions)
        elif place.state is WORKING:  # what is missing of the last sum, nobody will send unasked
            self._behind.ask_later(now, actions)
        elif place.state is READY:  # its round is over, and nobody told it that it had begun
            self._go_on(now, actions)

    @property
    def is_past(self) -> bool:
        """Whether the script has begun a round that will not be."""
        return self._place.end is not None and self._place.round > self._place.end

    def tell_script(self, actions: list[AnyAction]) -> None:
        """Tell the script that it has had its last round."""
        assert self._place.end is not None
        actions.append(Ended(round=self._place.end))

    def goes_on_without(self, go: Go, actions: list[AnyAction]) -> bool:
        """Whether the coordinator has begun a round that comes after this rank's last."""
        place = self._place
        if place.end is None or place.state is not ENDING or go.round <= place.round:
            return False
        self.left_alone = (
            f"rank {place.node} left its loop after round {place.round}, and rank {place.coordinator} goes on: a run "
            f"ends on all ranks when the one that leads leaves its loop (now rank {place.coordinator}), or when all "
            "leave it after the same round"
        )
        self._finish(self.left_alone, actions)
        return True

    def on_goodbye(self, message: Goodbye, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator has left: the run is over."""
        self._doing.stop("the run is over", actions)
        if self._place.end is None:
            self._place.is_to_end(message.round)
        self._finish(message.reason, actions)

    def fail(self, troubles: tuple[Trouble, ...], actions: list[AnyAction]) -> None:
        """On who coordinates: nobody can compute a part of the round, and with that the run is over, on all ranks."""
        assert self._office.leading is not None
        failure = Failure(
            generation=self._place.generation, round=self._place.round, troubles=troubles[:16], ends=True
        )  # fmt: skip
        self._office.leading.tell_all(failure, actions)
        self._finish_failed(troubles, actions)

    def on_failure(self, message: Failure, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator says that nobody could compute a part of the round."""
        self._finish_failed(message.troubles or ((sender, "no reason given"),), actions)

    def _finish_failed(self, troubles: tuple[Trouble, ...], actions: list[AnyAction]) -> None:
        self._doing.stop("the run is over", actions)
        who = sorted({rank for rank, _ in troubles})
        self._finish(f"a round cannot be computed: ranks {who} failed", actions, troubles)

    def on_refuse(self, message: Refuse, sender: int, now: float, actions: list[AnyAction]) -> None:
        """The coordinator does not let this rank in."""
        self.refused = message.reason
        self._finish(message.reason, actions)

    def say_goodbye(self, why: str, actions: list[AnyAction]) -> None:
        """Leave, with a word to the one that leads."""
        self._doing.stop("this rank leaves", actions)
        self._why = why
        self._say_goodbye(actions)

    def vanish(self, why: str, actions: list[AnyAction]) -> None:
        """Leave without a word: who is left finds that this rank is gone."""
        self._doing.stop("this rank leaves", actions)
        self._office.leave()
        self._finish(why, actions)

    def _say_goodbye(self, actions: list[AnyAction]) -> None:
        goodbye = Goodbye(generation=self._place.generation, round=self._place.round, reason=self._why[:1000])
        if self._office.leading is not None:
            self._office.leading.tell_all(goodbye, actions)
        else:
            self._office.tell_leader(goodbye, actions)
        self._finish(self._why, actions)

    def _finish(self, why: str, actions: list[AnyAction], troubles: tuple[Trouble, ...] = ()) -> None:
        self._place.become(LEFT)
        self._drop_all()
        actions.append(Finished(reason=why, troubles=troubles))

    def _drop_all(self) -> None:
        """No model is needed any more, nor another's state."""
        self._doing.drop_model()
        self._behind.drop()
