"""What a user configures for a run, beside its scheme and its training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from codedreduce.protocol.core.audits import NO_AUDIT, Audit
from codedreduce.protocol.core.settings import WAIT_ON, Excess
from codedreduce.run.failures import REFUSE, check_nonfinite


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The same on every rank. A launcher sets it by environment variables; arguments of a script override these.

    `nonfinite`: whether gradients that are not finite are refused, or pass. `inject`: delays, for experiments.

    >>> Configuration(inject="bursty").override(audit=0.02, nonfinite=None).audit
    Audit(fraction=0.02, quarantine=2, seed=0)
    """

    excess: Excess = WAIT_ON
    audit: Audit = NO_AUDIT
    nonfinite: str = REFUSE
    inject: str | None = None

    def __post_init__(self) -> None:
        check_nonfinite(self.nonfinite)

    def override(
        self, *, on_excess: str | None = None, say_waiting_after: float | None = None,
        replan_after: float | None = None, audit: float | None = None, quarantine: int | None = None,
        nonfinite: str | None = None, inject: str | None = None,
    ) -> Configuration:  # fmt: skip
        """The same, with the values that are given here."""
        excess = _given(do=on_excess, say_waiting_after=say_waiting_after, replan_after=replan_after)
        return replace(
            self, excess=replace(self.excess, **excess),
            audit=replace(self.audit, **_given(fraction=audit, quarantine=quarantine)),
            **_given(nonfinite=nonfinite, inject=inject),
        )  # fmt: skip


#: Nothing is configured.
DEFAULTS = Configuration()


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
