"""A cluster of network namespaces on this machine: real TCP, real bandwidth limits, and faults of the network.

What lives here: `lab` namespaces on a bridge, `namespaces` entering them, `tools` `ip` and `tc`.
"""

from codedreduce.lab.lab import DEFAULT_NAME, Lab, NodeStatus
from codedreduce.lab.tools import check_available

__all__ = ["DEFAULT_NAME", "Lab", "NodeStatus", "check_available"]
