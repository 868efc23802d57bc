"""Topologies: which nodes exchange messages."""

from codedreduce.topology.ring import Ring
from codedreduce.topology.tree import Tree

__all__ = ["Ring", "Tree"]
