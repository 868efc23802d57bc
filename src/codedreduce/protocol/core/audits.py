"""Audits: some blocks are computed twice, by different nodes, and compared. The seed selects the same on every node.

A rank that computes a block again finishes later, and all ranks of a round wait for the last one. So a round is either
audited or not, and in an audited round all ranks have about as much to check. The mean costs no more than the fraction.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from codedreduce.digests import digest
from codedreduce.errors import SchemeError, UsageError
from codedreduce.schemes import Plan, StripedPlan

#: A node is excluded (quarantined) after so many wrong results.
QUARANTINE = 2


@dataclass(frozen=True, slots=True)
class Audit:
    """Which fraction of the work is computed twice, and how many wrong results quarantine a rank.

    `seed` is that of a training, and selects the blocks.

    >>> audit = Audit(fraction=0.02)
    >>> [round_ for round_ in range(1, 20) if audit.blocks(round_, unit=0, of=16)]
    [7, 10, 12, 13]
    >>> audit.blocks(7, unit=0, of=16), audit.blocks(7, unit=1, of=16)
    ((11,), (8,))
    """

    fraction: float = 0.0
    quarantine: int = QUARANTINE
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.fraction:
            return
        if not 0 < self.fraction <= 1:
            raise UsageError(f"the audited fraction is {self.fraction}: must be above 0 and at most 1")
        if self.quarantine < 1:
            raise UsageError(f"quarantine is {self.quarantine}: must be at least 1 wrong result")

    def of(self, seed: int) -> Audit | None:
        """The audit of a training with this seed; None if nothing is audited."""
        return replace(self, seed=seed) if self.fraction else None

    def blocks(self, round_: int, unit: int, of: int) -> tuple[int, ...]:
        """The blocks of a unit that are audited in a round."""
        each = math.ceil(self.fraction * of)
        if self._number("whether", round_) * each >= self.fraction * of:
            return ()
        return tuple(sorted(sorted(range(of), key=lambda block: self._number("block", round_, unit, block))[:each]))

    def _number(self, what: str, *where: int) -> float:
        """A fixed random number between 0 and 1, the same on every node."""
        said = " ".join([what, str(self.seed), *map(str, where)])
        return int.from_bytes(digest(said.encode())[:7]) / 2**56


def check_auditable(plan: Plan) -> None:
    """Reject a plan in which no second rank can recompute a block bit-identically."""
    if not isinstance(plan, StripedPlan):
        raise SchemeError(f"audits compare blocks of striped runs; {plan.scheme} has none: use striped, or audit=0")
    if any(len(plan.readers(unit)) < 2 for unit in plan.all_units):
        raise SchemeError(f"audits need two ranks that can read each sample; in {plan.scheme} some samples have one")


#: Nothing is audited.
NO_AUDIT = Audit()


class Mistakes:
    """The number of wrong results of each rank. All ranks know it, so that every later leader does."""

    def __init__(self, audit: Audit | None) -> None:
        self._most = audit.quarantine if audit is not None else None
        self._times: Counter[int] = Counter()

    def note(self, rank: int, times: int) -> None:
        """Record that a rank has computed wrongly so many times."""
        self._times[rank] = max(self._times[rank], times)

    def again(self, rank: int) -> int:
        """Count one more wrong result of a rank; return the new number."""
        self._times[rank] += 1
        return self._times[rank]

    def is_quarantined(self, rank: int) -> bool:
        """True if a rank has so many wrong results that it is no longer used."""
        return self._most is not None and self._most <= self._times[rank]
