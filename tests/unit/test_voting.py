"""Whose word counts: deaths are known at once, new processes when all voters know of them."""

from itertools import combinations, pairwise

from codedreduce.protocol.core.messages import Voters
from codedreduce.protocol.election.voters import Voting

OLD, NEW = 1, 2


def voting(node: int, ranks: int = 3, process: int = OLD) -> Voting:
    one = Voting(node, process, range(ranks))
    one.learn(Voters(number=1, ranks=tuple((rank, OLD) for rank in range(ranks))), ())
    return one


def enough(one: Voting, among: set[int]) -> list[set[int]]:
    sets = (set(some) for count in range(len(among) + 1) for some in combinations(sorted(among), count))
    return [some for some in sets if one.is_enough(some)]


def test_more_than_half_or_half_with_the_first_of_those_that_live() -> None:
    one = voting(0, 4)
    assert one.is_enough({0, 1})
    assert not one.is_enough({1, 2})
    assert one.is_enough({1, 2, 3})
    one.died(3)
    assert one.is_enough({1, 2})
    one.died(1)
    one.died(2)
    assert one.is_enough({0})
    assert not one.is_enough(())


def test_a_new_process_counts_when_all_voters_know_of_it() -> None:
    leads, other = voting(1), voting(0)
    for one in (leads, other):
        one.died(2)
    leads.let_in(2, NEW)
    assert leads.advance(generation=1)
    assert leads.voters.coming == ((2, NEW),)
    assert not leads.is_enough({1, 2}), "rank 0 could lead without knowing of it"
    assert other.is_enough({0})
    other.learn(leads.voters, ())
    assert not other.is_enough({0})
    assert not leads.advance(generation=1), "rank 0 has not said so"
    leads.agrees(0, other.voters)
    assert leads.advance(generation=1)
    assert leads.is_enough({1, 2})


def test_whatever_two_know_at_a_time_what_is_enough_for_both_overlaps() -> None:
    """Rank 3 of 4 is replaced, and then rank 2; of each step that some know and others do not."""
    leads, steps = voting(0, 4), []
    steps.append(leads.voters)
    for rank in (3, 2):
        leads.let_in(rank, NEW)
        leads.advance(generation=4)
        steps.append(leads.voters)
        for voter in leads.unaware():
            leads.agrees(voter, leads.voters)
        leads.advance(generation=4)
        steps.append(leads.voters)
    for before, after in pairwise(steps):
        one, other = voting(0, 4), voting(1, 4)
        one.learn(before, ())
        other.learn(after, ())
        for some in enough(one, set(range(4))):
            assert all(some & others for others in enough(other, set(range(4)))), (before, after, some)


def test_one_that_is_unreachable_is_waited_for_and_one_that_is_dead_is_not() -> None:
    leads = voting(1)
    leads.let_in(2, NEW)
    leads.advance(generation=1)
    assert leads.unaware() == {0}
    leads.died(0)
    assert leads.advance(generation=1)
    assert leads.voters.ranks == ((1, OLD), (2, NEW))


def test_another_process_of_a_voter_is_not_that_voter() -> None:
    one = voting(0)
    one.is_there(2, NEW)
    assert one.living() == {0, 1}
    assert not one.is_voter(2, NEW)
    assert one.is_voter(1, OLD)


def test_a_death_that_is_heard_of_late_is_not_that_of_the_process_that_came_since() -> None:
    one = voting(0)
    one.learn(Voters(made_in=1, number=3, ranks=((0, OLD), (1, OLD), (2, NEW))), (2,))
    one.died(2)
    assert one.living() == {0, 1, 2}
    one.is_there(2, NEW)
    one.died(2)
    assert one.living() == {0, 1}


def test_a_voter_whose_process_was_not_known_at_first_is_known_to_be_dead_when_it_is() -> None:
    one = Voting(2, OLD, range(3))
    one.learn(Voters(made_in=0, number=0, ranks=((0, OLD), (1, 0), (2, OLD))), (), anyhow=True)
    one.learn(Voters(made_in=0, number=1, ranks=((0, OLD), (1, OLD), (2, OLD))), ())
    one.died(1)
    one.died(0)
    assert one.living() == {2}
    assert one.is_enough({2})


def test_earlier_voters_are_not_gone_back_to() -> None:
    one = voting(0)
    later = Voters(made_in=2, number=2, ranks=((0, OLD), (1, OLD)))
    one.learn(later, ())
    one.learn(Voters(made_in=1, number=9, ranks=((0, OLD),)), ())
    assert one.voters == later
