"""Which of what is computed is computed twice, by different nodes, to be compared: drawn by seed, the same everywhere.

Whoever is asked to compute something again is through later, and in a round everybody waits for the last. So a round is
either audited or not, and in one that is everybody has about as much to check: the mean costs no more than is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from codedreduce.digests import digest
from codedreduce.errors import SchemeError, UsageError
from codedreduce.schemes import Plan, StripedPlan

#: How often a node may be found to have computed wrongly before it is not used any more.
QUARANTINE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """How much of all that is computed is computed twice, and how often somebody may be found to be wrong.

    >>> audit = Audit(fraction=0.02)
    >>> [round_ for round_ in range(1, 20) if audit.blocks(round_, unit=0, of=16)]
    [7, 10, 12, 13]
    >>> audit.blocks(7, unit=0, of=16), audit.blocks(7, unit=1, of=16)
    ((11,), (8,))
    """

    fraction: float
    seed: int = 0
    quarantine: int = QUARANTINE

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UsageError(f"audits look at a part of all that is computed, above 0 and up to 1; got {self.fraction}")
        if self.quarantine < 1:
            raise UsageError(f"a worker can be found to be wrong once or more before it is not used, {self.quarantine}")

    def blocks(self, round_: int, unit: int, of: int) -> tuple[int, ...]:
        """Which of a unit's blocks are looked at in a round."""
        each = math.ceil(self.fraction * of)
        if self._number("whether", round_) * each >= self.fraction * of:
            return ()
        return tuple(sorted(sorted(range(of), key=lambda block: self._number("block", round_, unit, block))[:each]))

    def _number(self, what: str, *where: int) -> float:
        """Between 0 and 1, the same on every node."""
        said = " ".join([what, str(self.seed), *map(str, where)])
        return int.from_bytes(digest(said.encode())[:7]) / 2**56


def check_auditable(plan: Plan) -> None:
    """Refuse a plan under which nobody can be asked to compute what another does, to the bit."""
    if not isinstance(plan, StripedPlan):
        raise SchemeError(f"audits compare blocks of striped runs; {plan.scheme} has none: use striped, or audit=0")
    if any(len(plan.readers(unit)) < 2 for unit in plan.all_units):
        raise SchemeError(f"audits need a second rank that can read each sample, and in {plan.scheme} some have one")


@dataclass(frozen=True, slots=True)
class Auditing:
    """What people ask for: how much is computed twice, and after how many findings a worker is not used any more."""

    fraction: float = 0.0
    quarantine: int = QUARANTINE

    def __post_init__(self) -> None:
        self.of(0)

    def of(self, seed: int) -> Audit | None:
        """With the seed of a training; None if nothing is audited."""
        if not self.fraction:
            return None
        return Audit(fraction=self.fraction, seed=seed, quarantine=self.quarantine)

    def or_else(self, fraction: float | None, quarantine: int | None) -> Auditing:
        """The same, but for what somebody says who knows better."""
        return Auditing(
            self.fraction if fraction is None else fraction, self.quarantine if quarantine is None else quarantine
        )  # fmt: skip


#: Nothing is audited.
NO_AUDITS = Auditing()
