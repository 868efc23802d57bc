"""The ledger of shares, told what happens and asked what follows."""

from __future__ import annotations

import numpy as np
import pytest

from codedreduce import CodedReduce, Tree
from codedreduce.protocol import Settings
from codedreduce.protocol.tree.ledger import Ledger
from codedreduce.protocol.tree.shares import Arrival

SETTINGS = Settings(length=4, chunk=2, head_start=0.2)
TEN = CodedReduce(Tree.regular(fanout=10, depth=1), 1).plan(samples=100)  # groups of two: 1 2, 3 4, ...
DATA = np.ones(2, np.float32)


class Round:
    """A ledger of the root, and rounds that go as they are told."""

    def __init__(self, plan=TEN, settings: Settings = SETTINGS, node: int = 0) -> None:
        self.ledger = Ledger(plan, node, settings)
        for child in self.ledger.children:
            self.ledger.returned(child)
        self.task = next(plan.tasks(node))
        self.began = 0.0

    def start(self, at: float) -> None:
        self.began = at
        self.ledger.start(self.task, at)

    def deliver(self, child: int, task: int, now: float, worked: float = 1.0) -> float | None:
        """A child's whole share comes; when to look who is late."""
        for index in (0, 1):
            arrival = self.ledger.arrived(child, task, index, DATA, 1.0, now)
        look = self.ledger.delivered(child, task, worked, now)
        if arrival is Arrival.COMPLETED:
            for late in self.ledger.at_work_on(task):
                self.ledger.dismissed(late, now)
        return look

    def calm(self, rounds: int) -> None:
        """Everyone delivers after a second's work."""
        for _ in range(rounds):
            self.start(self.began + 100.0)
            for child in self.ledger.children:
                self.deliver(child, child, self.began + 1.0)
            assert self.ledger.due(self.began + 50.0) == ([], None)
            self.ledger.end()


ODD, EVEN = (1, 3, 5, 7, 9), (2, 4, 6, 8, 10)


def test_a_chunk_counts_once_and_from_whom_it_may_come() -> None:
    talk = Round()
    talk.start(0.0)
    ledger = talk.ledger
    assert ledger.arrived(1, 1, 0, DATA, 1.0, 1.0) is Arrival.KEPT
    assert ledger.arrived(1, 1, 0, DATA, 1.0, 1.0) is Arrival.REPEATED
    assert ledger.arrived(2, 1, 0, DATA, 1.0, 1.0) is Arrival.REPEATED, "of a replica"
    assert ledger.arrived(3, 1, 1, DATA, 1.0, 1.0) is Arrival.REPEATED, "of one that does not hold it"
    assert ledger.arrived(2, 1, 1, DATA, 1.0, 1.0) is Arrival.COMPLETED
    assert ledger.arrived(1, 1, 1, DATA, 1.0, 1.0) is Arrival.NOT_NEEDED
    assert ledger.arrived(1, 77, 0, DATA, 1.0, 1.0) is Arrival.NOT_NEEDED
    assert ledger.offered(1, 1, 1.0) is None
    assert ledger.offered(4, 3, 1.0) == (0, 1)
    assert ledger.offered(1, 3, 1.0) is None, "it does not hold it"


def test_nobody_is_asked_while_all_are_on_time() -> None:
    Round().calm(10)


def test_a_late_share_is_asked_of_its_replica_after_a_head_start() -> None:
    talk = Round()
    talk.calm(3)
    talk.start(1000.0)
    for child in range(1, 10):
        look = talk.deliver(child, child, 1001.0)
        assert look == (pytest.approx(1001.2) if child == 1 else None), "one look is enough"
    assert talk.ledger.due(1001.1) == ([], pytest.approx(1001.2))
    assert talk.ledger.due(1001.21) == ([(9, 10)], None)
    assert talk.ledger.at_work_on(10) == [10, 9]
    assert talk.ledger.asked_instead(9, 10)
    assert not talk.ledger.asked_instead(10, 10)


def test_without_history_it_is_a_whole_share_late() -> None:
    talk = Round()
    talk.start(0.0)
    assert talk.deliver(1, 1, 1.0) == pytest.approx(2.0)
    assert talk.ledger.due(1.9) == ([], pytest.approx(2.0))
    assert talk.ledger.due(2.1) == ([(1, 2)], None)


def test_a_storm_is_met_at_once_and_lost_bets_are_made_no_more() -> None:
    talk = Round()
    talk.calm(3)
    asked = []
    for storm in range(6):
        talk.start(1000.0 * (storm + 1))
        for child in ODD:
            talk.deliver(child, child, talk.began + 1.0)
        asked.append(len(talk.ledger.due(talk.began + 1.5)[0]))
        for child in EVEN:  # they come by themselves after all
            talk.deliver(child, child, talk.began + 1.6, worked=1.6)
        talk.ledger.end()
    assert asked[0] == 5
    assert sum(asked) <= 10 + 0.2 * 60 + 2, "what was saved, and a fifth of what was delivered"
    assert asked[-1] == 2, "a fifth of the children"


def test_bets_that_pay_go_on() -> None:
    """Half of the children never deliver: from the second round on their replicas are asked at once."""
    talk = Round()
    talk.calm(3)
    for storm in range(20):
        talk.start(1000.0 * (storm + 1))
        for child in ODD:
            talk.deliver(child, child, talk.began + 1.0)
        asked, _ = talk.ledger.due(talk.began + 1.5)
        assert sorted(asked) == [(child, child + 1) for child in ODD]
        for child, task in asked:
            talk.deliver(child, task, talk.began + 2.5)
        assert talk.ledger.shares.satisfied
        talk.ledger.end()


def lost_everything(settings: Settings = SETTINGS) -> Round:
    """A ledger that has nothing saved, and the storm that is on."""
    talk = Round(settings=settings)
    talk.calm(1)
    for storm in range(5):
        talk.start(1000.0 * (storm + 1))
        for child in ODD:
            talk.deliver(child, child, talk.began + 1.0)
        talk.ledger.due(talk.began + 1.5)
        if storm < 4:
            for child in EVEN:
                talk.deliver(child, child, talk.began + 1.6, worked=1.6)
            talk.ledger.end()
    return talk


def open_bets(talk: Round) -> int:
    return sum(talk.ledger.asked_instead(child, child + 1) for child in ODD)


def test_a_bet_that_has_expired_does_not_block_others() -> None:
    talk = lost_everything()
    assert open_bets(talk) == 2
    asked, look = talk.ledger.due(talk.began + 1.6)
    assert asked == []
    assert look is not None
    assert look > talk.began + 1.6
    asked, _ = talk.ledger.due(look + 0.01)
    assert len(asked) == 2, "those that were asked have had the time for it, and are not waited for"
    assert open_bets(talk) == 4


def test_a_needy_child_is_bet_on_whatever_is_saved() -> None:
    talk = lost_everything()
    (winner,) = [child for child in ODD if talk.ledger.asked_instead(child, child + 1)][:1]
    talk.deliver(winner, winner + 1, talk.began + 2.0)
    talk.ledger.end()
    for begin in (7000.0, 8000.0):  # nothing is saved, and two others are bet on first if they are asked first
        talk.start(begin)
        for child in ODD:
            talk.deliver(child, child, begin + 1.0)
        asked, _ = talk.ledger.due(begin + 1.5)
        assert (winner, winner + 1) in asked
        assert len(asked) == 3, "two bets, and one that is none"
        talk.deliver(winner, winner + 1, begin + 2.0)
        for child in EVEN:
            talk.deliver(child, child, begin + 2.1, worked=2.1)
        talk.ledger.end()


def test_an_offered_share_has_as_long_again_to_arrive() -> None:
    talk = Round()
    talk.calm(3)
    talk.start(1000.0)
    for child in range(1, 10):
        talk.deliver(child, child, 1001.0)
    assert talk.ledger.offered(10, 10, 1002.0) == (0, 1)
    assert talk.ledger.due(1003.0) == ([], pytest.approx(1004.0))
    talk.ledger.arrived(10, 10, 0, DATA, 1.0, 1003.5)  # chunks come: it is on its way
    assert talk.ledger.due(1004.1) == ([], pytest.approx(1007.0))
    assert talk.ledger.due(1007.1)[0] == [(9, 10)]


def test_who_is_gone_is_given_no_head_start() -> None:
    talk = Round()
    talk.calm(3)
    talk.start(1000.0)
    talk.ledger.lost(2)
    assert talk.deliver(1, 1, 1001.0) == 1001.0
    assert talk.ledger.due(1001.0) == ([(1, 2)], None)
    talk.ledger.returned(2)
    talk.ledger.put_to_work(2)
    assert set(talk.ledger.at_work_on(2)) == {1, 2}


def test_a_parent_s_own_unit_is_asked_for_last_and_closed_by_the_parent() -> None:
    plan = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)
    talk = Round(plan, node=1)
    talk.start(0.0)
    own = plan.delegated(1)
    assert [share.task for share in talk.ledger.shares.wanted()] == [3, 4, own]
    for child in (3, 4):
        talk.deliver(child, child, 1.0)
    assert not talk.ledger.shares.satisfied
    asked, _ = talk.ledger.due(2.1)
    assert [task for _, task in asked] == [own]
    assert talk.ledger.own_done() == [asked[0][0]]
    assert talk.ledger.shares.satisfied
    assert talk.ledger.arrived(3, own, 0, DATA, 0.5, 3.0) is Arrival.NOT_NEEDED


def test_whoever_is_still_at_work_at_the_end_is_told_of() -> None:
    talk = Round()
    talk.start(0.0)
    for child in range(1, 9):
        talk.deliver(child, child, 1.0)
    assert talk.ledger.end() == [(9, 9), (10, 10)]
    assert talk.ledger.assignments() == []
