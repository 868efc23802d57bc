"""A root that has its shares computed twice: who is asked, what is compared, who decides, and what takes its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from codedreduce.digests import digest
from codedreduce.protocol import events as happening
from codedreduce.protocol import messages as said
from codedreduce.protocol.root_table import RootState
from codedreduce.protocol.worker_table import WorkerState
from codedreduce.worlds.failures import error_of
from tests.unit.conversation import PROGRESSIVE, Talk, led_to, of_type, sent, worth

#: What a share is full of that was delivered, and what another says.
HERE, OTHER = 2.0, 5.0


def auditing(name: str = "root that audits") -> Talk:
    return led_to(name, RootState.AUDITING)


def asked(actions: list[Any]) -> list[tuple[int, int, bool]]:
    return [(one.to, one.message.task, one.message.push) for one in sent(actions, said.Next)]


def says(talk: Talk, child: int, task: int, number: float = HERE) -> list[Any]:
    return talk.hears(child, said.Offer(round=1, task=task, digest=talk.digest(number)))


def accounts(talk: Talk, node: int, task: int, number: float, of: dict[int, float], child: int = 0) -> list[Any]:
    """A node says what its sum was made of: its own unit is full of 1, its shares of these numbers."""
    shares = tuple((one, (PROGRESSIVE.tree.children(node)[place],), talk.digest(value))
                   for place, (one, value) in enumerate(of.items()))  # fmt: skip
    account = said.Account(
        round=1, node=node, task=task, digest=talk.digest(number), own=talk.digest(1.0 if of else number),
        own_by=(node,), shares=shares,
    )  # fmt: skip
    return talk.hears(child or node, account)


def noted(talk: Talk, kind: str) -> list[tuple[int, ...]]:
    return [note.nodes for note in of_type(talk.done, happening.Note) if note.kind == kind]


def sums(talk: Talk) -> list[float]:
    """What the sums are full of that were given out."""
    return [float(one.vector[0]) for one in of_type(talk.done, happening.Aggregated)]


def test_each_share_is_asked_of_another_and_the_sum_waits_for_that() -> None:
    talk = auditing()
    assert asked(talk.done) == [(2, 1, False), (1, 2, False)]
    assert sums(talk) == []
    says(talk, 2, 1)
    assert talk.machine.state is RootState.AUDITING
    says(talk, 1, 2)
    assert talk.machine.state is RootState.IDLE
    assert sums(talk) == [2 * HERE]
    assert of_type(talk.done, happening.Note) == []


def test_a_root_that_can_compute_decides() -> None:
    talk = auditing("root that audits and decides")
    says(talk, 1, 2)
    actions = says(talk, 2, 1, OTHER)
    assert {(one.to, one.message.task) for one in sent(actions, said.Explain)} == {(1, 1), (2, 1)}
    units = 0
    while talk.asked:
        assert talk.machine.state is RootState.AUDITING
        talk.computes()
        units += 1
    assert units == 3, "a share is of an inner worker and two leaves"
    assert sums(talk) == [], "who was wrong can still be shown"
    talk.timer("naming")
    judged = 3 * worth(1, 2 * PROGRESSIVE.workers + 1)
    assert sums(talk) == [judged + HERE], "neither was right"
    assert talk.machine.state is RootState.IDLE


@pytest.mark.parametrize("delivered_wrong", [True, False])
def test_a_third_decides(delivered_wrong: bool) -> None:
    talk = auditing("root that audits three")
    assert asked(talk.done) == [(2, 1, False), (3, 2, False), (1, 3, False)]
    says(talk, 3, 2)
    says(talk, 1, 3)
    assert asked(says(talk, 2, 1, OTHER)) == [(3, 1, False)]
    actions = says(talk, 3, 1, OTHER if delivered_wrong else HERE)
    assert asked(actions) == ([(2, 1, True)] if delivered_wrong else [])
    if delivered_wrong:
        for index in range(3):
            assert sums(talk) == []
            talk.hears(2, said.ShareChunk(round=1, task=1, index=index), OTHER)
    assert sums(talk) == []
    for node, number in ((1, HERE), (2, OTHER), (3, OTHER if delivered_wrong else HERE)):
        accounts(talk, node, 1, number, {})
    assert sums(talk) == [2 * HERE + (OTHER if delivered_wrong else HERE)]
    assert noted(talk, "mistaken") == [(1,) if delivered_wrong else (2,)]


def test_what_was_damaged_on_its_way_comes_again_and_nobody_is_blamed() -> None:
    talk = auditing()
    says(talk, 1, 2)
    says(talk, 2, 1, OTHER)
    actions = accounts(talk, 1, 1, OTHER, {3: 1.0, 4: 3.0})
    assert asked(actions) == [(1, 1, True)], "whoever has it sends it"
    for value in (7.0, OTHER):  # the first time it is damaged again
        assert sums(talk) == []
        for index in range(3):
            talk.hears(1, said.ShareChunk(round=1, task=1, index=index), value)
    assert sums(talk) == [OTHER + HERE]
    assert noted(talk, "damaged") == [(1,)]
    assert noted(talk, "mistaken") == []


def test_who_is_wrong_below_is_found_before_the_round_is_over() -> None:
    """Worker 4 is wrong, and with it the sum of worker 1."""
    talk = auditing("root that audits and decides")
    says(talk, 1, 2)
    says(talk, 2, 1, OTHER)
    vector = np.full(10, worth(1, 2 * PROGRESSIVE.workers + 1), np.float32)
    one = digest(vector)
    while talk.asked:
        talk.computes()
    assert noted(talk, "mistaken") == []
    shares = ((3, (3,), one), (4, (4,), talk.digest(OTHER)))
    talk.hears(1, said.Account(round=1, node=1, task=1, digest=talk.digest(HERE), own=one, own_by=(1,), shares=shares))
    assert noted(talk, "mistaken") == []
    accounts(talk, 4, 4, OTHER, {}, child=1)
    assert noted(talk, "mistaken") == [(4,)]
    assert sums(talk) == []
    talk.timer("naming")
    assert noted(talk, "mistaken") == [(4,), ()], "of what worker 2 said nothing is known"
    assert len(sums(talk)) == 1


def test_who_is_late_is_not_waited_for_long() -> None:
    talk = auditing()
    says(talk, 1, 2)
    timers = [one.at for one in of_type(talk.done, happening.SetTimer) if one.name == "audit"]
    talk.now = timers[-1] - 1
    actions = talk.timer("audit")
    assert [one.to for one in sent(actions, said.Enough)] == [2]
    assert noted(talk, "unaudited") == [(1,)]
    assert sums(talk) == [2 * HERE]


@pytest.mark.parametrize("why", ["lost", "unable", "its process is another"])
def test_another_is_asked_in_the_place_of_one_that_is_gone(why: str) -> None:
    talk = auditing("root that audits three")
    says(talk, 3, 2)
    says(talk, 1, 3)
    if why == "lost":
        actions = talk.happens(happening.PeerLost(peer=2))
    elif why == "unable":
        actions = talk.hears(2, said.Unable(round=1, task=1, troubles=((2, "no"),)))
    else:
        actions = talk.hears(2, said.Hello(plan=talk.machine.below.roster.run))
    assert asked(actions) == [(3, 1, False)]
    says(talk, 3, 1)
    assert sums(talk) == [3 * HERE]


def test_what_cannot_be_done_again_does_not_end_a_run() -> None:
    talk = auditing()
    says(talk, 1, 2)
    talk.hears(2, said.Failure(round=1, troubles=((5, "no"), (6, "no")), ends=True))
    talk.timer("audit")
    assert noted(talk, "unaudited") == [(1,)]
    assert sums(talk) == [2 * HERE]


def test_if_nobody_can_decide_the_run_ends_and_names_both() -> None:
    talk = auditing()
    says(talk, 1, 2)
    says(talk, 2, 1, OTHER)
    accounts(talk, 1, 1, HERE, {3: 1.0, 4: 3.0})
    talk.now += 1000.0
    (finished,) = of_type(talk.timer("audit"), happening.Finished)
    assert talk.machine.state is RootState.STOPPED
    assert [node for node, _ in finished.troubles] == [1, 2]
    assert "nobody can decide who is right" in str(error_of(1, finished.troubles))
    assert sums(talk) == []


def test_after_two_rounds_a_worker_is_not_used_any_more() -> None:
    talk = auditing("root that audits three")
    for round_ in (1, 2):
        of = {"round": round_}
        for child, task, number in ((2, 1, OTHER), (3, 2, HERE), (1, 3, HERE), (3, 1, HERE)):
            talk.hears(child, said.Offer(task=task, digest=talk.digest(number), **of))
        assert noted(talk, "quarantined") == []
        wrong = talk.digest(OTHER)
        talk.hears(2, said.Account(node=2, task=1, digest=wrong, own=wrong, own_by=(2,), **of))
        assert talk.machine.state is RootState.IDLE
        drained(talk)
        actions = talk.begin()
        talk.all_deliver()
    assert noted(talk, "mistaken") == [(2,), (2,)]
    assert noted(talk, "quarantined") == [(2,)]
    assert {one.to for one in sent(actions, said.ModelChunk)} == {1, 3}


def drained(talk: Talk) -> None:
    """All that was sent has arrived."""
    for peer in sorted(talk.neighbours):
        for _ in range(4):
            talk.happens(happening.Drained(peer=peer))


def test_who_is_not_used_gets_no_model_and_its_chunks_are_dropped() -> None:
    talk = led_to("root that audits three", RootState.IDLE)
    drained(talk)
    actions: list[Any] = []
    talk.machine.below.shun({2}, actions)
    assert {one.to for one in sent(actions, said.Shun)} == {1, 2, 3}
    assert {one.to for one in sent(talk.begin(), said.ModelChunk)} == {1, 3}
    talk.delivers(2, 2)
    assert talk.machine.below.ledger.shares.find(2).missing == 3
    (welcome,) = sent(talk.hears(2, said.Hello(plan=talk.machine.below.roster.run)), said.Welcome)
    assert welcome.message.shunned == (2,)
    talk.delivers(1, 1)
    assert (1, 2, False) in asked(talk.timer("redundancy")), "another does its part"


# -- workers


def test_a_worker_says_the_digest_of_what_it_offers() -> None:
    talk = led_to("leaf that is audited", WorkerState.RESTING)
    talk.hears(1, said.Next(round=1, task=4, push=False))
    (offer,) = sent(talk.computes(), said.Offer)
    assert offer.message.digest == talk.digest(worth(1, 4))
    talk = led_to("leaf", WorkerState.RESTING)
    talk.hears(1, said.Next(round=1, task=4, push=False))
    (offer,) = sent(talk.computes(), said.Offer)
    assert offer.message.digest == b"", "nobody asked for audits"


def test_an_inner_worker_says_what_its_sum_was_made_of_and_asks_below() -> None:
    talk = led_to("inner worker that is audited", WorkerState.RESTING)
    actions = talk.hears(0, said.Explain(round=1, task=1))
    (account,) = [one.message for one in sent(actions, said.Account)]
    own = worth(1, 1)
    assert account == said.Account(
        round=1, node=1, task=1, digest=talk.digest(own + 2 * HERE), own=talk.digest(own), own_by=(1,),
        shares=((3, (3,), talk.digest(HERE)), (4, (4,), talk.digest(HERE))),
    )  # fmt: skip
    assert [(one.to, one.message.task) for one in sent(actions, said.Explain)] == [(3, 3), (4, 4)]
    (passed_on,) = sent(accounts(talk, 3, 3, HERE, {}), said.Account)
    assert (passed_on.to, passed_on.message.node) == (0, 3)


def test_what_a_sum_was_made_of_is_known_until_the_next_audit() -> None:
    talk = led_to("leaf that is audited", WorkerState.RESTING)
    assert sent(talk.hears(1, said.Explain(round=1, task=3)), said.Account)
    talk.model(2)
    assert not sent(talk.hears(1, said.Explain(round=1, task=3)), said.Account)
    assert not sent(talk.hears(1, said.Explain(round=2, task=3)), said.Account), "it is not made"


def test_a_task_that_was_dropped_is_done_again_when_it_is_asked_for() -> None:
    talk = led_to("leaf that is audited", WorkerState.WORKING)
    talk.hears(1, said.Enough(round=1, task=3))
    assert of_type(talk.hears(1, said.Next(round=1, task=3, push=False)), happening.Compute)
    (offer,) = sent(talk.computes(which=-1), said.Offer)
    assert offer.message.digest == talk.digest(worth(1, 3))


def test_an_inner_worker_does_not_use_whom_it_is_told_not_to() -> None:
    talk = led_to("inner worker that is audited", WorkerState.RESTING)
    actions = talk.hears(0, said.Shun(round=1, nodes=(3, 6)))
    assert [one.message.nodes for one in sent(actions, said.Shun)] == [(3, 6), (3, 6)]
    drained(talk)
    assert {one.to for one in sent(talk.model(2), said.ModelChunk)} == {4}
    talk.computes()
    talk.delivers(4, 4)
    assert asked(talk.timer("redundancy")) == [(4, 3, False)]
    later = led_to("inner worker that is audited", WorkerState.JOINING)
    later.hears(0, said.Welcome(shunned=(4,)))
    later.join()
    assert {one.to for one in sent(later.model(1), said.ModelChunk)} == {3}
