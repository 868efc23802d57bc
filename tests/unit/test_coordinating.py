"""What rank 0 tells the others to do, as it hears of them."""

from __future__ import annotations

import time

import pytest

from codedreduce import Striped
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import AnyAction, SetTimer, Transmit
from codedreduce.protocol.core.messages import Cut, Do, Done, Go, Message, NewReducer, Status, Tell, Want
from codedreduce.protocol.core.timers import Timer
from codedreduce.protocol.leader.scheduler import Scheduler
from codedreduce.schemes import Part

BLOCKS = 8


class Desk:
    """A coordinator, and what it has said."""

    def __init__(self, ranks: int = 6, reach: int | None = None) -> None:
        self.ranks = ranks
        self.said: list[tuple[int, Message]] = []
        self.timers: dict[str, float] = {}
        plan = Striped(ranks, stripes=ranks, blocks=BLOCKS, reach=reach or "all").plan(samples=100 * ranks)
        settings = Settings(length=4 * ranks, chunk=4, head_start=0.2)
        self.actions: list[AnyAction] = []
        self.lead = Scheduler(self.actions, plan, settings, lambda message, now: self.said.append((0, message)))
        for rank in range(ranks):
            self.lead.came(rank, 0.0)
        self.began = 0.0

    def read(self) -> None:
        for action in self.actions:
            if isinstance(action, Transmit):
                self.said.append((action.to, action.message))
            elif isinstance(action, SetTimer):
                self.timers[action.name] = action.at
        self.actions.clear()

    def hear_all(self, kind: type[Message]) -> list[tuple[int, Message]]:
        return [(rank, message) for rank, message in self.said if isinstance(message, kind)]

    def begin(self, round_: int, now: float) -> dict[int, Go]:
        self.said.clear()
        self.began = now
        self.lead.begin(round_, now)
        self.read()
        return {rank: go for rank, go in self.said if isinstance(go, Go)}

    def done(self, rank: int, part: Part, after: float, block: float = 0.125) -> None:
        done = Done(round=self.lead.round, unit=part.unit, first=part.first, last=part.last, block=block)
        self.lead.done(rank, done, self.began + after)
        self.read()

    def status(self, rank: int, done: int, after: float, lacks: tuple[int, ...] = ()) -> None:
        self.lead.status(rank, Status(round=self.lead.round, done=done, lacks=lacks), self.began + after)
        self.read()

    def look(self, after: float) -> None:
        self.lead.look(self.began + after)
        self.read()

    def sum_is_late(self, missing: list[int], own_lacks: list[int]) -> list[tuple[int, Message]]:
        """The timer that says so fires; what is said then, to whom."""
        self.said.clear()
        self.lead.sum_is_late(missing, own_lacks, self.timers[Timer.SUM_LATE])
        self.read()
        return list(self.said)

    def all_done(self) -> None:
        for rank in range(self.ranks):
            self.done(rank, self.own(rank), 1.0)

    def calm(self, rounds: int) -> None:
        """Rounds in which all are through after a second, and the sum is there a moment later."""
        for round_ in range(self.lead.round + 1, self.lead.round + 1 + rounds):
            goes = self.begin(round_, float(10 * round_))
            for rank, go in goes.items():
                for place in go.parts:
                    self.done(rank, Part(*place), 1.0)
            self.lead.over(self.began + 1.01)

    def own(self, rank: int) -> Part:
        return Part(rank, 0, BLOCKS)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.calm(4)
    return desk


def test_in_a_calm_round_everyone_is_told_once() -> None:
    desk = Desk()
    desk.calm(3)
    assert len(desk.said) == desk.ranks
    assert all(isinstance(message, Go) for _, message in desk.said)


def test_a_late_rank_is_asked_and_keeps_what_it_has_begun(desk: Desk) -> None:
    desk.begin(5, 50.0)
    for rank in (0, 1, 2, 4, 5):
        desk.done(rank, desk.own(rank), 1.0)
    assert not desk.hear_all(Tell)
    desk.look(1.06)
    assert [rank for rank, _ in desk.hear_all(Tell)] == [3]
    desk.status(3, 4, 1.061)
    ((rank, cut),) = desk.hear_all(Cut)
    assert rank == 3
    assert isinstance(cut, Cut)
    assert cut.end > 4
    taken = [place for _, do in desk.hear_all(Do) if isinstance(do, Do) for place in do.parts]
    assert sorted(first for _, first, _ in taken) == list(range(cut.end, BLOCKS))


def test_a_rank_that_answers_and_has_not_begun_is_relieved_of_all_after_half_the_head_start(desk: Desk) -> None:
    desk.begin(5, 50.0)
    for rank in (0, 1, 2, 4, 5):
        desk.done(rank, desk.own(rank), 1.0)
    desk.look(1.06)
    desk.status(3, 0, 1.061)
    assert not desk.hear_all(Do)
    desk.look(1.11)
    if not desk.hear_all(Do):
        desk.status(3, 0, 1.111)
    taken = [place for _, do in desk.hear_all(Do) if isinstance(do, Do) for place in do.parts]
    assert {first for _, first, _ in taken} == set(range(BLOCKS))


def test_a_silent_rank_is_bet_on_after_the_head_start_and_keeps_nothing(desk: Desk) -> None:
    desk.begin(5, 50.0)
    for rank in (0, 1, 2, 4, 5):
        desk.done(rank, desk.own(rank), 1.0)
    desk.look(1.06)
    desk.look(1.15)
    assert not desk.hear_all(Do)
    desk.look(1.25)
    assert desk.hear_all(Do)
    assert {message.stripe for _, message in desk.hear_all(NewReducer) if isinstance(message, NewReducer)} == {3}


def test_work_of_a_rank_that_is_gone_is_done_by_the_first_that_are_idle(desk: Desk) -> None:
    desk.begin(5, 50.0)
    desk.lead.gone(3, 50.2)
    desk.read()
    assert not desk.hear_all(Do)
    desk.done(1, desk.own(1), 1.0)
    assert [rank for rank, _ in desk.hear_all(Do)] == [1]


def test_whoever_is_idle_later_takes_from_those_that_help(desk: Desk) -> None:
    desk.begin(5, 50.0)
    desk.lead.gone(3, 50.2)
    desk.done(1, desk.own(1), 1.0)
    desk.said.clear()
    desk.done(2, desk.own(2), 1.01)
    assert [rank for rank, _ in desk.hear_all(Cut)] == [1]
    assert [rank for rank, _ in desk.hear_all(Do)] == [2]


def test_a_rank_that_was_silent_is_given_nothing_in_the_next_round(desk: Desk) -> None:
    goes = desk.begin(5, 50.0)
    for rank, go in goes.items():
        if rank != 3:
            for place in go.parts:
                desk.done(rank, Part(*place), 1.0)
    desk.done(1, desk.own(3), 2.0)
    desk.lead.over(52.1)
    goes = desk.begin(6, 60.0)
    assert not goes[3].parts
    assert sum(last - first for go in goes.values() for _, first, last in go.parts) == desk.ranks * BLOCKS
    assert dict(goes[1].reducers)[3] == 0


def test_timers_are_set_where_something_can_be_due(desk: Desk) -> None:
    desk.timers.clear()
    desk.begin(5, 50.0)
    unheard = desk.timers[Timer.LATE]  # then, if nobody ever says a thing
    assert unheard == pytest.approx(51.2)
    desk.done(1, desk.own(1), 1.0)
    assert 51.0 < desk.timers[Timer.LATE] < unheard
    for rank in (0, 2, 3, 4, 5):
        desk.done(rank, desk.own(rank), 1.0)
    assert desk.timers[Timer.SUM_LATE] > 51.0


def test_whom_nobody_can_help_is_asked_again_ever_more_rarely() -> None:
    desk = Desk(ranks=3, reach=1)
    desk.calm(4)
    desk.begin(5, 50.0)
    desk.done(0, desk.own(0), 1.0)
    asked = []
    for _ in range(60):
        desk.said.clear()
        desk.look(desk.timers[Timer.LATE] - desk.began)
        asked += [desk.timers[Timer.LATE] for rank, _ in desk.hear_all(Tell) if rank == 2]
        assert not desk.hear_all(Do)
    assert len(asked) > 3
    assert asked[-1] - asked[-2] > 2 * (asked[1] - asked[0])


def test_if_nobody_says_a_thing_all_are_asked(desk: Desk) -> None:
    desk.begin(5, 50.0)
    desk.said.clear()
    desk.look(desk.timers[Timer.LATE] - desk.began)
    assert {rank for rank, _ in desk.hear_all(Tell)} == set(range(1, desk.ranks))


def test_who_was_left_out_helps_if_nobody_else_can() -> None:
    desk = Desk(ranks=4, reach=2)
    desk.calm(4)
    (other,) = set(desk.lead._plan.group(3)) - {3}
    desk.begin(5, 50.0)
    desk.lead._participation.leave_out(other)
    for rank in range(3):
        desk.done(rank, desk.own(rank), 1.0)
    desk.said.clear()
    desk.lead.gone(3, desk.began + 1.1)
    desk.read()
    assert {rank for rank, do in desk.hear_all(Do) if do.parts[0][0] == 3} == {other}


def test_what_was_lost_twice_rank_0_does_itself(desk: Desk) -> None:
    desk.begin(5, 50.0)
    desk.all_done()
    redone = []
    for _ in range(40):
        for rank, message in desk.sum_is_late([0], own_lacks=[3]):
            if isinstance(message, Do):
                redone.append(rank)
                desk.done(rank, desk.own(3), desk.timers[Timer.SUM_LATE] - desk.began - 0.001)
    assert 0 in redone[:2]
    assert len(set(redone)) > 2, "and others after that, who knows"


def test_a_sum_that_did_not_arrive_is_wanted_again_of_all_that_kept_it(desk: Desk) -> None:
    desk.begin(5, 50.0)
    desk.all_done()
    desk.lead._sums.missing.is_reduced_by(5, 0)  # so that another is the first to be asked
    kept = [2]
    for _ in range(20):
        for rank, message in desk.sum_is_late([2], own_lacks=[]):
            if isinstance(message, Tell):
                desk.status(rank, 0, desk.timers[Timer.SUM_LATE] - desk.began - 0.001)
            elif isinstance(message, Want):
                assert message.chunks == (2,)
                assert rank in kept
            elif isinstance(message, NewReducer) and message.reducer not in kept:
                kept.append(message.reducer)
    assert len(kept) == 3
    assert kept[2] == 0, "of whom it is known what has come"
    assert {rank for rank, _ in desk.hear_all(Want)} == set(kept) - {0}


def test_what_is_done_about_a_late_sum_is_done_ever_more_rarely(desk: Desk) -> None:
    desk.begin(5, 50.0)
    desk.all_done()
    for _ in range(100):
        desk.sum_is_late([2], own_lacks=[])
    assert desk.timers[Timer.SUM_LATE] > desk.began + 1000


def test_what_a_message_costs_does_not_grow_with_the_ranks() -> None:
    def seconds(ranks: int) -> float:
        desk = Desk(ranks)
        desk.calm(1)
        desk.begin(2, 20.0)
        start = time.process_time()
        for rank in range(ranks):
            desk.done(rank, desk.own(rank), 1.0 + rank / ranks / 50)
        return (time.process_time() - start) / ranks

    assert min(seconds(800) for _ in range(2)) < 10 * max(seconds(50) for _ in range(3))


def test_whoever_is_back_by_what_it_has_done_is_not_given_that_again(desk: Desk) -> None:
    desk.begin(4, 30.0)
    desk.lead.status(3, Status(round=3), 30.1)  # it has not got the last sum
    desk.read()
    desk.said.clear()
    desk.done(3, desk.own(3), 1.2)
    assert desk.lead.is_current(3)
    assert not desk.hear_all(Do)


def test_nothing_is_taken_from_a_rank_under_way_before_it_is_known_what_a_vector_takes() -> None:
    desk = Desk()
    desk.begin(1, 0.0)
    for rank in (0, 1, 2):
        desk.done(rank, desk.own(rank), 1.0)
    desk.look(2.5)
    for rank in (3, 4, 5):
        desk.status(rank, 2, 2.6)
    assert not desk.hear_all(Do)
    desk.lead.part_came(2, desk.own(2), 0, 2.7)
    desk.look(3.5)
    for rank in (3, 4, 5):
        desk.status(rank, 3, 3.6)
    assert desk.hear_all(Do)


def test_nobody_is_stuck_before_it_is_late_by_half_a_vector() -> None:
    desk = Desk()
    for round_ in range(1, 4):
        desk.begin(round_, 10.0 * round_)
        desk.all_done()
        desk.lead.over(desk.began + 1.0 + 2 * 4.0 * 5 / 6)  # a vector takes 4 s
    desk.begin(4, 40.0)
    for rank in range(5):
        desk.done(rank, desk.own(rank), 1.0)
    for after in (1.5, 2.0, 2.4):
        desk.look(after)
        desk.status(5, 0, after)
    assert not desk.hear_all(Do)
    for after in (3.5, 4.5, 5.0):
        desk.look(after)
        desk.status(5, 0, after)
    assert desk.hear_all(Do)
