"""Schemes, and the plans that assign the computation to nodes.

`scheme` defines the schemes. `plan` is the interface of plans; `tree_plan` (with `allocation`), `ring_plan`
and `striped` implement it. `names` parses schemes from text. `choice` selects a scheme when the user names none, and
gives the reason.
"""

from codedreduce.schemes.plan import NeededTask, Needs, Piece, Plan, Range, Unit
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

__all__ = [
    "CodedReduce",
    "GradientCoding",
    "LiveCompensation",
    "MasterWorker",
    "NeededTask",
    "Needs",
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
