"""Trees of workers, described by the sizes of their levels.

Nodes are numbered level by level from the root, node 0. So the children of a node have consecutive numbers, and so
have its descendants on any level. Let `inner` nodes of a level have children, and the next level have `size` nodes.
Then the p-th inner node has the children from floor(p size / inner) to floor((p+1) size / inner) of the next level.
This is as even as possible, and in a regular tree exactly n p .. n p + n - 1. Everything about a node follows from
the level sizes by arithmetic, in time proportional to the depth. A tree of a million workers is a few integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from codedreduce.errors import TreeError

#: The limits of any tree: larger numbers are typing errors.
MOST_WORKERS, MOST_LEVELS = 10**12, 1000


@dataclass(frozen=True)
class Tree:
    """A tree of workers below a root.

    `sizes[l]` is the number of nodes on level l (sizes[0] = 1, the root). The first `inner[l]` of them have children.
    `Tree.regular` and `Tree.balanced` make trees.

    >>> tree = Tree.regular(fanout=4, depth=2)
    >>> tree.workers, tree.children(0), tree.children(2), tree.parent(12), tree.level(12), tree.subtree_size(2)
    (20, range(1, 5), range(9, 13), 2, 2, 5)
    """

    sizes: tuple[int, ...]
    inner: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or self.sizes[0] != 1:
            raise TreeError(f"level sizes must start with the root, 1, and have at least one level more: {self.sizes}")
        if len(self.inner) != len(self.sizes) - 1:
            raise TreeError(f"every level but the last needs a count of inner nodes: {self.sizes}, {self.inner}")
        for size, inner, below in zip(self.sizes[:-1], self.inner, self.sizes[1:], strict=True):
            if not 1 <= inner <= size or below < inner:
                raise TreeError(f"{inner} of {size} nodes cannot share {below} children")

    @classmethod
    def regular(cls, *, fanout: int, depth: int) -> Tree:
        """Every inner node has `fanout` children; children of i are fanout*i+1 ... fanout*i+fanout.

        >>> Tree.regular(fanout=10, depth=6).workers
        1111110
        """
        if fanout < 1 or depth < 1:
            raise TreeError(f"a tree needs a fan-out and a depth of at least 1, got {fanout}x{depth}")
        if depth > MOST_LEVELS or fanout**depth > MOST_WORKERS:
            raise TreeError(f"a tree {fanout}x{depth} has more than 10^12 workers or {MOST_LEVELS} levels; take fewer")
        sizes = tuple(fanout**level for level in range(depth + 1))
        return cls(sizes, sizes[:-1])

    @classmethod
    def balanced(cls, *, workers: int, fanout: int, stragglers: int = 0) -> Tree:
        """The shallowest tree of any number of workers, its levels filled evenly.

        No parent has more than `fanout` children, nor fewer than stragglers+1. All leaves are on the last level
        when such a tree exists; otherwise only some nodes of the last level but one have children.

        >>> tree = Tree.balanced(workers=50, fanout=4)
        >>> tree.sizes, sorted({len(tree.children(node)) for node in range(16)})
        ((1, 3, 12, 35), [2, 3, 4])
        """
        if workers > MOST_WORKERS or (fanout == 1 and workers > MOST_LEVELS):
            raise TreeError(
                f"a tree {workers}/{fanout} has more than 10^12 workers or {MOST_LEVELS} levels; take fewer"
            )
        return cls(*_level_sizes(workers, fanout, stragglers + 1))

    @property
    def depth(self) -> int:
        """L, the number of levels below the root."""
        return len(self.sizes) - 1

    @cached_property
    def workers(self) -> int:
        """N, the number of nodes other than the root."""
        return sum(self.sizes) - 1

    @property
    def fanout(self) -> int:
        """n, the most children any node has."""
        return max(-(-below // inner) for inner, below in zip(self.inner, self.sizes[1:], strict=True))

    @property
    def is_regular(self) -> bool:
        """Whether all inner nodes have the same number of children and all leaves are on the last level."""
        return self.sizes == tuple(self.sizes[1] ** level for level in range(len(self.sizes)))

    @property
    def is_complete(self) -> bool:
        """Whether all leaves are on the last level."""
        return self.inner == self.sizes[:-1]

    @cached_property
    def _first(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes, initial=0))

    def level(self, node: int) -> int:
        """The level of a node: 0 for the root."""
        self._check(node)
        return bisect_right(self._first, node) - 1

    def on_level(self, level: int) -> range:
        """The nodes of one level."""
        if not 0 <= level <= self.depth:
            raise TreeError(f"level {level} does not exist: this tree has levels 0..{self.depth}")
        return range(self._first[level], self._first[level + 1])

    def levels(self) -> Iterator[range]:
        """The nodes level by level, from the root."""
        return map(self.on_level, range(len(self.sizes)))

    def children(self, node: int) -> range:
        """The children of a node, in order; empty for a leaf."""
        level = self.level(node)
        if level == self.depth:
            return range(0)
        position = node - self._first[level]
        return self._below(level, position, position + 1)

    def parent(self, node: int) -> int:
        """The parent of a worker."""
        level = self.level(node)
        if level == 0:
            raise TreeError("the root, node 0, has no parent")
        position = node - self._first[level]
        return self._first[level - 1] + ((position + 1) * self.inner[level - 1] - 1) // self.sizes[level]

    def ancestors(self, node: int) -> list[int]:
        """The nodes from just below the root down to `node` itself.

        >>> Tree.regular(fanout=4, depth=3).ancestors(84)
        [4, 20, 84]
        """
        line = []
        while node:
            line.append(node)
            node = self.parent(node)
        return line[::-1]

    def subtree_size(self, node: int) -> int:
        """The number of nodes of a subtree, including its own root."""
        level = self.level(node)
        return self._interval_size(level, node - self._first[level], node - self._first[level] + 1)

    def preorder(self, node: int) -> int:
        """A worker's position, from 0, among all workers in preorder.

        >>> tree = Tree.regular(fanout=2, depth=2)
        >>> [tree.preorder(node) for node in range(1, 7)]
        [0, 3, 1, 2, 4, 5]
        """
        line = self.ancestors(node)
        if not line:
            raise TreeError("the root, node 0, is not a worker")
        place = len(line) - 1
        for level, ancestor in enumerate(line, start=1):
            oldest = self.children(line[level - 2] if level > 1 else 0).start
            place += self._interval_size(level, oldest - self._first[level], ancestor - self._first[level])
        return place

    def _below(self, level: int, start: int, stop: int) -> range:
        """The children of positions start..stop-1 of a level, as nodes."""
        inner, size, first = self.inner[level], self.sizes[level + 1], self._first[level + 1]
        return range(first + min(start, inner) * size // inner, first + min(stop, inner) * size // inner)

    def _interval_size(self, level: int, start: int, stop: int) -> int:
        """The number of nodes at and below positions start..stop-1 of a level."""
        total = stop - start
        while level < self.depth and start < stop:
            below = self._below(level, start, stop)
            level += 1
            start, stop = below.start - self._first[level], below.stop - self._first[level]
            total += stop - start
        return total

    def _check(self, node: int) -> None:
        if not 0 <= node <= self.workers:
            raise TreeError(f"node {node} does not exist: this tree has nodes 0..{self.workers}")

    def __str__(self) -> str:
        if self.is_regular:
            return f"{self.sizes[1]}x{self.depth}"
        return "levels of " + ", ".join(map(str, self.sizes[1:])) + " workers"


def _level_sizes(workers: int, most: int, least: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and inner counts of the levels, when every parent has `least` to `most` children.

    >>> _level_sizes(20, 4, 2)
    ((1, 4, 16), (1, 4))
    >>> _level_sizes(5, 4, 2)            # no level can hold all leaves: one of three workers has two children
    ((1, 3, 2), (1, 1))
    """
    if workers < 1:
        raise TreeError(f"a tree needs at least one worker, got {workers}")
    if least < 1:
        raise TreeError(f"a tolerance cannot be negative, got stragglers={least - 1}")
    if most < least:
        raise TreeError(
            f"tolerating {least - 1} stragglers takes at least {least} children under each parent, "
            f"and the fan-out is {most}"
        )
    if workers < least:
        raise TreeError(f"tolerating {least - 1} stragglers takes at least {least} workers, got {workers}")
    depth = 1
    while _full(most, depth) < workers:
        depth += 1
    if _full(least, depth) <= workers:
        sizes = _complete(workers, most, least, depth)
        return sizes, sizes[:-1]
    return _partly_filled(workers, most, least, depth)


def _full(fanout: int, depth: int) -> int:
    """Workers of a regular tree: n + n^2 + ... + n^L."""
    return depth if fanout == 1 else fanout * (fanout**depth - 1) // (fanout - 1)


def _complete(workers: int, most: int, least: int, depth: int) -> tuple[int, ...]:
    """Level sizes with all leaves on the last level, fan-outs as equal over the levels as integers allow."""
    ideal = _even_fanout(workers, depth)
    sizes = [1]
    left = workers
    for level in range(1, depth):
        below = depth - level
        lowest = max(least * sizes[-1], -(-left // (1 + _full(most, below))))
        highest = min(most * sizes[-1], left // (1 + _full(least, below)))
        size = min(max(round(ideal**level), lowest), highest)
        same_for_all = round(size / sizes[-1]) * sizes[-1]
        sizes.append(same_for_all if lowest <= same_for_all <= highest else size)
        left -= sizes[-1]
    return (*sizes, left)


def _even_fanout(workers: int, depth: int) -> float:
    """The real f with f + f^2 + ... + f^depth = workers."""
    low, high = 0.0, float(workers ** (1 / depth))
    for _ in range(100):
        middle = (low + high) / 2
        if sum(middle**level for level in range(1, depth + 1)) < workers:
            low = middle
        else:
            high = middle
    return high


def _partly_filled(workers: int, most: int, least: int, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A complete tree with one level less, in which some leaves get children."""
    for above in range(_full(most, depth - 1), _full(least, depth - 1) - 1, -1):
        left = workers - above
        sizes = _complete(above, most, least, depth - 1)
        parents = min(sizes[-1], left // least)
        if parents and left <= most * parents:
            return (*sizes, left), (*sizes[:-1], parents)
    raise TreeError(
        f"{workers} workers cannot be arranged with {least} to {most} children under each parent; "
        f"take a fan-out of {workers} (one level), or {_full(least, depth)} workers or more"
    )
