"""Catching up: a rank that fell behind requests the sums that it missed, or takes the state of another rank."""

from __future__ import annotations

from codedreduce.protocol.core.events import Actions, Overtaken, Renewed, SetTimer, Transmit
from codedreduce.protocol.core.messages import Past, Renew, StateChunk, StateOffer, Take, Want
from codedreduce.protocol.core.outbox import Outboxes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.rank_table import READY, RENEWING, RESTING, WORKING
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.leader.members import Leadership
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.protocol.rank.state_transfer import Asking, OfferedState, StateTaking
from codedreduce.protocol.rank.worker import RankWorker
from codedreduce.vectors import Vector

#: The number of requests before a rank that is behind gives up. After `PATIENT_TRIES` requests it asks the leader
#: instead of the reducers, which may be stopped.
TRIES, PATIENT_TRIES = 5, 2

#: The maximum number of times that the timeout for another rank's state is doubled if nothing arrives.
RARELY = 5

#: A rank reports its status after so many rounds without news.
MANY_ROUNDS = 8.0

#: The maximum number of chunks in one request.
ASKED_AT_ONCE = 1024


class CatchUp:
    """How a rank catches up. The leader may have to take a state, too (`leadership`)."""

    def __init__(
        self, actions: Actions, position: RankPosition, links: Outboxes, exchange: Exchange, worker: RankWorker,
        leadership: Leadership,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._position = position
        self._timing = position.timing
        self._links = links
        self._exchange = exchange
        self._worker = worker
        self._leadership = leadership
        self._taking = StateTaking()
        self._tries = 0
        self._tried_with = -1  # the number of chunks of the sum that were there at the last request
        self._renewals = 0  # number of requests for a state without an answer
        self._missed = 0  # the round with a sum that did not reach the script
        self.must_renew = False  # take a state when the script begins its next round

    def begin_anew(self) -> None:
        """The round is over: reset the count of requests."""
        self._tries = 0

    def begin_after(self, round_: int) -> None:
        """This rank joins after the others have finished a round: it takes the state that they had then."""
        self._position.come_after(round_)
        self._exchange.expect(round_ + 1)
        self.must_renew = True

    def go_on(self, now: float) -> None:
        """Work, if the leader has begun the script's round; catch up, if the round is over."""
        if self._position.is_on:
            self._position.become(WORKING)
            self._worker.work_on(now)
        elif self._position.is_behind:
            self._position.become(WORKING)
            self.catch_up(now)

    def was_overtaken(self, now: float) -> None:
        """A later round has begun while this rank waits for its sum, which may still be on its way."""
        self._tries = 0
        self._tried_with = self._exchange.sum.count
        self.ask_later(now)

    @property
    def is_taking(self) -> bool:
        """True if pieces of a state have arrived or were requested."""
        return self._taking.is_under_way

    def drop(self) -> None:
        """Drop the state: it is no longer needed."""
        self._taking.clear()

    def ask_whether_on(self, now: float) -> None:
        """The round takes very long: report the status to the leader, as `Go` may be lost."""
        if self._position.state in (READY, WORKING) and not self._leadership.is_held:
            self._worker.tell_status(now)
            self.look_whether_on(now)

    def look_whether_on(self, now: float) -> None:
        """Set a timer for a round that takes very long; the longer it takes, the later."""
        timing, position = self._timing, self._position
        wait = max(timing.status_report, MANY_ROUNDS * position.round_took, now - position.began_at)
        self._actions.append(SetTimer(name=Timer.NO_NEWS, at=now + min(timing.status_report_limit, wait)))

    # -- sums

    def ask_later(self, now: float) -> None:
        """Set a timer for requesting the chunks that are still missing then."""
        position = self._position
        a_round = position.round_took or now - position.began_at  # in the first round: the time so far
        wait = min(self._timing.sum_retry_limit, max(self._timing.sum_retry, 0.5 * a_round)) * (1 + self._tries)
        self._actions.append(SetTimer(name=Timer.CATCH_UP, at=now + wait))

    def catch_up(self, now: float) -> None:
        """Request the missing chunks of a past round's sum, or give the sum up."""
        position, exchange = self._position, self._exchange
        reducers = exchange.stripes.reducers(position.round)
        self._tried_with = exchange.sum.count
        self._tries += 1
        if reducers is not None:
            exchange.take_own(
                position.round, [index for index in exchange.sum.missing() if reducers[index] == position.node]
            )
        if exchange.sum.is_complete:
            return
        if position.leader == position.node:
            asked = self._reduced_by(reducers)
            is_in_vain = position.node in asked or not self._links.reaches(asked)
        else:
            asked = self._ranks_to_ask(self._reduced_by(reducers))
            is_in_vain = self._tries > TRIES
        if is_in_vain:
            self.renew(now)
            return
        for peer, chunks in asked.items():
            self._want(peer, chunks)
        self.ask_later(now)

    def _reduced_by(self, reducers: list[int] | None) -> dict[int, list[int]]:
        """The missing chunks of the sum by reducer; all under this rank itself if the reducers are not known."""
        found: dict[int, list[int]] = {}
        for index in self._exchange.sum.missing():
            found.setdefault(reducers[index] if reducers is not None else self._position.node, []).append(index)
        return found

    def _ranks_to_ask(self, reduced_by: dict[int, list[int]]) -> dict[int, list[int]]:
        """Which rank to ask for which chunks: the leader had every sum, and is asked for all that no reducer can send.

        A reducer may be gone or stopped, or another rank reduces its stripe and this rank was not notified. If there is
        no known leader, the next leader is asked.
        """
        first = self._position.leader
        asked: dict[int, list[int]] = {}
        for peer, chunks in reduced_by.items():
            is_reducer = peer != self._position.node and self._tries <= PATIENT_TRIES and self._links.reaches([peer])
            asked.setdefault(peer if is_reducer else first, []).extend(chunks)
        if not self._links.reaches([first]):
            self._tries = min(self._tries, TRIES - 1)
            asked.pop(first, None)
        return asked

    def _want(self, peer: int, chunks: list[int]) -> None:
        """Request chunks of the sum from a rank."""
        position = self._position
        for start in range(0, len(chunks), ASKED_AT_ONCE):
            wanted = tuple(chunks[start : start + ASKED_AT_ONCE])
            want = Want(generation=position.generation, round=position.round, chunks=wanted)
            self._actions.append(Transmit(to=peer, message=want))

    def on_want(self, message: Want, sender: int, now: float) -> None:
        """Send the chunks of a sum that are here; if the round is past and some are not here, report that (`Past`)."""
        if self._leadership.members is not None:
            self._leadership.members.hear_of(sender)
        is_here = self._exchange.send_sums(sender, message.round, message.chunks)
        if not is_here and message.round < max(self._position.go.round, self._position.through + 1):
            past = Past(generation=self._position.generation, round=message.round)
            self._actions.append(Transmit(to=sender, message=past))

    def on_past(self, message: Past, sender: int, now: float) -> None:
        """A reducer no longer has a sum, or another rank no longer has the state that it offered."""
        if self._position.state is RENEWING:
            if message.round == self._taking.round:
                self._ask(self._taking.lost(sender))
        elif message.round == self._position.round and self._position.is_on and self._leadership.members is not None:
            self._leadership.members.scheduler.has_no_sum(sender, now)
        elif message.round == self._position.round and self._position.is_behind:
            self._do_without(sender, now)

    def _do_without(self, reducer: int, now: float) -> None:
        """A reducer does not have its part of the sum: ask the leader. If the leader does not have it, take a state.

        While this rank stands for leader, it tries again later.
        """
        first = self._position.leader
        if reducer == first:
            self.renew(now)
        elif first != self._position.node and self._links.reaches([first]):
            reducers = self._exchange.stripes.reducers(self._position.round)
            self._want(first, self._reduced_by(reducers).get(reducer, []))

    def look(self, now: float) -> None:
        """Repeat the request, unless something has arrived meanwhile."""
        if self._position.state is RENEWING:
            self._renew_again(now)
        elif self._position.state is WORKING and self._position.is_behind:
            if self._exchange.sum.count == self._tried_with:
                self.catch_up(now)
            else:  # chunks are arriving
                self._tried_with = self._exchange.sum.count
                self.ask_later(now)

    # -- the state of another rank

    def renew(self, now: float) -> None:
        """Stop work, and take the state of another rank."""
        self._worker.stop("this rank takes the state of another rank")
        self._worker.drop_model()
        self._position.become(RENEWING)
        self._no_more(self._taking.clear())
        self.must_renew = False
        if not self._leadership.is_held:
            renew = Renew(generation=self._position.generation, round=self._position.round)
            self._worker.report(renew, now)
        self._wait_for_state(now)

    def _renew_again(self, now: float) -> None:
        """The state does not arrive: ask other ranks. A leader goes on with its own state if there are none."""
        members = self._leadership.members
        if members is not None and not members.takes_state(self._position.round):
            self._has(None, min(self._position.round, self._missed or self._position.round) - 1)
        else:
            self._renewals += 1
            self.renew(now)
            if not self._leadership.is_held:  # it may not know of a round, and would refuse a state after that round
                self._worker.tell_status(now)

    def _wait_for_state(self, now: float) -> None:
        wait = max(self._timing.state_timeout, 2 * self._position.round_took) * 2 ** min(self._renewals, RARELY)
        self._actions.append(SetTimer(name=Timer.CATCH_UP, at=now + wait))

    def on_must_renew(self, message: Renew, sender: int, now: float) -> None:
        """This rank's model differs from the others: it takes their state, at once or when its script goes on."""
        if self._position.state is RESTING:
            self.must_renew = True
            self._position.lose_state()
        else:
            self.renew(now)

    def on_overtaken(self, event: Overtaken, now: float) -> None:
        """The script could not copy the sum in time: it goes on with another rank's state when it begins again."""
        self.must_renew = True
        self._position.lose_state()
        self._missed = event.round
        if self._leadership.members is not None:
            self._leadership.members.must_take_state()

    def on_offer(self, message: StateOffer, sender: int, now: float) -> None:
        """Another rank offers its state. Accept it if this rank needs one, and it is later than its own."""
        position = self._position
        latest = max(position.go.round, position.over, position.end or 0, position.round - 1)
        if position.state is not RENEWING or not position.round - 1 <= message.round <= latest:
            self._actions.append(Transmit(to=sender, message=Take(generation=position.generation, round=message.round)))
            return
        offer = OfferedState(message.round, message.of, message.digest)
        self._ask(self._taking.offered(sender, offer))
        self._wait_for_state(now)

    def lost(self, peer: int) -> None:
        """A rank is lost: request its pieces of a state from others."""
        if self._position.state is RENEWING:
            self._ask(self._taking.lost(peer))

    def _ask(self, asking: Asking) -> None:
        for giver, pieces in asking:
            take = Take(generation=self._position.generation, round=self._taking.round, pieces=pieces)
            self._actions.append(Transmit(to=giver, message=take))

    def _no_more(self, givers: dict[int, int]) -> None:
        """Release the ranks that offered a state: they need not keep it."""
        for giver, round_ in givers.items():
            self._actions.append(Transmit(to=giver, message=Take(generation=self._position.generation, round=round_)))

    def on_state(self, chunk: StateChunk, sender: int, data: Vector, now: float) -> None:
        """A requested piece of a state has arrived."""
        asking = self._taking.came(chunk, sender, data)
        if asking is None:
            return
        self._wait_for_state(now)
        state = self._taking.whole()
        if state is None:
            self._ask(asking)
        else:
            self._has(state, chunk.round)

    def _has(self, state: Vector | None, round_: int) -> None:
        """Continue after a round, with the state that others had then."""
        self._no_more(self._taking.clear())
        self._position.rest_after(round_)
        self._exchange.expect(round_ + 1)
        self._tries = self._missed = self._renewals = 0
        if self._leadership.members is not None:
            self._leadership.members.has_state()
        self._actions.append(Renewed(round=round_, state=state))
