"""What the leader decides about late ranks and silent reducers, and the reason that it gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codedreduce.protocol.core.policy import Policy
from codedreduce.protocol.leader.missing_sums import MissingSums, ReducerView, decide_on_reducer
from codedreduce.protocol.leader.stragglers import RankView, Remedy, decide

#: A rank that should have done four blocks after a second, and has a margin of 0.2 s.
LATE = RankView(rank=3, since=10.0, expected=1.0, margin=0.2, pace=0.25, moved=10.0)

#: The same rank, which has just answered; and after two blocks.
ANSWERED = replace(LATE, heard=11.05)
HALF = replace(ANSWERED, has_begun=True, moved=10.9)


@pytest.mark.parametrize(
    ("view", "now", "remedy", "reason"),
    [
        (LATE, 11.05, Remedy.ASK, "rank 3 is late by 0.05 s, 0.25 times its margin"),
        (replace(LATE, is_present=False), 10.1, Remedy.TAKE_ALL, "rank 3 cannot be reached"),
        (replace(LATE, is_present=False, asked=10.0), 99.0, Remedy.TAKE_ALL, "rank 3 cannot be reached"),
        (replace(LATE, is_helping=True), 10.2, Remedy.TAKE_REST, "rank 3 does the work of others"),
        (replace(LATE, is_helping=True), 11.1, Remedy.ASK, "rank 3 is late by 0.1 s, 0.5 times its margin"),
        (replace(LATE, asked=11.05), 11.1, Remedy.WAIT, "rank 3 has not answered for 0.05 s"),
        (
            replace(LATE, asked=11.05), 11.42, Remedy.REPLACE,
            "rank 3 has not answered for 0.37 s; it is late by 0.42 s, 2.1 times its margin",
        ),
        (replace(LATE, heard=10.5), 11.05, Remedy.ASK, "rank 3 is late by 0.05 s, 0.25 times its margin"),
        (ANSWERED, 11.06, Remedy.WAIT, "rank 3 answers, but has not begun"),
        (
            ANSWERED, 11.11, Remedy.TAKE_ALL,
            "rank 3 answers, but has not begun; it is late by 0.11 s, 0.55 times its margin",
        ),
        (replace(ANSWERED, shows_progress=False), 11.11, Remedy.WAIT, "rank 3 answers, but has not begun"),
        (replace(ANSWERED, is_current=False), 11.15, Remedy.WAIT, "rank 3 answers, but has not begun"),
        (HALF, 11.06, Remedy.TAKE_REST, "rank 3 is late by 0.06 s, 0.3 times its margin"),
        (
            replace(HALF, heard=11.6), 11.61, Remedy.TAKE_ALL,
            "rank 3 answers, but has not done a block for 0.71 s",
        ),
    ],
)  # fmt: skip
def test_a_decision_about_a_late_rank(view: RankView, now: float, remedy: Remedy, reason: str) -> None:
    decision = decide(view, now)
    assert (decision.remedy, decision.reason) == (remedy, reason)
    assert decision.until > now or remedy not in (Remedy.WAIT, Remedy.ASK)


def test_a_rank_is_checked_again_when_the_decision_can_change() -> None:
    for view in (replace(LATE, asked=11.05), ANSWERED, replace(ANSWERED, is_current=False)):
        decision = decide(replace(view, heard=view.heard and 11.1), 11.06)
        assert decision.remedy is Remedy.WAIT
        later = decision.until + 1e-9
        assert decide(replace(view, heard=view.heard and later), later).remedy is not Remedy.WAIT


def test_no_rank_is_stuck_before_it_is_late_by_a_part_of_a_vector() -> None:
    slow = replace(ANSWERED, heard=11.3, vector=1.0)
    assert decide(slow, 11.3).until == 11.5
    assert decide(slow, 11.3, Policy(vector_margin=0.2)).remedy is Remedy.TAKE_ALL


def test_a_late_start_of_all_ranks_delays_only_work_that_may_be_done_twice() -> None:
    late = replace(ANSWERED, delay=0.5, spread=0.3)
    assert decide(late, 11.11).remedy is Remedy.TAKE_ALL
    assert decide(replace(late, asked=11.05, heard=None), 11.7).until == pytest.approx(11.8)


MISSING = ReducerView(reducer=2, checks=9, units=6)


@pytest.mark.parametrize(
    ("view", "remedy", "reason"),
    [
        (MISSING, Remedy.ASK, "the sums of rank 2 do not arrive"),
        (replace(MISSING, has_sent=True), Remedy.WAIT, "rank 2 sends"),
        (replace(MISSING, is_present=False), Remedy.REPLACE, "rank 2 cannot be reached"),
        (replace(MISSING, is_own=True, lacks=(1, 4)), Remedy.REDO, "rank 2 lacks units 1, 4"),
        (replace(MISSING, was_asked=True), Remedy.REPLACE, "rank 2 does not answer"),
        (replace(MISSING, was_asked=True, lacks=(4,)), Remedy.REDO, "rank 2 lacks unit 4"),
        (
            replace(MISSING, was_asked=True, lacks=(4,), was_served=True), Remedy.REPLACE,
            "rank 2 lacks unit 4, which others have computed again",
        ),
        (
            replace(MISSING, was_asked=True, lacks=()), Remedy.REPLACE,
            "rank 2 lacks nothing, and its sums do not arrive",
        ),
        (
            replace(MISSING, checks=2, was_asked=True, lacks=(1, 2, 3)), Remedy.WAIT,
            "rank 2 lacks 3 units: vectors are slow, not lost",
        ),
        (replace(MISSING, was_asked=True, lacks=(1, 2, 3)), Remedy.REDO, "rank 2 lacks units 1, 2, 3"),
    ],
)  # fmt: skip
def test_a_decision_about_a_reducer(view: ReducerView, remedy: Remedy, reason: str) -> None:
    decision = decide_on_reducer(view)
    assert (decision.remedy, decision.reason) == (remedy, reason)


def test_a_unit_that_two_reducers_lack_is_computed_again_once() -> None:
    sums = MissingSums(stripes=tuple(range(rank, rank + 1) for rank in range(6)))
    for _ in range(2):
        steps = sums.steps([3, 4], [], set(range(6)))
        for reducer in (3, 4):
            sums.said(reducer, (5,))
    assert steps.redo == ((5, "rank 3 lacks unit 5"),)
