import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedreduce import Tree
from codedreduce.errors import TreeError


def walk(tree: Tree) -> dict[int, list[int]]:
    """Subtrees by plain recursion over children."""
    below: dict[int, list[int]] = {}

    def visit(node: int) -> list[int]:
        below[node] = [node]
        for child in tree.children(node):
            below[node] += visit(child)
        return below[node]

    visit(0)
    return below


def check_tree(tree: Tree) -> None:
    below = walk(tree)
    assert sorted(below[0]) == list(range(tree.workers + 1)), "every node hangs below the root, once"
    assert [node for level in tree.levels() for node in level] == list(range(tree.workers + 1))
    preorder = below[0][1:]
    for level, nodes in enumerate(tree.levels()):
        for node in nodes:
            assert tree.level(node) == level
            assert tree.subtree_size(node) == len(below[node])
            for child in tree.children(node):
                assert tree.parent(child) == node
            if node:
                assert preorder[tree.preorder(node)] == node
                assert tree.ancestors(node)[-1] == node
                assert len(tree.ancestors(node)) == level


@pytest.mark.parametrize(("fanout", "depth"), [(1, 1), (1, 4), (2, 1), (2, 4), (3, 3), (4, 3), (12, 2), (20, 1)])
def test_regular(fanout: int, depth: int) -> None:
    tree = Tree.regular(fanout=fanout, depth=depth)
    check_tree(tree)
    assert tree.is_regular
    assert tree.workers == sum(fanout**level for level in range(1, depth + 1))
    for node in tree.on_level(depth - 1):
        assert list(tree.children(node)) == [fanout * node + i for i in range(1, fanout + 1)]


@given(workers=st.integers(1, 300), fanout=st.integers(1, 12), stragglers=st.integers(0, 3))
def test_balanced(workers: int, fanout: int, stragglers: int) -> None:
    try:
        tree = Tree.balanced(workers=workers, fanout=fanout, stragglers=stragglers)
    except TreeError:
        assert not arrangeable(workers, fanout, stragglers + 1)
        return
    check_tree(tree)
    assert tree.workers == workers
    for level in range(tree.depth):
        counts = [len(tree.children(node)) for node in tree.on_level(level)]
        parents = [count for count in counts if count]
        assert max(parents) <= fanout
        assert min(parents) >= stragglers + 1
        assert max(parents) - min(parents) <= 1, "filled evenly"
        assert tree.is_complete or level >= tree.depth - 1 or len(parents) == len(counts)


def arrangeable(workers: int, most: int, least: int) -> bool:
    """Whether any tree has that many workers: each parent adds least..most of them to the leaves so far."""
    if workers < least or most < least:
        return False
    reach = {(0, 1)}  # workers so far, leaves that may still become parents
    seen = set(reach)
    while reach:
        done, leaves = reach.pop()
        for extra in range(least, most + 1):
            if done + extra == workers:
                return True
            state = (done + extra, leaves - 1 + extra)
            if done + extra < workers and state not in seen:
                seen.add(state)
                reach.add(state)
    return False


def test_without_tolerance_any_number_of_workers_fits() -> None:
    for workers in range(1, 200):
        assert Tree.balanced(workers=workers, fanout=4).is_complete


def test_a_million_workers_in_a_handful_of_integers() -> None:
    tree = Tree.regular(fanout=10, depth=6)
    assert tree.workers == 1_111_110
    assert tree.subtree_size(5) == 111_111
    assert tree.parent(tree.workers) == (tree.workers - 1) // 10
    described = sys.getsizeof(tree) + sum(sys.getsizeof(x) for x in vars(tree).values()) + 20 * sys.getsizeof(10**6)
    assert described < 3000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tree.regular(fanout=0, depth=2), "0x2"),
        (lambda: Tree.regular(fanout=2, depth=0), "2x0"),
        (lambda: Tree.regular(fanout=10, depth=50), r"10x50 has more than 10\^12"),
        (lambda: Tree.balanced(workers=0, fanout=3), "got 0"),
        (lambda: Tree.balanced(workers=1, fanout=3, stragglers=1), "at least 2 workers, got 1"),
        (lambda: Tree.balanced(workers=9, fanout=2, stragglers=2), "the fan-out is 2"),
        (lambda: Tree.balanced(workers=5, fanout=4, stragglers=2), "take a fan-out of 5"),
        (lambda: Tree.regular(fanout=2, depth=2).parent(0), "has no parent"),
        (lambda: Tree.regular(fanout=2, depth=2).children(7), "node 7 does not exist: this tree has nodes 0..6"),
        (lambda: Tree.regular(fanout=2, depth=2).on_level(3), "level 3"),
        (lambda: Tree((1, 2, 1), (1, 2)), "2 of 2 nodes cannot share 1 children"),
        (lambda: Tree((2, 4), (2,)), "start with the root"),
    ],
)
def test_errors_name_the_values(call, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        call()
