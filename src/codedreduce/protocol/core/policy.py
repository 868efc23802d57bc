"""The constants of the policy for stragglers, in one object, so that a simulation can vary them (`bench/ablation.py`).

A *margin* is the time after which a rank is late beyond its expected time; it follows from the head start of the
settings. *Elapsed* is the time that has passed since the event in question, or in the round.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """When a rank counts as late, which work others then do, and how long the leader waits for anything."""

    # -- when the leader acts on a late rank: fractions of its margin

    ask_after: float = 0.25  # the leader asks the rank for its progress
    stuck_not_begun: float = 0.5  # a rank that answers and has not begun is stuck
    stuck_silent: float = 1.0  # a rank that does not answer is stuck
    stuck_catching_up: float = 2.0  # a rank that reports an earlier round is stuck

    # -- the length of a margin

    unknown_margin: float = 1.0  # head start of a rank of unknown pace, as a fraction of its expected time
    round_margin: float = 0.5  # least margin: this fraction of the head start of a whole round
    rounds_timed: int = 5  # rounds whose length is remembered
    vector_margin: float = 0.5  # a rank is stuck if it is late by this fraction of the time of a helper's vector
    vector_queue: float = 0.2  # a message may wait behind vectors for this fraction of a vector's time
    blocks_without_news: float = 2.0  # a rank that made progress is stuck after the time of so many blocks

    # -- questions and answers

    answer_elapsed: float = 0.05  # timeout of an answer, as a fraction of the elapsed time ...
    answer_round: float = 0.02  # ... and of a round
    report_valid: float = 0.5  # a report of a rank is valid for this fraction of a block's time
    retry_elapsed: float = 0.1  # the leader checks again a rank without helpers after this fraction of the elapsed time
    lost_after: float = 1.0  # seconds after which a message from the start of a round counts as lost

    # -- helpers and bets: work that may be done twice

    idle_searched: int = 64  # idle ranks that are searched for helpers
    least_saving: float = 0.5  # others take work only if that saves this fraction of a block's time
    open_bets: float = 0.2  # fraction of all ranks that may have an open bet at a time without saved credit
    bet_credit: float = 0.2  # credit for every delivered part, in bets
    most_credit: float = 1.0  # most credit that is saved, in bets per rank
    bets_unlimited: float = 4.0  # bets are not limited after so many times the expected time of a round

    # -- the pace of a rank

    rounds_of_pace: int = 4  # rounds that are remembered of a rank
    lags_needed: int = 4  # a rank is known to begin late when it did so in this many rounds
    recovered_within: float = 2.0  # a slow rank has recovered if a block takes at most so many times as long as usual
    begun_late: float = 2.0  # a single block that took so many times longer than usual was begun late
    spread_values: int = 64  # deviations from expected times that are remembered, of all ranks together
    spread_part: float = 0.4  # fraction of them that counts as fault-free

    # -- slow links

    slow_link: float = 4.0  # a link is slow if its chunks take so many times as long as most others' ...
    slow_link_round: float = 0.15  # ... and longer by this fraction of the round ...
    slow_link_rounds: int = 3  # ... in so many rounds in a row
    slow_link_ranks: int = 3  # times of so many ranks must be known: fewer ranks have no majority to compare with
    vectors_timed: int = 32  # rounds whose time of a vector is remembered; the quickest counts

    # -- the start of a round

    trial_every: int = 4  # a rank without work computes one block in so many rounds, beside another rank
    late_start: float = 0.75  # the plan considers a late start of this fraction of a unit's time
    draft_saving: float = 0.02  # another draft of assignments is used if it saves this fraction of the round
    vector_delay: float = 0.15  # a second vector of a rank delays others by this fraction of its time
    stripe_saving: float = 0.2  # stripes differ if their lengths would differ by this fraction

    # -- excluded ranks

    excluded_rounds: int = 4  # rounds for which a rank that did not deliver or reduce is excluded; they double ...
    most_excluded_rounds: int = 256  # ... up to this number
    begun_in_time: float = 0.3  # an excluded rank takes part again if it begins a round within this fraction of it

    # -- the sum, when all units are computed

    sums_timed: int = 8  # rounds for which the time from the last unit to the sum is remembered
    sum_timeout: float = 1.5  # a sum is late after this many times its expected time
    sum_retry: float = 0.5  # time between interventions, as a fraction of that timeout ...
    sum_retry_elapsed: float = 0.1  # ... and of the elapsed time ...
    longest_elapsed: float = 600.0  # ... of which at most this many seconds count
    least_sum_timeout: float = 0.01  # least seconds of either
    head_start_of_sum: float = 0.5  # least timeout: this fraction of the head start of the round so far
    slow_checks: int = 6  # checks during which the leader waits for a reducer that lacks many units: vectors are slow
    unknown_slow_checks: int = 10  # the same while no vector's time is known

    just_reported: float = 0.1  # work reported so recently, of the elapsed time, is redone if its rank is lost

    # -- audits

    check_timeout: float = 2.0  # a checker is late after this many times its expected time ...
    check_elapsed: float = 0.1  # ... and this fraction of the elapsed time
    least_check_timeout: float = 0.01  # least seconds of that
    least_absent_wait: float = 1.0  # least seconds that the leader waits for a checker that is not at the round


DEFAULT_POLICY = Policy()
