"""What a parent learns of its children, and what it may bet."""

from __future__ import annotations

import pytest

from codedreduce.protocol import Settings
from codedreduce.protocol.tree.redundancy import REMEMBERED, Experience

SETTINGS = Settings(length=4, head_start=0.2)


def after_rounds(rounds: int, deliveries: list[float], worked: float = 1.0, children: int = 0) -> Experience:
    """What is known when each child has delivered so long after every round's begin, having worked as long as all."""
    experience = Experience(children or len(deliveries), SETTINGS)
    for _ in range(rounds):
        for child, after in enumerate(deliveries, start=1):
            experience.delivered(child, after, worked, worked)
    return experience


# -- head starts


def test_a_head_start_is_as_long_as_a_share_while_nothing_is_known() -> None:
    experience = Experience(4, SETTINGS)
    assert not experience.is_known
    assert experience.head_start(3.0) == 3.0
    for child in (1, 2, 3):
        experience.delivered(child, 1.0, 1.0, 1.0)
        assert experience.head_start(3.0) == 3.0
    experience.delivered(4, 1.0, 1.0, 1.0)
    assert experience.is_known
    assert experience.head_start(3.0) == pytest.approx(0.6)


def test_a_large_family_is_known_before_all_have_delivered() -> None:
    experience = Experience(10 * REMEMBERED, SETTINGS)
    for child in range(REMEMBERED):
        assert not experience.is_known
        experience.delivered(child, 1.0, 1.0, 1.0)
    assert experience.is_known


def test_children_that_deliver_together_get_a_fraction_of_a_share() -> None:
    assert after_rounds(5, [1.0, 1.0, 1.0, 1.0]).head_start(1.0) == pytest.approx(0.2)


def test_children_that_deliver_far_apart_get_as_much_as_they_are_apart() -> None:
    """Not by when they have their models, which each child's lag tells, but by how long the same work takes."""
    experience = Experience(4, SETTINGS)
    for _ in range(20):
        for child, worked in enumerate((1.0, 3.0, 3.0, 3.0), start=1):
            experience.delivered(child, worked, worked, 1.0)
    assert experience.head_start(1.0) == pytest.approx(2.0)
    assert experience.head_start(50.0) == pytest.approx(10.0), "the fraction, where that is more"


def test_a_few_stragglers_make_nobody_s_head_start_longer() -> None:
    experience = Experience(4, SETTINGS)
    for _ in range(20):
        for child, worked in enumerate((1.0, 1.0, 1.0, 60.0), start=1):
            experience.delivered(child, worked, worked, 1.0)
    assert experience.head_start(1.0) == pytest.approx(0.2)


def test_a_child_s_lag_is_what_its_round_is_longer_than_its_work() -> None:
    experience = after_rounds(1, [1.5, 4.0])
    assert (experience.lag(1), experience.lag(2), experience.lag(3)) == (0.5, 3.0, None)
    experience.delivered(1, 2.5, 1.0, 1.0)
    assert experience.lag(1) == pytest.approx(0.75 * 0.5 + 0.25 * 1.5)
    experience.delivered(2, 1.0, 9.0, 1.0)
    assert experience.lag(2) == pytest.approx(0.75 * 3.0), "never less than nothing"


def test_where_no_head_start_is_wanted_there_is_none() -> None:
    experience = Experience(2, Settings(length=4, head_start=0.0, least_head_start=0.01))
    assert experience.head_start(5.0) == 0.01
    assert Experience(2, Settings(length=4, least_head_start=7.0)).head_start(5.0) == 7.0


# -- bets


def lose(experience: Experience, bets: int) -> None:
    for task in range(1, bets + 1):
        assert experience.may_bet(task - 1), "a storm is met at once"
        experience.bet_made()
        experience.on_time(task)


def after_calm(children: int) -> Experience:
    """A parent that has saved all it may."""
    return after_rounds(5, [1.0] * children)


def test_a_storm_after_a_calm_time_is_met_at_once() -> None:
    """All ten children late at a time: all may be bet on."""
    lose(after_calm(10), 10)


def test_a_parent_begins_with_half_of_what_it_may_save() -> None:
    experience = Experience(10, SETTINGS)
    lose(experience, 5)
    assert [experience.may_bet(already) for already in range(4)] == [True, True, False, False]


def test_lost_bets_use_up_what_was_saved_and_then_a_fifth_at_a_time_is_left() -> None:
    experience = after_calm(10)
    lose(experience, 10)
    assert [experience.may_bet(already) for already in range(4)] == [True, True, False, False]


def test_there_is_always_one_bet() -> None:
    experience = after_calm(2)
    lose(experience, 2)
    assert [experience.may_bet(already) for already in range(2)] == [True, False]


def test_every_share_that_is_delivered_saves_a_fifth_of_a_bet() -> None:
    experience = after_calm(10)
    lose(experience, 10)
    for child in range(1, 5):
        experience.delivered(child, 1.0, 1.0, 1.0)
        assert not experience.may_bet(5)
    experience.delivered(5, 1.0, 1.0, 1.0)
    assert experience.may_bet(5)
    experience.bet_made()
    assert not experience.may_bet(5)


def test_what_is_saved_has_an_end() -> None:
    experience = after_rounds(1000, [1.0] * 10)
    lose(experience, 10)
    assert not experience.may_bet(5)


def test_bets_that_are_won_cost_nothing() -> None:
    experience = after_calm(10)
    for task in range(1, 101):
        assert experience.may_bet(9)
        experience.bet_made()
        experience.bet_won(task, counted=True)
    lose(experience, 10)
    experience.bet_won(1, counted=False)
    assert not experience.may_bet(5), "one that took nothing gives nothing back"


def test_who_needed_it_last_time_is_needy_until_it_is_on_time() -> None:
    experience = Experience(4, SETTINGS)
    assert not experience.is_needy(2)
    experience.bet_won(2, counted=True)
    assert experience.is_needy(2)
    experience.on_time(2)
    assert not experience.is_needy(2)
    experience.bet_won(2, counted=True)
    experience.on_time(2)
    assert not experience.is_needy(2)
