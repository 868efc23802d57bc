"""All durations of the protocol and of the network layer, in one object that is handed in.

Ratios and counts (fractions of a round, numbers of tries) are constants of the modules that use them. Durations that a
user sets are fields of `run.agreement.Meeting` and `protocol.Settings`. Those of the leader's reaction to stragglers
are part of its `Policy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from codedreduce.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Durations in seconds. Tests hand in shorter ones."""

    # -- ranks join
    hello_retry: float = 2.0  # a rank that has not been welcomed sends hello again after this, longer each time
    latecomer_wait: float = 1.0  # minimum wait for the remaining ranks once enough have joined
    missing_report: float = 0.5  # a worker of a tree that waits for children reports the missing ones

    # -- the leader is alive
    liveness_query: float = 1.0  # minimum length of a round before a rank asks the leader whether it is alive
    liveness_timeout: float = 2.0  # minimum timeout for the leader's answer

    # -- elections
    election_retry: float = 0.1  # a rank without a leader retries, at first
    election_retry_limit: float = 300.0  # and at most
    election_report: float = 1.0  # a rank that waits this long between retries reports the ranks that it waits for

    # -- rounds
    status_report: float = 5.0  # minimum length of a round before a rank repeats its status to the leader
    status_report_limit: float = 600.0  # maximum time between two such reports
    sum_retry: float = 0.05  # minimum time before a rank requests the missing chunks of a past sum
    sum_retry_limit: float = 30.0  # and the maximum
    state_timeout: float = 1.0  # minimum timeout for another rank's state
    state_grace: float = 2.0  # a rank in the middle of a step gives its state after this time

    # -- ranks leave
    end_grace: float = 5.0  # minimum grace period for ranks that are behind when a run ends
    handover_check: float = 0.02  # minimum time between two checks of a leaving rank whether it may leave
    handover_timeout: float = 1.0  # a leaving rank waits this long for a new leader
    worker_grace: float = 2.0  # the processes that this one forked may take to leave at the end
    failure_grace: float = 5.0  # processes may take to end when the run has failed or cannot go on
    last_output: float = 0.2  # a failed process's last output may take to arrive
    exit_timeout: float = 5.0  # a process waits this long for its other threads when it ends

    # -- connections
    reconnect: float = 0.02  # ZeroMQ retries a lost connection, at first
    reconnect_limit: float = 0.5  # and at most
    rendezvous_retry: float = 0.01  # ZeroMQ retries a connection to a rendezvous address, at first
    rendezvous_retry_limit: float = 0.25  # and at most
    connect_timeout: float = 1.5  # an unanswered TCP connection is tried again: the kernel would wait ever longer
    keepalive: float = 1.0  # the kernel probes a silent neighbour, and between probes; whole seconds, at least one
    connection_timeout: float = 4.0  # a connection without a reply, to a probe or to data, is lost
    renew_connection: float = 2.0  # a lost connection is made from scratch: ZeroMQ gives up on some
    linger: float = 0.2  # a closed socket still sends what was handed over

    # -- connections of unknown peers
    handshake_timeout: float = 10.0  # for the ZeroMQ handshake of a connection
    identify_timeout: float = 10.0  # for a peer to identify itself in this protocol after the handshake
    key_timeout: float = 5.0  # a connection waits for a directory to name its key
    unidentified_check: float = 2.0  # time between two checks of unidentified connections
    leftover: float = 0.1  # frames of a connection that was cut may still be read
    leftover_report: float = 5.0  # possible leftovers are not reported, however busy the host is
    recut: float = 1.0  # a neighbour loses no second connection for what is read after a cut
    recut_unheard: float = 5.0  # the same, while the neighbour has sent nothing on a new connection

    # -- rendezvous
    registration_retry: float = 0.05  # a rank asks the directory of another run again, which may be about to end
    taken_retry: float = 1.0  # a rank asks again if another process has its rank, whose end may be unknown
    taken_timeout: float = 8.0  # that answer is final
    rejection_timeout: float = 2.0  # the rejection of a rank's secret is final: the rejecting run may be about to end
    correction_timeout: float = 3.0  # for a rank with another plan to come with the right one
    directory_rest: float = 0.05  # further registrations wait, while other sockets are served
    serve_retry: float = 1.0  # the leader tries again to serve the rendezvous address
    probe_timeout: float = 1.0  # for the host of an unreachable process to answer a probe
    probe_retry: float = 0.05  # time between two probes, at first
    probe_retry_limit: float = 1.0  # and at most
    poll_interval: float = 0.2  # a process that waits looks at other processes this often
    process_check: float = 0.05  # and at the start of rounds at most this often

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 < value < math.inf:
                raise UsageError(f"a duration must be above 0 and finite, got {one.name} {value:g}")

    def scaled(self, factor: float) -> Timing:
        """All durations, times a factor.

        >>> Timing().scaled(0.1).connection_timeout
        0.4
        """
        return Timing(**{one.name: factor * getattr(self, one.name) for one in fields(self)})


#: The durations of a run, unless others are handed in.
TIMING = Timing()


def milliseconds(seconds: float) -> int:
    """A duration as ZeroMQ takes it: at least 1 ms.

    >>> milliseconds(1.5), milliseconds(0.0001)
    (1500, 1)
    """
    return max(1, round(1000 * seconds))
