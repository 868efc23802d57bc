"""Who has the sum of a round computes nothing of it any more, and may be the only one who can tell what it was."""

import numpy as np
import pytest

from codedreduce.protocol import Settings
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.settings import HELD_BYTES
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.rank.sums import PastSums, SumAssembly
from tests.unit.conversation import Talk, led_to, of_type, sent


def with_the_sum(name: str) -> Talk:
    """A rank that has got all of the first round's sum from others, and its script has it."""
    talk = led_to(name, RankState.WORKING)
    for index in range(talk.machine.settings.chunks):
        talk.hears(1, said.SumChunk(round=1, index=index), 6.0)
    (sum_,) = of_type(talk.done, happening.Aggregated)
    sum_.vector[:] = 0.0  # a script may do with it what it likes
    return talk


def test_it_says_that_all_is_done() -> None:
    talk = with_the_sum("rank")
    (done,) = sent(talk.hears(0, said.Do(round=1, parts=((1, 0, 2),))), said.Done)
    assert done.message.block == 0.0
    assert not of_type(talk.done[-1:], happening.Compute)


@pytest.mark.parametrize("name", ["rank", "rank that keeps nothing"])
def test_it_gives_the_sum_also_when_the_next_round_is_on(name: str) -> None:
    """Its keeper may be gone, and nobody computes anything of that round any more."""
    talk = with_the_sum(name)
    for index in (0, 2):
        (chunk,) = sent(talk.hears(0, said.Want(round=1, chunks=(index, 99))), said.SumChunk)
        assert chunk.message.index == index
        assert (chunk.data == 6.0).all()
        talk.happens(happening.Drained(peer=0))
        talk.go(round_=2)


def test_sums_are_held_as_far_as_a_few_megabytes_go() -> None:
    settings = Settings(length=100, chunk=30, dtype=np.dtype(f"V{HELD_BYTES // 300}"))
    past = PastSums(settings)
    for round_ in range(1, 6):
        total = SumAssembly(round_, settings)
        for index in range(settings.chunks):
            total.add(index, np.full(len(range(100)[settings.chunk_slice(index)]), float(round_)))
        past.hold(total)
        past.check_invariants()
    assert [dict(past.chunks(round_, (0, 3))).keys() == {0, 3} for round_ in range(1, 6)] == [False] * 2 + [True] * 3
    assert (dict(past.chunks(4, (3,)))[3] == np.full(10, 4.0)).all()


def behind() -> Talk:
    """A rank in round 1 that rank 0 keeps all of, when rank 0 has begun round 2."""
    talk = led_to("rank", RankState.WORKING)
    talk.go(round_=2)
    return talk


def test_one_that_is_behind_asks_who_leads_for_what_a_keeper_no_longer_has() -> None:
    talk = behind()
    done = talk.timer(Timer.CATCH_UP)
    reducers = {want.to: want.message.chunks for want in sent(done, said.Want)}
    other = next(reducer for reducer in reducers if reducer != 0)
    (want,) = sent(talk.hears(other, said.Past(round=1)), said.Want)
    assert want.to == 0
    assert want.message.chunks == reducers[other]
    assert talk.machine.state is RankState.WORKING
    talk.hears(0, said.Past(round=1))
    assert talk.machine.state is RankState.RENEWING


def test_it_asks_who_leads_for_what_one_kept_that_is_gone_or_does_not_answer() -> None:
    for is_gone in (True, False):
        talk = behind()
        wants = sent(talk.timer(Timer.CATCH_UP), said.Want)
        other = next(want for want in wants if want.to != 0)
        if is_gone:
            talk.happens(happening.PeerLost(peer=other.to))
        wants = [want for _ in range(2) for want in sent(talk.timer(Timer.CATCH_UP), said.Want)]
        asked = {chunk for want in wants if want.to == 0 for chunk in want.message.chunks}
        assert asked.issuperset(other.message.chunks)
        assert talk.machine.state is RankState.WORKING


def test_while_nobody_leads_it_does_not_give_up() -> None:
    talk = behind()
    talk.happens(happening.PeerLost(peer=0))
    for _ in range(20):
        talk.timer(Timer.CATCH_UP)
    assert talk.machine.state is RankState.WORKING


def test_what_comes_of_the_next_sum_is_kept_for_when_this_one_is_through() -> None:
    talk = led_to("rank", RankState.WORKING)
    talk.go(round_=2)  # it was overtaken
    chunks = range(talk.machine.settings.chunks)
    for round_ in (2, 1):
        for index in chunks:
            talk.hears(1, said.SumChunk(round=round_, index=index), float(round_))
    talk.begin()
    sums = of_type(talk.done, happening.Aggregated)
    assert [one.round for one in sums] == [1, 2]
    assert (sums[1].vector == 2.0).all()
    assert not [want for want in sent(talk.done, said.Want) if want.message.round == 2]


def test_a_rank_whose_sum_was_lost_learns_that_the_round_is_over_before_another_begins() -> None:
    """The connection that carried the sum broke after the last hello, and the leader's script takes its time."""
    leader = led_to("coordinator", RankState.WORKING)
    leader.computes()
    leader.goes_on()
    assert (leader.machine.state, leader.machine.round) == (RankState.RESTING, 1)
    late = led_to("rank", RankState.WORKING)
    late.computes()
    late.parts_come()
    (status,) = sent(late.timer(Timer.NO_NEWS), said.Status)
    (welcome,) = sent(leader.hears(2, status.message), said.Welcome)
    assert (welcome.to, welcome.message.round) == (2, 1)
    late.hears(0, welcome.message)
    wants = sent(late.timer(Timer.CATCH_UP), said.Want)
    missing = [index for index in range(late.machine.settings.chunks) if not late.machine.reducer.keeps(index)]
    assert sorted(chunk for want in wants for chunk in want.message.chunks) == missing
    for want in wants:
        for index in want.message.chunks:
            late.hears(want.to, said.SumChunk(round=1, index=index), 6.0)
    assert late.machine.state is RankState.RESTING
