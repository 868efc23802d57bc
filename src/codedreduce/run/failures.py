"""Failed computations: how they are reported, and the error of a run in which no other rank succeeded either."""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.errors import CodedReduceError, Diverged, UsageError, WorkerFailed
from codedreduce.protocol.core.messages import Trouble

#: Why a gradient that is not finite counts as a failure.
NOT_FINITE = "its gradient is not finite"

#: Start of a reason that the user can correct.
_USAGE = "UsageError: "

#: Options for gradients that are not finite: count them as failures, or sum them like others.
REFUSE, PASS = "refuse", "pass"


def check_nonfinite(what: str) -> str:
    """Check the option for gradients that are not finite, and return it.

    >>> check_nonfinite("refuse")
    'refuse'
    """
    if what not in (REFUSE, PASS):
        raise UsageError(f"nonfinite must be {REFUSE!r} or {PASS!r}, got {what!r}")
    return what


def error_of(round_: int, troubles: Sequence[Trouble]) -> CodedReduceError:
    """The error of a round that no worker could compute, with the workers in the order in which they were asked.

    >>> error_of(5, [(3, "MemoryError"), (4, "ValueError: no")])
    WorkerFailed('worker 3 failed: MemoryError; worker 4, asked instead: ValueError: no')
    >>> error_of(5, [(3, "UsageError: sample 9 could not be read"), (4, "UsageError: sample 9 could not be read")])
    UsageError('sample 9 could not be read')
    """
    others = [node for node, _ in troubles[1:]]
    if all(reason == NOT_FINITE for _, reason in troubles):
        instead = f", and of {', '.join(map(str, others))} that {'was' if len(others) == 1 else 'were'} asked instead"
        return Diverged(
            round_,
            f"round {round_}: the gradient is not finite (of worker {troubles[0][0]}{instead if others else ''}); take "
            'a smaller learning rate, look at the data, or let it pass (nonfinite="pass")',
        )
    if all(reason.startswith(_USAGE) for _, reason in troubles):  # no worker can compute it; the text has the reason
        return UsageError(troubles[0][1].removeprefix(_USAGE))
    more = "".join(f"; worker {node}, asked instead: {reason}" for node, reason in troubles[1:])
    return WorkerFailed(troubles[0][0], troubles[0][1] + more)
