"""Schemes, and the plans that say who computes what.

`scheme` defines what a scheme is, `allocation` and `coded` assign samples to workers; `plan` is the result, which
`tree_plan`, `ring_plan` and `striped` implement in terms of `work`. `names` parses schemes as people write them,
`choice` takes one when none is named, and says why.
"""

from codedreduce.schemes.plan import NodeWork, Plan, Unit
from codedreduce.schemes.ring_plan import RingPlan
from codedreduce.schemes.scheme import (
    CodedReduce,
    GradientCoding,
    LiveCompensation,
    MasterWorker,
    RingAllReduce,
    Scheme,
    Striped,
    TreeScheme,
)
from codedreduce.schemes.striped import Part, StripedPlan
from codedreduce.schemes.tree_plan import TreePlan
from codedreduce.schemes.work import NeededTask, Needs, Piece, Range

__all__ = [
    "CodedReduce",
    "GradientCoding",
    "LiveCompensation",
    "MasterWorker",
    "NeededTask",
    "Needs",
    "NodeWork",
    "Part",
    "Piece",
    "Plan",
    "Range",
    "RingAllReduce",
    "RingPlan",
    "Scheme",
    "Striped",
    "StripedPlan",
    "TreePlan",
    "TreeScheme",
    "Unit",
]
