"""The simulated world: the same machines as everywhere, over virtual time.

What lives here: virtual time: `kernel` the clock, `nodes` who handles what, `post` and `network` messages under way,
`computing` who computes until when, `faults` what can go wrong, `damage` numbers in which a bit is, `oracle` what is
right, `cluster` all of them together; `scenario` a run in a few words, `record` what it leaves behind.
"""

from codedreduce.run.delays import Delays, load_trace, parse_delays
from codedreduce.simulator.cluster import Conditions, SimulatedCluster
from codedreduce.simulator.faults import Fault, fail_at, random_faults
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.network import Link
from codedreduce.simulator.record import Recorder

__all__ = [
    "Conditions",
    "Delays",
    "Fault",
    "Gradients",
    "Link",
    "Recorder",
    "SimulatedCluster",
    "fail_at",
    "load_trace",
    "parse_delays",
    "random_faults",
]
