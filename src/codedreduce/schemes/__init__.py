"""Schemes, and the plans that say who computes what."""

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
