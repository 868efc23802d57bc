"""Ranks that come late take the others' state; those that catch up when a run ends are waited for."""

from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.rank.leaving import GRACES
from tests.unit.conversation import Talk, led_to, of_type, sent


def fire(talk: Talk) -> list[object]:
    return talk.happens(happening.TimerFired(name=Timer.END))


def test_who_is_silent_when_a_run_ends_is_not_waited_for() -> None:
    talk = led_to("coordinator", RankState.ENDING)
    assert of_type(fire(talk), happening.Finished)


def test_who_catches_up_is_waited_for_as_long_as_it_does() -> None:
    talk = led_to("coordinator", RankState.ENDING)
    for message in (said.Status(round=0), said.Want(round=0, chunks=(0,)), said.Renew(round=0), said.Status(round=0)):
        talk.hears(2, message)
        (again,) = of_type(fire(talk), happening.SetTimer)
        assert again.name == Timer.END
    assert of_type(fire(talk), happening.Finished)


def test_but_not_for_ever() -> None:
    talk = led_to("coordinator", RankState.ENDING)
    for _ in range(GRACES - 1):
        talk.hears(2, said.Status(round=0))
        assert not of_type(fire(talk), happening.Finished)
    talk.hears(2, said.Status(round=0))
    assert of_type(fire(talk), happening.Finished)


def test_those_that_are_through_hold_up_nobody() -> None:
    talk = led_to("coordinator", RankState.ENDING)
    talk.hears(2, said.Status(round=0))
    talk.hears(2, said.Have(round=0))
    assert of_type(fire(talk), happening.Finished)


def test_a_rank_that_comes_late_begins_where_the_others_are_and_takes_their_state() -> None:
    talk = led_to("rank", RankState.JOINING)
    talk.hears(0, said.Welcome(round=7))
    assert talk.machine.round == 7
    begun = talk.begin()
    assert talk.machine.round == 8
    assert talk.machine.state is RankState.RENEWING
    assert [one.message.round for one in sent(begun, said.Renew)] == [8]
    assert not of_type(begun, happening.Compute)
    talk.hears(0, said.StateOffer(round=7, of=1, digest="the state"))
    (renewed,) = of_type(talk.hears(0, said.StateChunk(round=7, index=0, of=1), 3.0), happening.Renewed)
    assert renewed.round == 7
    talk.begin()
    talk.go(round_=8)
    assert talk.machine.state is RankState.WORKING


def test_a_rank_that_leaves_its_loop_before_the_end_that_it_knows_of_is_told() -> None:
    """Also if it is so late that the others are through, and nobody goes on."""
    ends = (said.End(round=7), said.Goodbye(round=7, reason="all rounds are done"))
    for before in (True, False):
        for end in ends[:1] if before else ends:
            talk = led_to("rank", RankState.WORKING)
            if before:
                talk.hears(0, end)
            talk.leave()
            talk.hears(0, end)
            assert "left its loop after round 0, and the run ended after round 7" in (talk.machine.left_alone or "")


def test_a_rank_that_leaves_its_loop_with_the_others_is_not() -> None:
    talk = led_to("rank", RankState.RESTING)
    last = talk.machine.round
    talk.hears(0, said.End(round=last))
    talk.leave()
    talk.hears(0, said.Goodbye(round=last, reason="all rounds are done"))
    assert talk.machine.state is RankState.LEFT
    assert talk.machine.left_alone is None
