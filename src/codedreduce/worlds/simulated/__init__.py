"""The simulated world: the same machines as everywhere, over virtual time."""

from codedreduce.worlds.delays import Delays, load_trace, parse_delays
from codedreduce.worlds.simulated.cluster import Conditions, SimulatedCluster
from codedreduce.worlds.simulated.faults import Fault, fail_at, random_faults
from codedreduce.worlds.simulated.gradients import Gradients
from codedreduce.worlds.simulated.network import Link
from codedreduce.worlds.simulated.record import Recorder

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
