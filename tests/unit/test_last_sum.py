"""Who has the sum of a round computes nothing of it any more, and may be the only one who can tell what it was."""

from codedreduce.protocol import events as happening
from codedreduce.protocol import messages as said
from codedreduce.protocol.rank_table import RankState
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


def test_where_not_all_can_read_all_it_gives_the_sum_until_the_next_round_begins() -> None:
    talk = with_the_sum("rank that keeps nothing")
    chunks = sent(talk.hears(0, said.Want(round=1, chunks=(0, 2, 99))), said.SumChunk)
    assert [chunk.message.index for chunk in chunks] == [0, 2]
    assert all((chunk.data == 6.0).all() for chunk in chunks)
    talk.go(round_=2)
    answer = talk.hears(0, said.Want(round=1, chunks=(0, 2)))
    assert not sent(answer, said.SumChunk)
    assert sent(answer, said.Past)


def test_else_only_keepers_do() -> None:
    assert not sent(with_the_sum("rank").hears(0, said.Want(round=1, chunks=(0,))), said.SumChunk)


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
