"""The states of a rank and the transitions between them: the table of `Rank`."""

from __future__ import annotations

from codedreduce.protocol.core.events import (
    Advanced,
    Begin,
    ComputationStopped,
    Computed,
    Digested,
    Drained,
    Failed,
    HandOver,
    Leave,
    Overtaken,
    PeerFound,
    PeerLost,
    Started,
    StatePacked,
    TimerFired,
)
from codedreduce.protocol.core.machine import COORDINATOR, FOLLOWER, OWN, PEER, STAY, Row, State
from codedreduce.protocol.core.messages import (
    Check,
    Checked,
    Cut,
    DamagedChunk,
    Do,
    Done,
    End,
    Failure,
    Follow,
    Give,
    Go,
    Goodbye,
    Have,
    Hello,
    Keep,
    Late,
    Lead,
    Leaving,
    Mistaken,
    PartChunk,
    Passed,
    Past,
    Refuse,
    Renew,
    Stand,
    StateChunk,
    StateOffer,
    Status,
    SumChunk,
    Take,
    Tell,
    Unable,
    Want,
    Welcome,
)


class RankState(State):
    """The state of a rank."""

    JOINING = "has said hello"
    RESTING = "between rounds: its script has the sum"
    READY = "has begun, and the round has not"
    WORKING = "computes, or waits for the sum"
    RENEWING = "takes another's state"
    ENDING = "is through, and others may not be"
    LEFT = "has left"


JOINING, RESTING, READY, WORKING, RENEWING, ENDING, LEFT = RankState
_IN = (RESTING, READY, WORKING, RENEWING, ENDING)
_ALL = (JOINING, *_IN)
_NOT_WORKING = (RESTING, READY, RENEWING, ENDING)
_ANY_RANK = (COORDINATOR, FOLLOWER, PEER)

#: Which states handle which trigger from which sender, by which method of `Rank` or of one of its parts; and the states
#: that this can lead to.
ROWS = (
    Row((JOINING,), Started, OWN, "_on_started", (STAY, RESTING)),
    *(Row((JOINING,), Welcome, who, "_joining.on_welcome", (STAY, RESTING)) for who in (COORDINATOR, PEER)),
    *(Row((RESTING, WORKING, RENEWING, ENDING), Welcome, who, "_joining.on_welcome") for who in _ANY_RANK),
    *(Row((READY,), Welcome, who, "_joining.on_welcome", (STAY, WORKING)) for who in _ANY_RANK),
    Row(_ALL, Refuse, COORDINATOR, "_departure.on_refuse", (LEFT,)),
    # a round
    Row((RESTING,), Begin, OWN, "_on_begin", (READY, WORKING, RESTING, RENEWING)),
    Row((RESTING, RENEWING), Go, COORDINATOR, "_on_go"),
    Row((WORKING,), Go, COORDINATOR, "_on_go", (STAY, READY, RESTING)),
    Row((READY,), Go, COORDINATOR, "_on_go", (STAY, WORKING, RESTING)),
    Row((ENDING,), Go, COORDINATOR, "_on_go", (STAY, LEFT)),
    Row(_IN, Do, COORDINATOR, "_worker.on_do"),
    Row(_IN, Cut, COORDINATOR, "_worker.on_cut"),
    Row(_IN, Tell, COORDINATOR, "_worker.on_tell"),
    Row(_IN, Check, COORDINATOR, "_worker.on_check"),
    Row((WORKING,), Passed, COORDINATOR, "_on_passed", (STAY, RESTING)),
    Row(_IN, Mistaken, COORDINATOR, "_worker.on_mistaken"),
    *(Row(_IN, DamagedChunk, who, "_worker.on_damaged") for who in _ANY_RANK),
    Row((WORKING,), Keep, COORDINATOR, "_on_keep", (STAY, RESTING)),
    Row(_NOT_WORKING, Keep, COORDINATOR, "_on_keep"),
    Row((WORKING,), Computed, OWN, "_on_computed", (STAY, RESTING)),
    Row((WORKING,), Advanced, OWN, "_worker.on_advanced"),
    Row((WORKING,), Digested, OWN, "_worker.on_digested"),
    Row((WORKING,), Failed, OWN, "_on_failed", (STAY, LEFT)),
    Row(_IN, ComputationStopped, OWN, "_worker.on_interrupted"),
    *(Row((WORKING,), PartChunk, who, "_on_part", (STAY, RESTING)) for who in _ANY_RANK),
    *(Row(_NOT_WORKING, PartChunk, who, "_on_part") for who in _ANY_RANK),
    *(Row((WORKING,), SumChunk, who, "_on_sum", (STAY, RESTING)) for who in _ANY_RANK),
    *(Row((READY,), SumChunk, who, "_on_sum", (STAY, RESTING)) for who in (COORDINATOR, PEER)),
    Row((READY,), SumChunk, FOLLOWER, "_on_sum"),
    *(Row((RESTING, RENEWING, ENDING), SumChunk, who, "_on_sum") for who in _ANY_RANK),
    # catching up and state transfer
    *(Row(_IN, Want, who, "_catch_up.on_want") for who in _ANY_RANK),
    *(Row(_IN, StateOffer, who, "_catch_up.on_offer") for who in _ANY_RANK),
    *(Row(_IN, Take, who, "_giving.on_take") for who in _ANY_RANK),
    *(Row((RENEWING,), Past, who, "_catch_up.on_past") for who in _ANY_RANK),
    Row((WORKING,), Past, COORDINATOR, "_catch_up.on_past", (STAY, RENEWING)),
    *(Row((WORKING,), Past, who, "_catch_up.on_past") for who in (FOLLOWER, PEER)),
    *(Row((RENEWING,), StateChunk, who, "_catch_up.on_state", (STAY, RESTING)) for who in _ANY_RANK),
    Row((RESTING,), Overtaken, OWN, "_catch_up.on_overtaken"),
    Row((RESTING,), Renew, COORDINATOR, "_catch_up.on_must_renew"),
    Row((READY, WORKING), Renew, COORDINATOR, "_catch_up.on_must_renew", (RENEWING,)),
    Row(_IN, Give, COORDINATOR, "_giving.on_give"),
    Row(_IN, StatePacked, OWN, "_giving.on_packed"),
    # messages to the leader
    Row((RESTING,), Hello, FOLLOWER, "_on_hello", (STAY, JOINING)),
    Row((READY, WORKING, RENEWING, ENDING), Hello, FOLLOWER, "_on_hello"),
    Row(_IN, Status, FOLLOWER, "_on_status"),
    Row(_IN, Done, FOLLOWER, "_on_done"),
    Row((WORKING,), Checked, FOLLOWER, "_on_checked", (STAY, RESTING, LEFT)),
    Row((WORKING,), Unable, FOLLOWER, "_on_unable", (STAY, LEFT)),
    Row(_IN, Renew, FOLLOWER, "_on_renew"),
    Row(_IN, Late, FOLLOWER, "_on_late"),
    Row((ENDING,), Have, FOLLOWER, "_departure.on_have", (STAY, LEFT)),
    Row((RESTING, READY, WORKING, RENEWING), Have, FOLLOWER, "_departure.on_have"),
    Row((RESTING, READY, RENEWING), Goodbye, FOLLOWER, "_on_follower_left"),
    Row((WORKING,), Goodbye, FOLLOWER, "_on_follower_left", (STAY, RESTING)),
    Row((ENDING,), Goodbye, FOLLOWER, "_on_follower_left", (STAY, LEFT)),
    Row((RESTING, READY, WORKING, RENEWING), Leaving, FOLLOWER, "_on_leaving"),
    # election
    Row((RESTING,), Stand, FOLLOWER, "_on_stand", (STAY, JOINING)),
    Row((READY, WORKING, RENEWING, ENDING), Stand, FOLLOWER, "_on_stand"),
    *(Row(_ALL, Stand, who, "_on_stand") for who in (COORDINATOR, PEER)),
    *(Row(_IN, Lead, who, "_election.on_lead") for who in _ANY_RANK),
    *(Row(_IN, Follow, who, "_election.on_follow") for who in (FOLLOWER, PEER)),
    *(Row(_IN, Hello, who, "_on_hello_to_another") for who in (COORDINATOR, PEER)),
    Row(_IN, Goodbye, PEER, "_on_peer_left"),
    # time and connections
    Row((JOINING, RESTING), TimerFired, OWN, "_on_timer"),
    Row((READY,), TimerFired, OWN, "_on_timer", (STAY, WORKING, RESTING, LEFT)),
    Row((RENEWING,), TimerFired, OWN, "_on_timer", (STAY, RESTING)),
    Row((WORKING,), TimerFired, OWN, "_on_timer", (STAY, RESTING, RENEWING, LEFT)),
    Row((ENDING,), TimerFired, OWN, "_on_timer", (STAY, LEFT)),
    Row(_ALL, Drained, OWN, "_on_drained"),
    Row((JOINING, RESTING, READY, RENEWING), PeerLost, OWN, "_on_peer_lost"),
    Row((WORKING,), PeerLost, OWN, "_on_peer_lost", (STAY, RESTING)),
    Row((ENDING,), PeerLost, OWN, "_on_peer_lost", (STAY, LEFT)),
    Row(_ALL, PeerFound, OWN, "_on_peer_found"),
    # leaving, and the end of the run
    Row((RESTING, WORKING, RENEWING, ENDING), End, COORDINATOR, "_departure.on_end"),
    Row((READY,), End, COORDINATOR, "_departure.on_end", (STAY, WORKING)),
    Row(_ALL, Goodbye, COORDINATOR, "_on_goodbye", (STAY, LEFT)),
    Row(_ALL, Failure, COORDINATOR, "_departure.on_failure", (LEFT,)),
    Row((JOINING,), Leave, OWN, "_departure.on_leave", (LEFT,)),
    Row(_IN, Leave, OWN, "_departure.on_leave", (ENDING, LEFT)),
    Row((JOINING,), HandOver, OWN, "_handover.on_hand_over", (LEFT,)),
    Row((RESTING, READY, WORKING, RENEWING), HandOver, OWN, "_handover.on_hand_over"),
    Row((ENDING,), HandOver, OWN),
    *(Row((JOINING, *_NOT_WORKING), what, OWN) for what in (Computed, Advanced, Digested, Failed)),
    *(
        Row((LEFT,), what, OWN)
        for what in (
            Computed, Advanced, Digested, Failed, ComputationStopped, TimerFired, PeerFound, PeerLost, Drained,
            StatePacked, Leave, HandOver, Overtaken,
        )
    ),
)  # fmt: skip
