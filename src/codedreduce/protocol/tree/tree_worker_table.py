"""The states of a worker of a tree, and their transitions: the table of `TreeWorker`."""

from __future__ import annotations

from codedreduce.protocol.core.events import (
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
from codedreduce.protocol.core.machine import CHILD, OWN, PARENT, STAY, Row, State
from codedreduce.protocol.core.messages import (
    Enough,
    Failure,
    Goodbye,
    Hello,
    Late,
    Leaving,
    ModelChunk,
    Next,
    Offer,
    Ready,
    Refuse,
    Send,
    Settle,
    ShareChunk,
    Unable,
    Welcome,
)


class TreeWorkerState(State):
    """The state of a worker."""

    JOINING = "has said hello"
    WAITING = "waits for a model"
    LOADING = "a model is coming in"
    WORKING = "computes and collects"
    RESTING = "has delivered, or is not needed"
    LEFT = "has left"


JOINING, WAITING, LOADING, WORKING, RESTING, LEFT = TreeWorkerState
_IN = (JOINING, WAITING, LOADING, WORKING, RESTING)
_IN_ROUND = (LOADING, WORKING, RESTING)
_NOT_WORKING = (JOINING, WAITING, LOADING, RESTING)

#: States, trigger and sender; the method of `TreeWorker` that handles the trigger; the states it may lead to.
ROWS = (
    Row((JOINING,), Started, OWN, "_say_hello"),
    Row((JOINING,), Welcome, PARENT, "_on_welcome", (WAITING,)),
    Row((WAITING,), Welcome, PARENT, "_on_welcome_again"),
    Row(_IN_ROUND, Welcome, PARENT, "_on_welcome_again", (STAY, WAITING)),
    Row((JOINING,), Refuse, PARENT, "_on_refuse", (STAY, LEFT)),
    Row((JOINING, WAITING, RESTING), ModelChunk, PARENT, "_on_model_chunk", (STAY, LOADING, WORKING)),
    Row((LOADING,), ModelChunk, PARENT, "_on_model_chunk", (STAY, WORKING)),
    Row((WORKING,), ModelChunk, PARENT, "_on_model_chunk", (STAY, LOADING)),
    Row((WORKING,), Computed, OWN, "_on_computed", (STAY, RESTING)),
    Row((WORKING,), Failed, OWN, "_on_failed", (STAY, RESTING)),
    Row((WORKING,), ShareChunk, CHILD, "_on_share_chunk", (STAY, RESTING)),
    Row((WORKING,), Unable, CHILD, "_on_unable", (STAY, RESTING)),
    Row((WORKING,), Enough, PARENT, "_on_enough", (STAY, RESTING)),
    Row((RESTING,), Next, PARENT, "_on_next", (STAY, WORKING)),
    Row((JOINING, WAITING, *_IN_ROUND), PeerFound, OWN, "_on_peer_found", (STAY, JOINING)),
    Row(_IN, Goodbye, PARENT, "_on_goodbye", (LEFT,)),
    Row((JOINING,), Leave, OWN, "_on_leave", (LEFT,)),
    Row((WAITING, *_IN_ROUND), Leave, OWN, "_on_leave", (STAY, LEFT)),
    Row(_IN, PeerLost, OWN, "_on_peer_lost", (STAY, LEFT)),
    # rows that keep the state
    Row((WORKING,), Next, PARENT, "_on_next"),
    Row((WORKING, RESTING), Send, PARENT, "_on_send"),
    Row(_IN_ROUND, Settle, PARENT, "_on_settle"),
    Row(_NOT_WORKING, Computed, OWN, "_on_old_result"),
    Row(_NOT_WORKING, Failed, OWN, "_say_failed"),
    Row(_IN, ComputationStopped, OWN, "_on_interrupted"),
    Row(_IN, TimerFired, OWN, "_on_timer"),
    Row(_IN, Drained, OWN, "_on_drained"),
    Row(_NOT_WORKING, ShareChunk, CHILD, "_on_idle_share_chunk"),
    Row(_IN, Offer, CHILD, "_on_offer"),
    Row(_IN, Hello, CHILD, "_on_hello"),
    Row(_IN, Ready, CHILD, "_on_ready"),
    Row(_IN, Late, CHILD, "_on_late"),
    Row(_IN, Failure, CHILD, "_on_failure"),
    Row(_IN, Goodbye, CHILD, "_on_child_goodbye"),
    Row(_IN, Leaving, CHILD, "_on_child_leaving"),
    *(
        Row((LEFT,), what, OWN)
        for what in (Computed, Failed, ComputationStopped, TimerFired, PeerFound, PeerLost, Drained)
    ),
)
