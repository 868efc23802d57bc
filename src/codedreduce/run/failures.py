"""Computations that fail: what is told of them, and the error that ends a run in which nobody could do better."""

from __future__ import annotations

from collections.abc import Sequence

from codedreduce.errors import CodedReduceError, Diverged, UsageError, WorkerFailed
from codedreduce.protocol.core.messages import Trouble

#: Why a gradient that is not finite counts as a failure.
NOT_FINITE = "its gradient is not finite"

#: How the reason begins where the user can mend it.
_USAGE = "UsageError: "

#: What can be done with gradients that are not finite: count as failures, or be summed like others.
REFUSE, PASS = "refuse", "pass"


def check_nonfinite(what: str) -> str:
    """What is done with gradients that are not finite, if it is something that can be done.

    >>> check_nonfinite("refuse")
    'refuse'
    """
    if what not in (REFUSE, PASS):
        raise UsageError(f"nonfinite must be {REFUSE!r} or {PASS!r}, got {what!r}")
    return what


def error_of(round_: int, troubles: Sequence[Trouble]) -> CodedReduceError:
    """The error of a round that nobody could compute, naming who failed, in the order in which they were asked.

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
    if all(reason.startswith(_USAGE) for _, reason in troubles):  # nobody can compute it, and the message says why
        return UsageError(troubles[0][1].removeprefix(_USAGE))
    more = "".join(f"; worker {node}, asked instead: {reason}" for node, reason in troubles[1:])
    return WorkerFailed(troubles[0][0], troubles[0][1] + more)
