"""A rank that fell behind: it asks keepers for the sums it missed, or takes another's state."""

from __future__ import annotations

from collections.abc import Callable

from codedreduce.protocol.core.events import AnyAction, Overtaken, Renewed, SetTimer, Transmit
from codedreduce.protocol.core.messages import Past, Renew, StateChunk, StateOffer, Take, Want
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import RENEWING, RESTING, WORKING
from codedreduce.protocol.leader.members import Office
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.state_transfer import Asking, OfferedState, StateTaking
from codedreduce.protocol.rank.worker import RankWorker
from codedreduce.vectors import Vector

#: A timer: a rank that is behind asks again.
BEHIND = "behind"

#: Seconds after which a rank that is behind asks for what it misses, at least; how often it asks before it gives up.
#: After some tries it no longer asks keepers, which may be stopped, but who leads.
ASK_AFTER = 0.05
TRIES, PATIENT_TRIES = 5, 2

#: And at most, however long rounds take: nothing of the sum has come for so long.
ASK_WITHIN = 30.0

#: Seconds that a rank waits for another's state, or for more of it, at least.
STATE_WITHIN = 1.0

#: How often that is doubled at most, if nothing comes.
RARELY = 5

#: Chunks in a message that asks for some.
ASKED_AT_ONCE = 1024


class CatchUp:
    """How a rank catches up. `office`: whether it leads; then it may have to take a state, too.

    `finish` ends its round if all of the sum is here, and says whether it did.
    """

    def __init__(
        self, position: RankPosition, links: Outboxes, exchange: Exchange, worker: RankWorker,
        office: Office, finish: Callable[[float, list[AnyAction]], bool],
    ) -> None:  # fmt: skip
        self._position = position
        self._links = links
        self._exchange = exchange
        self._worker = worker
        self._office = office
        self._finish = finish
        self._taking = StateTaking()
        self._tries = 0
        self._tried_with = -1  # so many chunks of the sum were here when it was last asked for more
        self._renewals = 0  # times that a state was asked for in vain
        self._missed = 0  # the round whose sum was here, and did not reach the script
        self.must_renew = False  # when the script begins its next round

    def begin_anew(self) -> None:
        """The round is over: of the next one nothing was asked for."""
        self._tries = 0

    def begin_after(self, round_: int) -> None:
        """This rank comes when the others are through with a round: it takes the state that they had then."""
        self._position.come_after(round_)
        self._exchange.expect(round_ + 1)
        self.must_renew = True

    def was_overtaken(self, now: float, actions: list[AnyAction]) -> None:
        """A later round has begun while this rank waits for its sum, which may be on its way."""
        self._tries = 0
        self._tried_with = self._exchange.sum.count
        self.ask_later(now, actions)

    @property
    def is_taking(self) -> bool:
        """Whether some of a state is here."""
        return self._taking.is_under_way

    def drop(self) -> None:
        """Nobody needs a state any more."""
        self._taking.clear()

    # -- sums

    def ask_later(self, now: float, actions: list[AnyAction]) -> None:
        """Ask for what is missing if it has not come by then."""
        position = self._position
        a_round = (
            position.round_took or now - position.began_at
        )  # of the first one it is known how long it has taken so far
        wait = min(ASK_WITHIN, max(ASK_AFTER, 0.5 * a_round)) * (1 + self._tries)
        actions.append(SetTimer(name=BEHIND, at=now + wait))

    def catch_up(self, now: float, actions: list[AnyAction]) -> None:
        """Ask for what is missing of a past round's sum, or give it up."""
        position, exchange = self._position, self._exchange
        keepers = exchange.stripes.keepers(position.round)
        self._tried_with = exchange.sum.count
        self._tries += 1
        if keepers is not None:
            exchange.take_own(
                position.round, [index for index in exchange.sum.missing() if keepers[index] == position.node]
            )
        if self._finish(now, actions):
            return
        if position.coordinator == position.node:
            asked = self._kept_by(keepers)
            is_in_vain = position.node in asked or not self._links.reaches(asked)
        else:
            asked = self._whom_to_ask(self._kept_by(keepers))
            is_in_vain = self._tries > TRIES
        if is_in_vain:
            self.renew(now, actions)
            return
        for peer, chunks in asked.items():
            self._want(peer, chunks, actions)
        self.ask_later(now, actions)

    def _kept_by(self, keepers: list[int] | None) -> dict[int, list[int]]:
        """What is missing of the sum, by who kept it; all by this rank itself if that is not known."""
        found: dict[int, list[int]] = {}
        for index in self._exchange.sum.missing():
            found.setdefault(keepers[index] if keepers is not None else self._position.node, []).append(index)
        return found

    def _whom_to_ask(self, kept_by: dict[int, list[int]]) -> dict[int, list[int]]:
        """Who can be asked for what: who leads has had every sum, and is asked for what no keeper can be.

        A keeper may be gone, or stopped, or another keeps its part, and this rank was not told who. If it is not known
        who leads, whoever does next is asked.
        """
        first = self._position.coordinator
        asked: dict[int, list[int]] = {}
        for peer, chunks in kept_by.items():
            is_keeper = peer != self._position.node and self._tries <= PATIENT_TRIES and self._links.reaches([peer])
            asked.setdefault(peer if is_keeper else first, []).extend(chunks)
        if not self._links.reaches([first]):
            self._tries = min(self._tries, TRIES - 1)
            asked.pop(first, None)
        return asked

    def _want(self, peer: int, chunks: list[int], actions: list[AnyAction]) -> None:
        """Ask a rank for chunks of the sum."""
        position = self._position
        for start in range(0, len(chunks), ASKED_AT_ONCE):
            wanted = tuple(chunks[start : start + ASKED_AT_ONCE])
            want = Want(generation=position.generation, round=position.round, chunks=wanted)
            actions.append(Transmit(to=peer, message=want))

    def on_want(self, message: Want, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Send what is here of a sum, and say so if it is of a past round and some is not here."""
        if self._office.leading is not None:
            self._office.leading.hear_of(sender)
        is_here = self._exchange.send_sums(sender, message.round, message.chunks, actions)
        if not is_here and message.round < max(self._position.go.round, self._position.through + 1):
            past = Past(generation=self._position.generation, round=message.round)
            actions.append(Transmit(to=sender, message=past))

    def on_past(self, message: Past, sender: int, now: float, actions: list[AnyAction]) -> None:
        """A keeper has not got a sum any more, or another the state that it offered."""
        if self._position.state is RENEWING:
            if message.round == self._taking.round:
                self._ask(self._taking.lost(sender), actions)
        elif message.round == self._position.round and self._position.is_on and self._office.lead is not None:
            self._office.lead.has_no_sum(sender, now, actions)
        elif message.round == self._position.round and self._position.is_behind:
            self._do_without(sender, now, actions)

    def _do_without(self, keeper: int, now: float, actions: list[AnyAction]) -> None:
        """A keeper has not got its part of the sum: who leads may have, and if it has not, this rank takes a state."""
        first = self._position.coordinator
        if keeper == first:
            self.renew(now, actions)
        elif self._links.reaches([first]):
            keepers = self._exchange.stripes.keepers(self._position.round)
            self._want(first, self._kept_by(keepers).get(keeper, []), actions)

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """It is time to ask again, unless something came meanwhile."""
        if self._position.state is RENEWING:
            self._renew_again(now, actions)
        elif self._position.state is WORKING and self._position.is_behind:
            if self._exchange.sum.count == self._tried_with:
                self.catch_up(now, actions)
            else:  # it comes
                self._tried_with = self._exchange.sum.count
                self.ask_later(now, actions)

    # -- another's state

    def renew(self, now: float, actions: list[AnyAction]) -> None:
        """Wait for another's state, and take it."""
        self._worker.stop("this rank takes another's state", actions)
        self._worker.drop_model()
        self._position.become(RENEWING)
        self._no_more(self._taking.clear(), actions)
        self.must_renew = False
        if not self._office.is_held:
            renew = Renew(generation=self._position.generation, round=self._position.round)
            self._office.tell_leader(renew, actions)
        self._wait_for_state(now, actions)

    def _renew_again(self, now: float, actions: list[AnyAction]) -> None:
        """The state does not come: ask others; a coordinator goes on as it is if there are none."""
        leading = self._office.leading
        if leading is not None and not leading.takes_state(self._position.round, actions):
            self._has(None, min(self._position.round, self._missed or self._position.round) - 1, actions)
        else:
            self._renewals += 1
            self.renew(now, actions)
            if not self._office.is_held:  # it may not have been told of a round, and so refuses a state after that
                self._worker.tell_status(actions)

    def _wait_for_state(self, now: float, actions: list[AnyAction]) -> None:
        wait = max(STATE_WITHIN, 2 * self._position.round_took) * 2 ** min(self._renewals, RARELY)
        actions.append(SetTimer(name=BEHIND, at=now + wait))

    def on_must_renew(self, message: Renew, sender: int, now: float, actions: list[AnyAction]) -> None:
        """This rank has another model than the others: it takes theirs, at once or when its script goes on."""
        if self._position.state is RESTING:
            self.must_renew = True
            self._position.lose_state()
        else:
            self.renew(now, actions)

    def on_overtaken(self, event: Overtaken, now: float, actions: list[AnyAction]) -> None:
        """The script could not take the sum in time: it goes on with another's state when it begins again."""
        self.must_renew = True
        self._position.lose_state()
        self._missed = event.round
        if self._office.leading is not None:
            self._office.leading.must_take_state()

    def on_offer(self, message: StateOffer, sender: int, now: float, actions: list[AnyAction]) -> None:
        """Another has its state to give; it must be later than this rank's own, and one is needed."""
        position = self._position
        latest = max(position.go.round, position.over, position.end or 0, position.round - 1)
        if position.state is not RENEWING or not position.round - 1 <= message.round <= latest:
            actions.append(Transmit(to=sender, message=Take(generation=position.generation, round=message.round)))
            return
        offer = OfferedState(message.round, message.of, message.digest)
        self._ask(self._taking.offered(sender, offer), actions)
        self._wait_for_state(now, actions)

    def lost(self, peer: int, actions: list[AnyAction]) -> None:
        """A rank is gone: if it was to give pieces of a state, others do."""
        if self._position.state is RENEWING:
            self._ask(self._taking.lost(peer), actions)

    def _ask(self, asking: Asking, actions: list[AnyAction]) -> None:
        for giver, pieces in asking:
            take = Take(generation=self._position.generation, round=self._taking.round, pieces=pieces)
            actions.append(Transmit(to=giver, message=take))

    def _no_more(self, givers: dict[int, int], actions: list[AnyAction]) -> None:
        """Those that offered a state need not keep it."""
        for giver, round_ in givers.items():
            actions.append(Transmit(to=giver, message=Take(generation=self._position.generation, round=round_)))

    def on_state(self, chunk: StateChunk, sender: int, data: Vector, now: float, actions: list[AnyAction]) -> None:
        """A piece of a state that was asked for."""
        asking = self._taking.came(chunk, sender, data)
        if asking is None:
            return
        self._wait_for_state(now, actions)
        state = self._taking.whole()
        if state is None:
            self._ask(asking, actions)
        else:
            self._has(state, chunk.round, actions)

    def _has(self, state: Vector | None, round_: int, actions: list[AnyAction]) -> None:
        """Go on after a round, with the state that others had then."""
        self._no_more(self._taking.clear(), actions)
        self._position.rest_after(round_)
        self._exchange.expect(round_ + 1)
        self._tries = self._missed = self._renewals = 0
        if self._office.leading is not None:
            self._office.leading.has_state()
        actions.append(Renewed(round=round_, state=state))
