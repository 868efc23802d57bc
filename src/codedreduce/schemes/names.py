"""Parse trees and schemes from text: 4x2, 50/4, gradient-coding."""

from __future__ import annotations

import re
from typing import cast

from codedreduce.errors import UsageError
from codedreduce.schemes.scheme import (
    CodedReduce,
    CodeName,
    GradientCoding,
    LiveCompensation,
    MasterWorker,
    Order,
    RingAllReduce,
    Scheme,
    Striped,
)
from codedreduce.topology import Tree

SCHEMES = ("coded-reduce", "master-worker", "ring", "gradient-coding", "live-compensation", "striped")


#: The default number of workers.
DEFAULT_WORKERS = 6


def parse_tree(text: str, stragglers: int = 0) -> Tree:
    """A tree from `4x2` (fan-out x depth), or `50/4` (50 workers, fan-out up to 4).

    >>> str(parse_tree("4x3"))
    '4x3'
    >>> parse_tree("50/4", stragglers=1).sizes
    (1, 3, 12, 35)
    """
    if match := re.fullmatch(r"(\d{1,18})x(\d{1,18})", text):
        return Tree.regular(fanout=int(match[1]), depth=int(match[2]))
    if match := re.fullmatch(r"(\d{1,18})/(\d{1,18})", text):
        return Tree.balanced(workers=int(match[1]), fanout=int(match[2]), stragglers=stragglers)
    raise UsageError(f"a tree is written FANOUTxDEPTH, as 4x2, or WORKERS/FANOUT, as 50/4; got {text!r}")


def parse_scheme(
    name: str, *, tree: Tree, stragglers: int, code: str = "repetition", order: str = "progressive",
    units: int | None = None,
) -> Scheme:  # fmt: skip
    """The scheme of that name over as many workers as the tree has; only stripes accept `units`.

    >>> str(parse_scheme("gradient-coding", tree=parse_tree("4x2"), stragglers=3))
    'gradient-coding S=3 over 20 workers'
    """
    workers = tree.workers
    if units is not None and name != "striped":
        raise UsageError(f"{name} accepts no number of units: they follow from its workers; use striped")
    match name:
        case "coded-reduce":
            return CodedReduce(tree, stragglers, code=cast(CodeName, code), order=cast(Order, order))
        case "master-worker":
            return MasterWorker(workers)
        case "ring":
            return RingAllReduce(workers)
        case "gradient-coding":
            return GradientCoding(workers, stragglers, code=cast(CodeName, code))
        case "live-compensation":
            return LiveCompensation(workers, wait_for=workers - stragglers)
        case "striped":
            return Striped(workers, units=units)
    raise UsageError(f"unknown scheme {name!r}; there are {', '.join(SCHEMES)}")


def default_scheme(workers: int = DEFAULT_WORKERS, stragglers: int = 1) -> Scheme:
    """The default scheme: CodedReduce over a balanced tree with fan-outs up to 4.

    >>> str(default_scheme(6)), str(default_scheme(1))
    ('coded-reduce progressive s=1 over a tree 2x2', 'coded-reduce progressive s=0 over a tree 1x1')
    """
    if workers <= stragglers:
        return CodedReduce(Tree.regular(fanout=workers, depth=1), 0)
    fanout = max(4, stragglers + 1)
    return CodedReduce(Tree.balanced(workers=workers, fanout=fanout, stragglers=stragglers), stragglers)
