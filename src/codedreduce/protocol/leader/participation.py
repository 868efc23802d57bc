"""The ranks that take part in a round: those that are present, at the current round, and not excluded for a while.

A rank that was silent for a whole round gets no work in the next one. It reports when it begins a round without work,
and gets work again after that. So a rank that is frozen or cut off delays the run only once.

A rank that computes, but does not deliver or reduce (its link is slow), is excluded for some rounds, twice as many each
time. The exclusion lasts until it begins a round in time: to begin, it must have got the sum over that link.
"""

from __future__ import annotations

from collections.abc import Iterable

from codedreduce.protocol.core.audits import Mistakes
from codedreduce.protocol.core.policy import DEFAULT_POLICY, Policy


class Participation:
    """The known presence of the ranks. The leader's `own` rank is always present."""

    def __init__(self, own: int = 0, mistakes: Mistakes | None = None, policy: Policy = DEFAULT_POLICY) -> None:
        self._own = own
        self._policy = policy
        self._mistakes = mistakes
        self.present: set[int] = {own}
        self._away: set[int] = set()  # ranks that are new, or take another's state
        self._catch_up: set[int] = set()  # ranks that reported an earlier round
        self._left_out: dict[int, tuple[int, int]] = {}  # excluded ranks: until which round, and for how many
        self._heard: set[int] = set()  # ranks heard from in this round
        self._has_sum: set[int] = set()  # ranks that have the sum of this round, and compute nothing of it any more
        self._silent: set[int] = set()  # ranks not heard from in the last round
        self._leaving: set[int] = set()  # ranks that leave after this round
        self._wrong: set[int] = set()  # ranks that have computed wrongly in this round
        self._in_time: set[int] = set()  # ranks that began this round in time
        self._round = 0
        self._began = 0.0
        self._took = 0.0

    def came(self, rank: int) -> None:
        """A rank is a member; after the first round it must show that it is at the current one."""
        self.present.add(rank)
        self._leaving.discard(rank)
        if self._round:
            self._away.add(rank)

    def gone(self, rank: int) -> None:
        """A rank cannot be reached."""
        self.present.discard(rank)
        self._leaving.discard(rank)
        self._away.discard(rank)
        self._catch_up.discard(rank)
        self._has_sum.discard(rank)

    def begin(self, round_: int, now: float) -> None:
        """A round begins: ranks that were silent in the last one get no work; if most were, the leader awaits them."""
        self._silent = self.present - self._heard - {self._own} if self._round else set()
        if 2 * len(self._silent) > len(self.present):
            self._silent = set()
            self._catch_up = set()
        for rank, (until, rounds) in self._left_out.items():
            if until == self._round and rank not in self._in_time:
                self._left_out[rank] = (round_, rounds)
        self._heard = set()
        self._has_sum = set()
        self._wrong = set()
        self._in_time = set()
        self._took = now - self._began if self._round else 0.0
        self._round = round_
        self._began = now

    def heard(self, rank: int, now: float) -> None:
        """A rank has shown that it is at the current round."""
        self._away.discard(rank)
        self._catch_up.discard(rank)
        if rank not in self._heard:
            self._heard.add(rank)
            if now - self._began <= self._policy.begun_in_time * self._took:
                self._in_time.add(rank)

    def leaves(self, rank: int) -> None:
        """A rank leaves after this round: it gets no more work."""
        self._leaving.add(rank)

    def staying(self) -> set[int]:
        """The ranks that are present and do not leave, without the leader's own."""
        return self.present - self._leaving - {self._own}

    def has_sum(self, rank: int) -> None:
        """A rank has the sum of the current round, which the leader does not have: it computes nothing of it."""
        self._has_sum.add(rank)

    def is_through(self, rank: int) -> bool:
        """Whether a rank has done the current round: it computes nothing of it, even if it lost its sum."""
        return rank in self._has_sum

    def can_compute(self, rank: int) -> bool:
        """Whether a rank is at the current round, does not have its sum, and is not known to be wrong."""
        return self.is_current(rank) and rank not in self._has_sum and not self.is_wrong(rank)

    def was_wrong(self, rank: int) -> bool:
        """A rank computed wrongly: it computes nothing more of this round. Return whether that is new."""
        is_news = rank not in self._wrong
        self._wrong.add(rank)
        return is_news

    def is_wrong(self, rank: int) -> bool:
        """Whether a rank's results are not reliable, in this round or for good (quarantine)."""
        return rank in self._wrong or (self._mistakes is not None and self._mistakes.is_quarantined(rank))

    def are_all_wrong(self, ranks: Iterable[int]) -> bool:
        """Whether all of these are wrong, the leader's rank in this round. If only quarantined, it goes on alone."""
        return self._own in self._wrong and all(map(self.is_wrong, ranks))

    def fell_behind(self, rank: int) -> None:
        """A rank is at an earlier round."""
        if rank != self._own:
            self._catch_up.add(rank)

    def renews(self, rank: int) -> None:
        """A rank takes the state of another, and does nothing until it has it."""
        if rank != self._own:
            self._away.add(rank)

    def is_current(self, rank: int) -> bool:
        """Whether a rank is at the current round, as far as is known."""
        return rank in self.present and rank not in self._away and rank not in self._catch_up

    def current(self) -> list[int]:
        """The ranks that are at the current round, as far as is known."""
        return sorted(self.present - self._away - self._catch_up)

    def taking_part(self) -> list[int]:
        """The ranks that get work and stripes at the start of a round."""
        out = self._silent | self._leaving
        able = [
            rank for rank in self.current()
            if rank not in out and not self.is_left_out(rank) and not self.is_wrong(rank)
        ]  # fmt: skip
        return able or [self._own]

    def can_help(self, rank: int) -> bool:
        """Whether a rank can take the work of another: it was heard from in this round, and its link is usable."""
        is_there = rank in self._heard or rank == self._own
        return is_there and self.can_compute(rank) and not self.is_left_out(rank) and rank not in self._leaving

    def is_left_out(self, rank: int) -> bool:
        """Whether a rank is excluded for a while."""
        until, _ = self._left_out.get(rank, (0, 0))
        return self._round <= until

    def leave_out(self, rank: int) -> None:
        """A rank did not deliver or reduce: exclude it for some rounds, unless many ranks are excluded already."""
        others = sum(1 for one in self.present if self.is_left_out(one))
        if rank != self._own and not self.is_left_out(rank) and 3 * (others + 1) <= len(self.present):
            _, rounds = self._left_out.get(rank, (0, self._policy.excluded_rounds // 2))
            rounds = min(self._policy.most_excluded_rounds, 2 * rounds)
            self._left_out[rank] = (self._round + rounds, rounds)
