"""Schemes, and the plans that say who computes what.

What lives here: `scheme` what a scheme is, `allocation` and `coded` who computes what, `tree_plan`, `ring` and
`striped` the result, `names` schemes as people write them, `choice` which one is taken when none is named, and why.
"""

from codedreduce.schemes.plan import NodeWork, Plan, Unit
from codedreduce.schemes.ring import RingPlan
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
from codedreduce.schemes.work import Needs, Piece, Range, Share

__all__ = [
    "CodedReduce",
    "GradientCoding",
    "LiveCompensation",
    "MasterWorker",
    "Needs",
    "NodeWork",
    "Part",
    "Piece",
    "Plan",
    "Range",
    "RingAllReduce",
    "RingPlan",
    "Scheme",
    "Share",
    "Striped",
    "StripedPlan",
    "TreePlan",
    "TreeScheme",
    "Unit",
]
