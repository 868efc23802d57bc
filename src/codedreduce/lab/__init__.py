"""A cluster of network namespaces on this machine: real TCP, real bandwidth limits, and faults of the network.

`laboratory` makes namespaces on a bridge, `namespaces` enters them, `tools` calls `ip` and `tc`; `chaos/` breaks runs
in a lab.
"""

from codedreduce.lab.laboratory import DEFAULT_NAME, Lab, NodeStatus
from codedreduce.lab.tools import check_available

__all__ = ["DEFAULT_NAME", "Lab", "NodeStatus", "check_available"]
