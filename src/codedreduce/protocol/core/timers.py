"""The timers of all machines. Setting one again replaces it."""

from __future__ import annotations

from enum import StrEnum


class Timer(StrEnum):
    """What a machine does when the time has come."""

    # Leader, root
    WAITING = "waiting"  # report that a round, or the start of a run, waits for others

    # Leader
    LATE = "late"  # reassign the work of ranks that are late
    SUM_LATE = "sum late"  # act on sums that should have arrived

    # Rank
    HELLO = "hello"  # send hello again
    CATCH_UP = "catch up"  # request sums or a state again
    NO_NEWS = "no news"  # report the status: `Go` or the sum may be lost
    END = "end"  # stop waiting for the other ranks at the end of the run
    HANDOVER = "handover"  # check whether a rank that is to leave may leave
    GO_ON = "go on"  # the leader begins the round for which it waited

    # Election
    LIVENESS = "liveness"  # ask the leader whether it is alive, or suspect it
    ELECTION = "election"  # try another candidate
    ELECTED = "elected"  # begin to lead

    # Root and tree workers
    ENOUGH = "enough"  # begin without missing workers, if the others suffice
    SETTLED = "settled"  # an approximation is final
    REPLAN = "replan"  # compute shares that no connected worker can deliver
    REDUNDANCY = "redundancy"  # check whether to ask a replica for a share
    MISSING = "missing"  # report the children that are missing
    SETTLE = "settle"  # a worker that was asked to settle sends what it has
