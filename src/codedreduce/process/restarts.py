"""Whether and when a failed process is restarted: pure logic, from how long each process ran and where it failed."""

from __future__ import annotations

from collections import Counter

from codedreduce.errors import CodedReduceError

#: Seconds: a process that ran for less failed quickly, and is restarted after a pause that doubles each time.
QUICK, FIRST_PAUSE, LONGEST_PAUSE = 10.0, 0.1, 5.0

#: Limit on quick failures in a row, or errors in the same round: after them a restart does not help.
TOO_MANY = 5


class Restarts:
    """Allows at most `times` restarts in all: None is no limit, 0 none at all.

    >>> book = Restarts(None)
    >>> [book.pause_after(3, lived=2.0), book.pause_after(3, lived=2.0), book.pause_after(3, lived=60.0)]
    [0.1, 0.2, 0.1]
    >>> [book.pause_after(4, lived=60.0, failed_in=12) for _ in range(3)]
    [0.1, 0.1, 0.2]
    >>> Restarts(0).pause_after(3, lived=2.0) is None
    True
    """

    def __init__(self, times: int | None) -> None:
        self._left = times
        self._times: Counter[int] = Counter()  # restarts of each rank
        self._quick: Counter[int] = Counter()  # failures in a row that were quick, or in the same round
        self._failed_in: dict[int, int] = {}

    def pause_after(self, rank: int, lived: float, failed_in: int = 0) -> float | None:
        """Seconds until a process that ran for `lived` seconds is restarted; None: no restart.

        `failed_in`: the round in which it failed, 0 if unknown.
        """
        if self._left is not None and not self._left:
            return None
        is_as_before = bool(failed_in) and failed_in == self._failed_in.get(rank)
        self._failed_in[rank] = failed_in
        self._quick[rank] = self._quick[rank] + 1 if lived < QUICK or is_as_before else 0
        if self._quick[rank] >= TOO_MANY:
            where = f"in round {failed_in}" if lived >= QUICK else f"within {QUICK:g} s of being started"
            raise CodedReduceError(
                f"rank {rank} ended {TOO_MANY} times in a row {where}: starting it again does not help; its last words "
                "are above"
            )
        if self._left is not None:
            self._left -= 1
        self._times[rank] += 1
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** max(0, self._quick[rank] - 1)))

    def times(self, rank: int) -> int:
        """Number of restarts of a process."""
        return self._times[rank]


def ordinal(number: int) -> str:
    """The ordinal of a number.

    >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '102nd', '111th']
    """
    end = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{end}"
