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
from codedreduce.protocol.core.machine import FOLLOWER, LEADER, OWN, PEER, STAY, Row, State
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
    Late,
    Lead,
    Leaving,
    Mistaken,
    NewReducer,
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
_ANY_RANK = (LEADER, FOLLOWER, PEER)

#: Messages about a vector, which is the same in every generation; and messages that announce a generation.
OF_ANY_GENERATION = (
    PartChunk, SumChunk, StateChunk, Want, Past, StateOffer, Take, Hello, Welcome, Stand, Lead, Goodbye,
)  # fmt: skip

#: Which states handle which trigger from which sender, by which method of `Rank` or of one of its parts; and the states
#: that this can lead to.
ROWS = (
    Row((JOINING,), Started, OWN, "_on_started", (STAY, RESTING)),
    Row((JOINING,), Welcome, (LEADER, PEER), "_joining.on_welcome", (STAY, RESTING)),
    Row((RESTING, WORKING, RENEWING, ENDING), Welcome, _ANY_RANK, "_joining.on_welcome"),
    Row((READY,), Welcome, _ANY_RANK, "_joining.on_welcome", (STAY, WORKING)),
    Row(_ALL, Refuse, LEADER, "_departure.on_refuse", (LEFT,)),
    # a round
    Row((RESTING,), Begin, OWN, "_on_begin", (READY, WORKING, RESTING, RENEWING)),
    Row((RESTING, RENEWING), Go, LEADER, "_on_go"),
    Row((WORKING,), Go, LEADER, "_on_go", (STAY, READY, RESTING)),
    Row((READY,), Go, LEADER, "_on_go", (STAY, WORKING, RESTING)),
    Row((ENDING,), Go, LEADER, "_on_go", (STAY, LEFT)),
    Row(_IN, Do, LEADER, "_worker.on_do"),
    Row(_IN, Cut, LEADER, "_worker.on_cut"),
    Row(_IN, Tell, LEADER, "_worker.on_tell"),
    Row(_IN, Check, LEADER, "_worker.on_check"),
    Row((WORKING,), Passed, LEADER, "_worker.on_passed", (STAY, RESTING)),
    Row(_IN, Mistaken, LEADER, "_worker.on_mistaken"),
    Row(_IN, DamagedChunk, _ANY_RANK, "_worker.on_damaged"),
    Row((WORKING,), NewReducer, LEADER, "_worker.on_new_reducer", (STAY, RESTING)),
    Row(_NOT_WORKING, NewReducer, LEADER, "_worker.on_new_reducer"),
    Row((WORKING,), Computed, OWN, "_on_computed", (STAY, RESTING)),
    Row((WORKING,), Advanced, OWN, "_worker.on_advanced"),
    Row((WORKING,), Digested, OWN, "_worker.on_digested"),
    Row((WORKING,), Failed, OWN, "_worker.on_failed", (STAY, LEFT)),
    Row(_IN, ComputationStopped, OWN, "_worker.on_interrupted"),
    Row((WORKING,), PartChunk, _ANY_RANK, "_on_part", (STAY, RESTING)),
    Row(_NOT_WORKING, PartChunk, _ANY_RANK, "_on_part"),
    Row((WORKING,), SumChunk, _ANY_RANK, "_exchange.on_sum", (STAY, RESTING)),
    Row((READY,), SumChunk, (LEADER, PEER), "_exchange.on_sum", (STAY, RESTING)),
    Row((READY,), SumChunk, FOLLOWER, "_exchange.on_sum"),
    Row((RESTING, RENEWING, ENDING), SumChunk, _ANY_RANK, "_exchange.on_sum"),
    # catching up and state transfer
    Row(_IN, Want, _ANY_RANK, "_catch_up.on_want"),
    Row(_IN, StateOffer, _ANY_RANK, "_catch_up.on_offer"),
    Row(_IN, Take, _ANY_RANK, "_giving.on_take"),
    Row((RENEWING,), Past, _ANY_RANK, "_catch_up.on_past"),
    Row((WORKING,), Past, LEADER, "_catch_up.on_past", (STAY, RENEWING)),
    Row((WORKING,), Past, (FOLLOWER, PEER), "_catch_up.on_past"),
    Row((RENEWING,), StateChunk, _ANY_RANK, "_catch_up.on_state", (STAY, RESTING)),
    Row((RESTING,), Overtaken, OWN, "_catch_up.on_overtaken"),
    Row((RESTING,), Renew, LEADER, "_catch_up.on_must_renew"),
    Row((READY, WORKING), Renew, LEADER, "_catch_up.on_must_renew", (RENEWING,)),
    Row(_IN, Give, LEADER, "_giving.on_give"),
    Row(_IN, StatePacked, OWN, "_giving.on_packed"),
    # messages to the leader
    Row((RESTING,), Hello, FOLLOWER, "_joining.on_hello", (STAY, JOINING)),
    Row((READY, WORKING, RENEWING, ENDING), Hello, FOLLOWER, "_joining.on_hello"),
    Row(_IN, Status, FOLLOWER, "_on_status"),
    Row(_IN, Done, FOLLOWER, "_members.on_done"),
    Row((WORKING,), Checked, FOLLOWER, "_members.on_checked", (STAY, RESTING, LEFT)),
    Row((WORKING,), Unable, FOLLOWER, "_departure.on_unable", (STAY, LEFT)),
    Row(_IN, Renew, FOLLOWER, "_giving.on_renew"),
    Row(_IN, Late, FOLLOWER, "_members.on_late"),
    Row((ENDING,), Have, FOLLOWER, "_departure.on_have", (STAY, LEFT)),
    Row((RESTING, READY, WORKING, RENEWING), Have, FOLLOWER, "_departure.on_have"),
    Row((RESTING, READY, RENEWING), Goodbye, FOLLOWER, "_on_follower_left"),
    Row((WORKING,), Goodbye, FOLLOWER, "_on_follower_left", (STAY, RESTING)),
    Row((ENDING,), Goodbye, FOLLOWER, "_on_follower_left", (STAY, LEFT)),
    Row((RESTING, READY, WORKING, RENEWING), Leaving, FOLLOWER, "_members.on_leaving"),
    # election
    Row((RESTING,), Stand, FOLLOWER, "_joining.on_stand", (STAY, JOINING)),
    Row((READY, WORKING, RENEWING, ENDING), Stand, FOLLOWER, "_joining.on_stand"),
    Row(_ALL, Stand, (LEADER, PEER), "_joining.on_stand"),
    Row(_IN, Lead, _ANY_RANK, "_election.on_lead"),
    Row(_IN, Follow, (FOLLOWER, PEER), "_election.on_follow"),
    Row(_IN, Hello, (LEADER, PEER), "_joining.on_hello_to_another"),
    Row(_IN, Goodbye, PEER, "_on_peer_left"),
    # time and connections
    Row((JOINING, RESTING), TimerFired, OWN, "_on_timer"),
    Row((READY,), TimerFired, OWN, "_on_timer", (STAY, WORKING, RESTING, LEFT)),
    Row((RENEWING,), TimerFired, OWN, "_on_timer", (STAY, RESTING)),
    Row((WORKING,), TimerFired, OWN, "_on_timer", (STAY, RESTING, RENEWING, LEFT)),
    Row((ENDING,), TimerFired, OWN, "_on_timer", (STAY, LEFT)),
    Row(_ALL, Drained, OWN, "_links.on_drained"),
    Row((JOINING, RESTING, READY, RENEWING), PeerLost, OWN, "_on_peer_lost"),
    Row((WORKING,), PeerLost, OWN, "_on_peer_lost", (STAY, RESTING)),
    Row((ENDING,), PeerLost, OWN, "_on_peer_lost", (STAY, LEFT)),
    Row(_ALL, PeerFound, OWN, "_joining.on_peer_found"),
    # leaving, and the end of the run
    Row((RESTING, WORKING, RENEWING, ENDING), End, LEADER, "_departure.on_end"),
    Row((READY,), End, LEADER, "_departure.on_end", (STAY, WORKING)),
    Row(_ALL, Goodbye, LEADER, "_on_goodbye", (STAY, LEFT)),
    Row(_ALL, Failure, LEADER, "_departure.on_failure", (LEFT,)),
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
