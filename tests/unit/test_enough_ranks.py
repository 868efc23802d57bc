"""A striped run begins with enough ranks, if it may; who never came has no say in who leads."""

from dataclasses import replace

from codedreduce.protocol import Rank
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.events import EveryoneIn, PeerLost, Transmit
from codedreduce.protocol.core.membership import run_name
from tests.unit.conversation import OF_RANKS, STRIPED, Talk, of_type


def leader(least: int | None) -> Talk:
    return Talk(Rank(0, STRIPED, replace(OF_RANKS, least=least)))


def comes(talk: Talk, rank: int) -> list[object]:
    hello = said.Hello(plan=run_name(STRIPED, OF_RANKS))
    return [*talk.hears(rank, hello), *talk.hears(rank, said.Status(round=1))]


def test_all_are_waited_for_unless_fewer_are_enough() -> None:
    talk = leader(least=None)
    talk.happens(PeerLost(peer=2))
    assert not of_type(comes(talk, 1), EveryoneIn)
    talk = leader(least=2)
    assert not of_type(comes(talk, 1), EveryoneIn), "rank 2 may be on its way"
    assert of_type(talk.happens(PeerLost(peer=2)), EveryoneIn)
    assert not of_type(talk.happens(PeerLost(peer=2)), EveryoneIn), "it is said once"


def test_it_goes_on_without_who_never_came_and_waits_for_who_was_there() -> None:
    talk = leader(least=2)
    talk.happens(PeerLost(peer=2))
    comes(talk, 1)
    goes = [action for action in talk.begin() if isinstance(action, Transmit) and isinstance(action.message, said.Go)]
    assert [action.to for action in goes] == [1]
    assert talk.machine._election.voters() == {0, 1}
    talk.happens(PeerLost(peer=1))
    assert talk.machine._election.voters() == {0, 1}, "that it cannot be reached is no proof"
