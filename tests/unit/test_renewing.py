"""A state that comes from several: who is asked for what, and what is done about those that are slow, odd or gone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.leader.members import GIVERS
from codedreduce.protocol.rank.state_transfer import AT_ONCE, Asking, OfferedState, StateTaking

from .conversation import led_to, of_type, sent

SAME = OfferedState(3, 40, "the same")


class Givers:
    """Ranks that have a state, and a rank that takes it; each gives what it is asked for when it is told to."""

    def __init__(self) -> None:
        self.taking = StateTaking()
        self.owes: dict[int, list[int]] = {}
        self.gave: dict[int, int] = {}

    def heard(self, asking: Asking | None) -> None:
        for giver, pieces in asking or []:
            self.owes.setdefault(giver, []).extend(pieces)

    def offers(self, giver: int, offer: OfferedState = SAME) -> None:
        self.heard(self.taking.offered(giver, offer))

    def gives(self, giver: int, offer: OfferedState = SAME) -> None:
        index = self.owes[giver].pop(0)
        chunk = said.StateChunk(round=offer.round, index=index, of=offer.of)
        self.gave[giver] = self.gave.get(giver, 0) + 1
        self.heard(self.taking.came(chunk, giver, np.full(1, index, np.float32)))

    def is_gone(self, giver: int) -> None:
        self.owes.pop(giver, None)
        self.heard(self.taking.lost(giver))

    def all_give(self, *givers: int, offer: OfferedState = SAME) -> None:
        while self.taking.whole() is None and any(self.owes.get(giver) for giver in givers):
            for giver in givers:
                if self.owes.get(giver) and self.taking.whole() is None:
                    self.gives(giver, offer)

    def is_whole(self, of: int = SAME.of) -> bool:
        state = self.taking.whole()
        return state is not None and state.tolist() == list(range(of))


def test_pieces_come_from_all_that_have_the_same_state() -> None:
    givers = Givers()
    for giver in (1, 2, 3):
        givers.offers(giver)
    assert {giver: len(owed) for giver, owed in givers.owes.items()} == {1: AT_ONCE, 2: AT_ONCE, 3: AT_ONCE}
    givers.all_give(1, 2, 3)
    assert givers.is_whole()
    assert min(givers.gave.values()) > AT_ONCE
    assert sum(givers.gave.values()) <= SAME.of + 2 * AT_ONCE, "little comes twice"


def test_one_alone_gives_all_of_it() -> None:
    givers = Givers()
    givers.offers(1)
    givers.all_give(1)
    assert givers.is_whole()
    assert givers.gave == {1: SAME.of}


@pytest.mark.parametrize("given", [0, 1, 5])
def test_who_is_gone_is_replaced(given: int) -> None:
    givers = Givers()
    givers.offers(1)
    givers.offers(2)
    for _ in range(given):
        givers.gives(1)
    givers.is_gone(1)
    givers.all_give(2)
    assert givers.is_whole()
    assert givers.gave[2] == SAME.of - given


def test_who_is_slow_is_not_waited_for() -> None:
    givers = Givers()
    givers.offers(1)
    givers.offers(2)
    givers.gives(1)
    givers.all_give(2)
    assert givers.is_whole()


@pytest.mark.parametrize(
    "other", [OfferedState(3, 40, "another"), OfferedState(3, 41, "the same"), OfferedState(2, 40, "the same")]
)
def test_another_state_is_not_mixed_with_it(other: OfferedState) -> None:
    givers = Givers()
    givers.offers(1)
    givers.offers(2, other)
    assert 2 not in givers.owes
    givers.all_give(1)
    assert givers.is_whole()


def test_another_state_is_taken_from_its_begin_if_the_first_is_lost() -> None:
    givers, other = Givers(), OfferedState(4, 3, "another")
    givers.offers(1)
    givers.offers(2, other)
    givers.gives(1)
    givers.is_gone(1)
    givers.all_give(2, offer=other)
    assert givers.is_whole(of=3)


def test_states_without_a_digest_are_not_mixed() -> None:
    givers, nameless = Givers(), OfferedState(3, 40, "")
    givers.offers(1, nameless)
    givers.offers(2, nameless)
    givers.all_give(1, 2, offer=nameless)
    assert givers.is_whole()
    assert givers.gave == {1: 40}


@given(st.data())
def test_whatever_happens_it_comes_if_somebody_is_left(data: st.DataObject) -> None:
    givers = Givers()
    of = OfferedState(3, data.draw(st.integers(1, 60)), "the same")
    left = [1, 2, 3, 4]
    for _ in range(data.draw(st.integers(0, 150))):
        giver = data.draw(st.sampled_from(left))
        what = data.draw(st.sampled_from(["offers", "gives", "gives", "gives", "is gone"]))
        if givers.taking.whole() is not None:
            break
        if what == "offers" and giver not in givers.owes:
            givers.offers(giver, of)
        elif what == "gives" and givers.owes.get(giver):
            givers.gives(giver, of)
        elif what == "is gone" and len(left) > 1:
            left.remove(giver)
            givers.is_gone(giver)
    if left[0] not in givers.owes:
        givers.offers(left[0], of)
    givers.all_give(left[0], offer=of)
    assert givers.is_whole(of.of)


# -- in a rank's machine


def test_what_a_keeper_that_is_gone_had_not_sent_is_asked_of_rank_0() -> None:
    talk = led_to("rank", RankState.WORKING)
    reducers = talk.machine._exchange.stripes.reducers(1)
    talk.computes()
    talk.parts_come()
    talk.happens(happening.PeerLost(peer=1))
    talk.go(2)
    wanted = sent(talk.timer(Timer.CATCH_UP), said.Want)
    assert {want.to for want in wanted} == {0}
    asked = {index for want in wanted for index in want.message.chunks}
    assert asked == {index for index, reducer in enumerate(reducers) if reducer != 2}
    assert talk.machine.state is RankState.WORKING


def test_rank_0_holds_whole_sums_of_short_vectors() -> None:
    talk = led_to("coordinator", RankState.WORKING)
    talk._round_goes_by()
    talk.begin()
    (total,) = of_type(talk.done, happening.Aggregated)
    right = total.vector.tolist()
    total.vector[:] = -1.0  # it is the script's to write in
    talk.happens(happening.PeerFound(peer=1))  # nothing is on its way to it
    actions = talk.hears(1, said.Want(round=1, chunks=(0, 1, 2, 9)))
    for _ in range(3):
        actions += talk.happens(happening.Drained(peer=1))
    found = {one.message.index: one.data.tolist() for one in sent(actions, said.SumChunk) if one.message.round == 1}
    assert [number for index in sorted(found) for number in found[index]] == right


def test_a_rank_takes_the_state_from_two_and_tells_them_when_it_has_it() -> None:
    talk = led_to("rank", RankState.RENEWING)
    offer = said.StateOffer(round=1, of=20, digest="x")
    asked = {one.to: one.message.pieces for giver in (0, 1) for one in sent(talk.hears(giver, offer), said.Take)}
    assert set(asked) == {0, 1}
    assert set(asked[0]).isdisjoint(asked[1])
    wanted = [(giver, index) for giver, pieces in asked.items() for index in pieces]
    actions = []
    for giver, index in wanted:
        actions = talk.hears(giver, said.StateChunk(round=1, index=index, of=20), float(index))
        for one in sent(actions, said.Take):
            wanted += [(one.to, piece) for piece in one.message.pieces]
        if talk.machine.state is RankState.RESTING:
            break
    (renewed,) = of_type(actions, happening.Renewed)
    assert renewed.state.tolist() == [float(index) for index in range(20) for _ in range(2)]
    assert {(one.to, one.message.pieces) for one in sent(actions, said.Take)} == {(0, ()), (1, ())}


def test_a_giver_forgets_what_nobody_takes_any_more() -> None:
    talk = led_to("rank", RankState.WORKING)
    assert of_type(talk.hears(0, said.Give(round=1, to=1)), happening.Pack)
    talk.happens(happening.StatePacked(round=0, state=np.arange(5, dtype=np.float32), digest="x"))
    assert talk.machine.states_held == 1
    (chunk,) = sent(talk.hears(1, said.Take(round=0, pieces=(2, 7))), said.StateChunk)
    assert chunk.data.tolist() == [4.0]
    talk.hears(1, said.Take(round=0))
    assert talk.machine.states_held == 0
    assert sent(talk.hears(1, said.Take(round=0, pieces=(0,))), said.Past)
    talk.hears(0, said.Give(round=1, to=1))
    talk.happens(happening.StatePacked(round=0, state=np.arange(5, dtype=np.float32), digest="x"))
    talk.happens(happening.PeerLost(peer=1))
    assert talk.machine.states_held == 0


def test_several_are_asked_to_give_and_rank_0_if_that_was_in_vain() -> None:
    talk = led_to("coordinator of groups", RankState.WORKING)
    talk.computes()
    talk.parts_come()
    talk.sums_come()
    talk.begin()
    for rank in (1, 2, 3):
        talk.hears(rank, said.Status(round=2))
    asked = {one.to for one in sent(talk.hears(3, said.Renew(round=2)), said.Give)}
    assert asked == {1, 2}
    assert len(asked) <= GIVERS
    assert of_type(talk.hears(3, said.Renew(round=2)), happening.Pack)
