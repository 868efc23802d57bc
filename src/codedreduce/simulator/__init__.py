"""The simulator: the same state machines as in real runs, over virtual time.

`kernel` is the clock. `nodes` runs the machines. `post` and `network` deliver messages. `computations` computes
`gradients`, where an oracle checks every sum. `faults` injects faults, and `wrong` flips bits. `simulated_cluster`
connects all of them. `scenario` describes a run, and `record` keeps its trace.
"""

from codedreduce.run.delays import Delays, load_trace, parse_delays
from codedreduce.simulator.faults import Fault
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.network import Link
from codedreduce.simulator.record import Recorder
from codedreduce.simulator.simulated_cluster import Conditions, SimulatedCluster

__all__ = [
    "Conditions",
    "Delays",
    "Fault",
    "Gradients",
    "Link",
    "Recorder",
    "SimulatedCluster",
    "load_trace",
    "parse_delays",
]
