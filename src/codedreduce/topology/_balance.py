"""Level sizes for a tree of any number of workers."""

from __future__ import annotations

from codedreduce.errors import TreeError


def level_sizes(workers: int, most: int, least: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and inner counts of the levels, when every parent has `least` to `most` children.

    >>> level_sizes(20, 4, 2)
    ((1, 4, 16), (1, 4))
    >>> level_sizes(5, 4, 2)            # no level can hold all leaves: one of three workers has two children
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
