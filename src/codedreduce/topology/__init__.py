"""Trees of workers: which nodes exchange messages."""

from codedreduce.topology.tree import Tree

__all__ = ["Tree"]
