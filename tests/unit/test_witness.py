"""Whoever has another model than most is named, once."""

import numpy as np
import pytest

from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.leader.members import DriftDetector
from tests.unit.conversation import Talk, led_to, of_type, sent

EVERYONE = range(4)


def told(witness: DriftDetector, round_: int, digests: str, present=EVERYONE) -> list[int]:
    """Ranks tell their digests in order, a letter each; who is named."""
    return [odd for rank, digest in enumerate(digests) for odd in witness.hear(rank, round_, digest, present)]


def test_before_the_first_round_rank_0_counts() -> None:
    assert told(DriftDetector(4), 1, "abbb") == [1, 2, 3]
    witness = DriftDetector(4)
    assert witness.hear(2, 1, "b", EVERYONE) == [], "nothing to compare with yet"
    assert witness.hear(0, 1, "a", EVERYONE) == [2]


@pytest.mark.parametrize(
    ("digests", "odd"),
    [
        ("aaaa", []),
        ("aaba", [2]),
        ("abbb", [0]),  # most against rank 0
        ("aabb", [2, 3]),  # a tie: those with rank 0
        ("abcd", [1, 2, 3]),
        ("abbc", [0, 3]),
    ],
)
def test_later_it_is_most_that_count(digests: str, odd: list[int]) -> None:
    assert told(DriftDetector(4), 2, digests) == odd


def test_nobody_is_named_before_all_have_told() -> None:
    witness = DriftDetector(4)
    assert told(witness, 2, "aab") == []
    assert witness.hear(3, 2, "a", EVERYONE) == [2]


def test_who_is_named_is_named_once() -> None:
    witness = DriftDetector(4)
    assert told(witness, 2, "aaba") == [2]
    assert told(witness, 2, "aaba") == []
    assert told(witness, 3, "aaba") == [2], "in another round it is news"


def test_who_is_gone_is_not_waited_for() -> None:
    assert told(DriftDetector(4), 2, "aab", present=(0, 1, 2)) == [2]


def test_what_comes_late_is_not_compared() -> None:
    witness = DriftDetector(4)
    told(witness, 3, "aaaa")
    assert witness.hear(2, 2, "b", EVERYONE) == []


# -- a coordinator that hears of it


def leader() -> Talk:
    talk = led_to("coordinator", RankState.RESTING)
    model = np.zeros(10, np.float32)
    talk.happens(happening.Begin(round=1, model=model, digest="a"))
    talk.computes()
    talk.parts_come()
    talk.sums_come()
    talk.happens(happening.Begin(round=2, model=model, digest="a"))
    return talk


def drifts(actions) -> list[tuple[int, ...]]:
    return [note.nodes for note in of_type(actions, happening.Note) if note.kind in ("drift", "renewed")]


def test_a_rank_that_drifts_is_named_once_and_told_to_take_the_state() -> None:
    talk = leader()
    talk.hears(1, said.Status(round=2, digest="a"))
    actions = talk.hears(2, said.Done(round=2, unit=2, first=0, last=2, digest="b"))
    assert drifts(actions) == [(2,)]
    (renew,) = sent(actions, said.Renew)
    assert renew.to == 2
    assert 2 not in talk.machine.lead.current()
    assert drifts(talk.hears(2, said.Status(round=2, digest="b"))) == []
    (give,) = sent(talk.hears(2, said.Renew(round=2)), said.Give)
    assert (give.to, give.message.to) == (1, 2), "one that is right gives it"


def test_rank_0_is_named_and_takes_the_state_of_most() -> None:
    talk = led_to("coordinator", RankState.RENEWING)
    assert drifts(talk.done) == [(0,)]
    assert {(give.to, give.message.to, give.message.round) for give in sent(talk.done, said.Give)} == {
        (1, 0, 3),
        (2, 0, 3),
    }
    talk.hears(1, said.StateOffer(round=1, of=1, digest="x"))  # one that is behind packed too early
    assert sent(talk.done, said.Take)[-1].message.pieces == ()
    talk.hears(2, said.StateOffer(round=2, of=1, digest="x"))
    (renewed,) = of_type(talk.hears(2, said.StateChunk(round=2, index=0, of=1), 5.0), happening.Renewed)
    assert (renewed.round, renewed.state.tolist()) == (2, [5.0, 5.0])
    assert sent(talk.begin("b"), said.Go), "and begins the round"


def test_rank_0_goes_on_if_nobody_is_left_to_take_the_state_of() -> None:
    talk = led_to("coordinator", RankState.RENEWING)
    talk.timer(Timer.CATCH_UP)
    assert len(sent(talk.done, said.Give)) == 4, "they are asked again"
    for rank in (1, 2):
        talk.happens(happening.PeerLost(peer=rank, dead=True))
    (renewed,) = of_type(talk.timer(Timer.CATCH_UP), happening.Renewed)
    assert renewed.state is None
    assert of_type(talk.begin(), happening.Compute)


def test_without_a_majority_rank_0_is_named_and_goes_on() -> None:
    talk = led_to("coordinator of groups", RankState.WORKING)
    talk._round_goes_by()
    talk.begin("a")
    for rank, digest in ((1, "b"), (2, "b"), (3, "c")):
        talk.hears(rank, said.Status(round=2, digest=digest))
    assert drifts(talk.done) == [(0,), (3,)]
    talk._round_goes_by()
    assert talk.machine.state is RankState.RESTING
    assert sent(talk.begin(), said.Go)


def test_one_that_is_behind_gives_its_state_when_it_has_come_to_the_round() -> None:
    talk = led_to("rank", RankState.WORKING)
    assert not of_type(talk.hears(0, said.Give(round=2, to=1)), happening.Pack)
    talk.computes()
    talk.parts_come()
    talk.sums_come()
    assert of_type(talk.begin(), happening.Pack)


def test_digests_of_rounds_that_are_not_on_are_not_heard() -> None:
    talk = leader()
    assert drifts(talk.hears(1, said.Status(round=2**53, digest="c"))) == []
    talk.hears(1, said.Status(round=2, digest="a"))
    assert drifts(talk.hears(2, said.Status(round=2, digest="b"))) == [(2,)]


def test_before_the_first_round_all_take_rank_0_s_state() -> None:
    talk = led_to("coordinator", RankState.RESTING)
    talk.hears(1, said.Status(round=1, digest="b"))
    actions = talk.happens(happening.Begin(round=1, model=np.zeros(10, np.float32), digest="a"))
    assert drifts(actions) == [(1,)]
    assert of_type(talk.hears(1, said.Renew(round=1)), happening.Pack), "rank 0 itself gives it"
    talk.happens(happening.StatePacked(round=0, state=np.arange(3, dtype=np.float32)))
    (offer,) = sent(talk.done, said.StateOffer)
    assert (offer.to, offer.message.round, offer.message.of) == (1, 0, 2)
    chunks = sent(talk.hears(1, said.Take(round=0, pieces=(1, 0))), said.StateChunk)
    assert [(chunk.to, chunk.message.round, chunk.data.tolist()) for chunk in chunks] == [
        (1, 0, [2.0]),
        (1, 0, [0.0, 1.0]),
    ]
