"""Who was wrong, by what nodes say their sums were made of."""

from __future__ import annotations

from codedreduce import CodedReduce, Tree
from codedreduce.protocol.blaming import ADDED, COMPUTED, DAMAGED, Blaming, Finding
from codedreduce.protocol.messages import Account

#: Worker 1 has 3 and 4 below it, worker 2 has 5 and 6.
PLAN = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)


def made(
    node: int, task: int, digest: bytes, own: bytes = b"", own_by: tuple[int, ...] = (), **shares: bytes
) -> Account:  # fmt: skip
    children = list(PLAN.tree.children(node))
    parts = zip(PLAN.needs(node, task).shares if not PLAN.is_delegated(task) else (), shares.values(), strict=True)
    return Account(
        node=node, task=task, digest=digest, own=own or digest, own_by=own_by or (node,),
        shares=tuple((share.task, (children[place],), part) for place, (share, part) in enumerate(parts)),
    )  # fmt: skip


def right() -> Blaming:
    """Worker 2 and those below it have made the sum of task 1 as it should be."""
    blaming = Blaming(PLAN)
    blaming.is_right(1, b"sum")
    blaming.heard(made(2, 1, b"sum", b"own", a=b"three", b=b"four"))
    return blaming


def test_one_that_computed_its_own_unit_wrongly() -> None:
    blaming = right()
    assert blaming.blame(1, 1) is None, "it has said nothing yet"
    blaming.heard(made(1, 1, b"wrong", b"another", a=b"three", b=b"four"))
    assert blaming.blame(1, 1) == [Finding(1, COMPUTED)]


def test_one_that_added_wrongly() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"wrong", b"own", a=b"three", b=b"four"))
    assert blaming.blame(1, 1) == [Finding(1, ADDED)]


def test_one_that_sent_what_was_damaged() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"sum", b"own", a=b"three", b=b"four"))
    assert blaming.blame(1, 1) == [Finding(1, DAMAGED)]


def test_one_below() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"wrong", b"own", a=b"three", b=b"another"))
    assert blaming.blame(1, 1) is None, "worker 4 may have sent something else"
    blaming.heard(made(4, 4, b"another"))
    assert blaming.blame(1, 1) == [Finding(4, COMPUTED)]


def test_the_way_from_one_below() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"wrong", b"own", a=b"another", b=b"four"))
    blaming.heard(made(3, 3, b"three"))
    assert blaming.blame(1, 1) == [Finding(3, DAMAGED)]


def test_a_child_that_did_its_parent_s_unit() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"wrong", b"another", (4,), a=b"three", b=b"four"))
    assert blaming.blame(1, 1) is None
    blaming.heard(made(4, PLAN.delegated(1), b"another"))
    assert blaming.blame(1, 1) == [Finding(4, COMPUTED)]


def test_several_at_once() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"wrong", b"another", a=b"x", b=b"y"))
    blaming.heard(made(3, 3, b"x"))
    blaming.heard(made(4, 4, b"four"))
    assert blaming.blame(1, 1) == [Finding(1, COMPUTED), Finding(3, COMPUTED), Finding(4, DAMAGED)]


def test_a_share_that_came_from_two() -> None:
    blaming = right()
    account = made(1, 1, b"wrong", b"own", a=b"mixed", b=b"four")
    shares = ((3, (3, 4), b"mixed"), account.shares[1])
    blaming.heard(Account(node=1, task=1, digest=b"wrong", own=b"own", own_by=(1,), shares=shares))
    blaming.heard(made(3, 3, b"three"))
    assert blaming.blame(1, 1) is None
    blaming.heard(made(4, 3, b"another"))
    assert blaming.blame(1, 1) == [Finding(4, COMPUTED)]


def test_a_share_that_came_from_two_who_both_made_it_right() -> None:
    blaming = right()
    account = made(1, 1, b"wrong", b"own", a=b"mixed", b=b"four")
    shares = ((3, (3, 4), b"mixed"), account.shares[1])
    blaming.heard(Account(node=1, task=1, digest=b"wrong", own=b"own", own_by=(1,), shares=shares))
    blaming.heard(made(3, 3, b"three"))
    blaming.heard(made(4, 3, b"three"))
    assert blaming.blame(1, 1) is None, "nobody knows whose way it was"


def test_nobody_is_named_by_what_may_have_been_lost_in_rounding() -> None:
    """Two sums are right and were not made of the same: one below was wrong in a bit that did not matter."""
    plan = CodedReduce(Tree.regular(fanout=3, depth=2), 2).plan(samples=60)
    blaming = Blaming(plan)
    blaming.is_right(1, b"sum")
    for node, digest, part in ((1, b"sum", b"four"), (2, b"sum", b"almost four"), (3, b"wrong", b"four")):
        below = plan.tree.children(node)
        parts = zip((4, 5, 6), below, (part, b"five", b"six"), strict=True)
        shares = tuple((task, (child,), made_of) for task, child, made_of in parts)
        blaming.heard(Account(node=node, task=1, digest=digest, own=b"own", own_by=(node,), shares=shares))
    assert blaming.blame(3, 1) is None, "it may be worker 3 that added wrongly, or the one that did task 4 for it"
    blaming.are_right({1: b"sum", 4: b"four", 5: b"five", 6: b"six"}, {1: b"own"})
    assert blaming.blame(3, 1) == [Finding(3, ADDED)]


def test_two_sums_of_what_was_made_alike() -> None:
    """What worker 1 received from 3 is not what 3 sent, which is what 5 made: so the sum of 2 is right."""
    blaming = Blaming(PLAN)
    blaming.heard(made(1, 1, b"wrong", b"own", a=b"damaged", b=b"four"))
    blaming.heard(made(2, 1, b"sum", b"own", a=b"three", b=b"four"))
    assert blaming.better_of(1, 2, 1) is None
    blaming.heard(made(5, 3, b"three"))
    blaming.heard(made(3, 3, b"three"))
    assert blaming.better_of(1, 2, 1) == blaming.better_of(2, 1, 1) == 2


def test_two_sums_of_what_was_not_made_alike() -> None:
    for own, three in ((b"another", b"three"), (b"own", b"another")):
        blaming = Blaming(PLAN)
        blaming.heard(made(1, 1, b"wrong", own, a=three, b=b"four"))
        blaming.heard(made(2, 1, b"sum", b"own", a=b"three", b=b"four"))
        blaming.heard(made(3, 3, three))
        blaming.heard(made(5, 3, b"three"))
        assert blaming.better_of(1, 2, 1) is None, "only a third can say it"


def test_two_sums_of_the_same_parts() -> None:
    blaming = right()
    blaming.heard(made(1, 1, b"wrong", b"own", a=b"three", b=b"four"))
    assert blaming.better_of(1, 2, 1) is None, "one of them adds wrongly"


def test_what_cannot_be_is_not_heard() -> None:
    blaming = right()
    for account in (
        Account(node=99, task=1, digest=b"", own=b"", own_by=()),
        Account(node=1, task=99, digest=b"", own=b"", own_by=()),
        Account(node=1, task=1, digest=b"", own=b"", own_by=(), shares=((1, (1,), b""), (4, (4,), b""))),
        Account(node=1, task=1, digest=b"", own=b"", own_by=(), shares=((3, (5,), b""), (4, (4,), b""))),
        Account(node=3, task=3, digest=b"", own=b"", own_by=(4,)),
    ):
        blaming.heard(account)
        assert blaming.said((account.node,), account.task) == {}
