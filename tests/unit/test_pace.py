"""What is known of ranks' times, and of what a vector takes on a link."""

from __future__ import annotations

import pytest

from codedreduce.protocol.core.policy import DEFAULT_POLICY
from codedreduce.protocol.leader.pace import NEVER, Links, Pace
from codedreduce.protocol.leader.participation import Participation


def after(*rounds: dict[int, float]) -> Pace:
    pace = Pace(4)
    for blocks in rounds:
        pace.refresh()
        for rank, each in blocks.items():
            pace.did(rank, each, 8)
    pace.refresh()
    return pace


def test_a_rank_is_as_slow_as_in_most_rounds() -> None:
    calm = dict.fromkeys(range(4), 1.0)
    assert after(calm, calm, {**calm, 2: 3.0}).block(2) == 1.0
    assert after(calm, {**calm, 2: 3.0}, {**calm, 2: 3.0}, {**calm, 2: 3.0}).block(2) == 3.0


def test_a_rank_that_recovers_is_known_to_at_once() -> None:
    slow = {0: 1.0, 1: 1.0, 2: 3.0}
    assert after(slow, slow, slow, {**slow, 2: 1.0}).block(2) == 1.0


def test_what_is_done_in_one_round_counts_once() -> None:
    pace = Pace(2)
    pace.did(0, 1.0, 8)
    for _ in range(8):
        pace.did(0, 2.0, 1)
    assert pace.block(0) == pytest.approx(1.5)


def test_only_a_rank_that_always_begins_late_is_known_to() -> None:
    pace = Pace(2)
    for _ in range(4):
        pace.held_up(1, 0, 1.3)
    assert pace.lag(1) == NEVER
    pace.began(1, 0.1)
    assert pace.lag(1) == 0.0
    for lag in (2.0, 1.0, 0.0, 3.0):
        pace.began(0, lag)
    assert pace.lag(0) == 0.0


@pytest.mark.parametrize("vector", [0.01, 0.3, 2.0])
def test_a_vector_s_seconds_are_learnt_from_a_calm_round(vector: float) -> None:
    links = Links(6)
    links.begin([range(rank, rank + 1) for rank in range(6)])
    for rank in range(6):
        links.sends(rank, 1.0)
    assert not links.is_known
    links.over(1.0, 1.0 + 2 * vector * 5 / 6)
    assert links.is_known
    assert links.vector == pytest.approx(vector, rel=0.1)


def test_a_link_carries_one_vector_after_the_other() -> None:
    links = Links(2)
    links.begin([range(0, 1), range(1, 2)])
    links.sends(1, 1.0)
    links.over(1.0, 2.0)
    links.begin([range(0, 1), range(1, 2)])
    links.sends(1, 5.0)
    links.sends(1, 5.0)
    assert links.free_at(1) == pytest.approx(5.0 + 2 * links.vector)
    assert links.end(at_all=True) > links.free_at(1)


@pytest.mark.parametrize("vector", [0.01, 0.3, 30.0])
def test_chunks_show_what_a_vector_takes_before_the_first_round_is_over(vector: float) -> None:
    links = Links(6, unknown=2.0)
    links.begin([range(2 * rank, 2 * rank + 2) for rank in range(6)])
    for rank in range(6):
        links.sends(rank, 1.0)
    links.look(1.0 + vector / 20)  # rank 5 sends to rank 0 first, and nothing has come
    assert not links.is_known
    assert links.vector == pytest.approx(vector / 2)
    links.came(5, 0, 1.0 + vector / 10)
    assert links.is_known
    assert links.vector == pytest.approx(vector)
    links.came(1, 1, 1.0 + 10 * vector)  # its link is slow; that is not what a vector takes
    assert links.vector == pytest.approx(vector)
    links.over_with_help()
    links.begin([range(rank, rank + 1) for rank in range(6)])
    assert links.vector == pytest.approx(vector)


def test_what_does_not_come_at_all_is_not_waited_for_without_end() -> None:
    links = Links(6, unknown=2.0)
    links.begin([range(rank, rank + 1) for rank in range(6)])
    links.sends(5, 1.0)
    links.look(1e6)
    assert links.vector == pytest.approx(10.0)
    assert links.end() == 1.0


def test_while_nothing_is_sent_nothing_is_known_of_vectors() -> None:
    links = Links(3)
    links.begin([range(0, 1), range(1, 2), range(2, 3)])
    links.sends(0, 1.0)
    links.look(5.0)
    assert links.vector == 0.0
    links.came(1, 0, 5.0)  # of which nobody has said that it was done
    assert not links.is_known


# -- who takes part


def in_round(round_: int, present: int = 6) -> Participation:
    standing = Participation()
    for rank in range(present):
        standing.came(rank)
    for number in range(1, round_ + 1):
        standing.begin(number, float(number))
        if number < round_:
            for rank in range(present):
                standing.heard(rank, float(number))
    return standing


def test_a_rank_that_was_silent_for_a_round_is_given_nothing_until_it_is_heard_of() -> None:
    standing = in_round(3)
    for rank in (0, 1, 2, 3, 4):
        standing.heard(rank, 3.0)
    standing.begin(4, 4.0)
    assert standing.taking_part() == [0, 1, 2, 3, 4]
    assert not standing.can_help(5)
    for rank in range(6):
        standing.heard(rank, 4.1)
    standing.begin(5, 5.0)
    assert standing.taking_part() == list(range(6))


def test_when_most_are_silent_they_are_awaited() -> None:
    standing = in_round(3)
    standing.heard(1, 3.0)
    for rank in (2, 3, 4, 5):
        standing.fell_behind(rank)
    standing.begin(4, 4.0)
    assert standing.taking_part() == list(range(6))


def test_a_rank_that_cannot_deliver_comes_back_when_it_begins_in_time() -> None:
    standing = in_round(3)
    standing.leave_out(2)
    for number in range(4, 4 + 2 * DEFAULT_POLICY.excluded_rounds):
        for rank in range(6):
            standing.heard(rank, number - 1 + (0.9 if rank == 2 else 0.0))
        standing.begin(number, float(number))
        assert standing.is_left_out(2)
    for _ in range(2):
        number += 1
        for rank in range(6):
            standing.heard(rank, number - 1.0)
        standing.begin(number, float(number))
    assert not standing.is_left_out(2)


def test_a_new_rank_shows_itself_first() -> None:
    standing = in_round(3)
    standing.gone(4)
    assert standing.current() == [0, 1, 2, 3, 5]
    standing.came(4)
    assert not standing.is_current(4)
    standing.heard(4, 3.5)
    assert standing.is_current(4)
