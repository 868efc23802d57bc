"""A cluster of network namespaces on this host: real TCP, real bandwidth limits, and network faults.

`laboratory` creates namespaces on a bridge, `namespaces` enters them, `tools` calls `ip` and `tc`, and `chaos/` injects
faults into runs in a lab.
"""

from codedreduce.lab.laboratory import DEFAULT_NAME, Lab, NodeStatus
from codedreduce.lab.tools import check_available

__all__ = ["DEFAULT_NAME", "Lab", "NodeStatus", "check_available"]
