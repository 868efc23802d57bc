"""The states of the root of a tree, and their transitions: the table of `Root`."""

from __future__ import annotations

from codedreduce.protocol.core.events import (
    Begin,
    ComputationStopped,
    Computed,
    Drained,
    Failed,
    Leave,
    PeerFound,
    PeerLost,
    Started,
    TimerFired,
)
from codedreduce.protocol.core.machine import CHILD, OWN, STAY, Row, State
from codedreduce.protocol.core.messages import (
    Failure,
    Goodbye,
    Hello,
    Late,
    Leaving,
    Offer,
    Ready,
    ShareChunk,
    Unable,
)


class RootState(State):
    """The state of the root."""

    IDLE = "between rounds"
    COLLECTING = "a round is on"
    SETTLING = "asked everyone for what they have"
    STOPPED = "the run is over"


IDLE, COLLECTING, SETTLING, STOPPED = RootState
IN_ROUND = (COLLECTING, SETTLING)
_RUNNING = (IDLE, *IN_ROUND)

#: States, trigger and sender; the method that handles the trigger, of `Root` or of a part; the states it may lead to.
ROWS = (
    Row((IDLE,), Started, OWN, "_on_started"),
    Row((IDLE,), Begin, OWN, "_on_begin", (COLLECTING,)),
    Row(IN_ROUND, ShareChunk, CHILD, "_on_share_chunk", (STAY, IDLE)),
    Row((COLLECTING,), TimerFired, OWN, "_on_timer", (STAY, SETTLING)),
    Row((SETTLING,), TimerFired, OWN, "_on_timer", (STAY, IDLE)),
    Row(_RUNNING, Leave, OWN, "_on_leave", (STOPPED,)),
    Row(IN_ROUND, Unable, CHILD, "_on_unable", (STAY, STOPPED)),
    Row(IN_ROUND, Failure, CHILD, "_on_failure", (STAY, STOPPED)),
    Row((IDLE,), Failure, CHILD, "_note_failure"),
    Row(IN_ROUND, Computed, OWN, "_on_computed", (STAY, IDLE)),
    Row(IN_ROUND, Failed, OWN, "_standing_in.on_failed"),
    Row(IN_ROUND, ComputationStopped, OWN),
    *(Row((IDLE, STOPPED), what, OWN) for what in (Computed, Failed, ComputationStopped)),
    Row((IDLE,), ShareChunk, CHILD, "_on_share_chunk"),
    Row((IDLE,), TimerFired, OWN, "_on_timer"),
    Row(_RUNNING, Offer, CHILD, "_on_offer"),
    Row(_RUNNING, Hello, CHILD, "_on_hello"),
    Row(_RUNNING, Ready, CHILD, "_on_ready"),
    Row(_RUNNING, Late, CHILD, "_on_late"),
    Row(_RUNNING, Goodbye, CHILD, "_on_goodbye"),
    Row(_RUNNING, Leaving, CHILD, "_on_leaving"),
    Row(_RUNNING, PeerLost, OWN, "_on_peer_lost"),
    Row(_RUNNING, PeerFound, OWN),
    Row(_RUNNING, Drained, OWN, "_on_drained"),
    *(Row((STOPPED,), trigger, OWN) for trigger in (PeerLost, PeerFound, Drained, TimerFired)),
)
