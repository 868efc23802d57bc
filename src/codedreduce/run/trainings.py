"""The consecutive trainings of a process in one run: the name of each, and the size and leader of the last.

All processes of a run count in the same way. After a kill the next training begins with the remaining ranks, and the
last leader leads again. A restarted process runs its script from the start, and skips the trainings that are over: it
does not have their results. A rank gets them by a state transfer from the others.
"""

from __future__ import annotations

from dataclasses import replace

from codedreduce.run.agreement import Meeting

#: Timeout in seconds for processes that wait for each other between two trainings: one may evaluate for long, and the
#: processes end with their launcher.
BETWEEN = 7 * 24 * 3600.0


class Trainings:
    """The trainings of one run.

    >>> trainings = Trainings()
    >>> for _ in range(2):
    ...     trainings.begin()
    ...     print([trainings.meeting(Meeting(run="r")).run for _ in range(2)])
    ['r', 'r.2']
    ['r-2', 'r-2.2']
    """

    def __init__(self) -> None:
        self._number = 0
        self._layouts = 0  # of this training: each has its own rendezvous
        self._reached: int | None = None  # number of members at the end of the last training
        self._generation = 0  # the generation at that time: its leader leads at first

    def begin(self) -> None:
        """Another training begins."""
        self._number += 1
        self._layouts = 0

    def meeting(self, meeting: Meeting) -> Meeting:
        """The rendezvous of this training: after the first, as many members as at the end of the last are enough."""
        self._layouts += 1
        name = meeting.run if self._number == 1 else f"{meeting.run}-{self._number}"
        name += f".{self._layouts}" if self._layouts > 1 else ""
        least = meeting.least if meeting.least is not None else self._reached
        if self._reached is not None:  # all remaining ranks were members a moment ago
            meeting = replace(
                meeting, root_within=max(meeting.root_within, BETWEEN), all_within=max(meeting.all_within, BETWEEN)
            )  # fmt: skip
        return replace(
            meeting, run=name, series=meeting.run, training=self._number, least=least, generation=self._generation
        )

    def part(self, reached: int, generation: int) -> None:
        """Record the members when this process leaves; the generation determines their leader."""
        self._reached, self._generation = reached, generation


_trainings: dict[str, Trainings] = {}


def trainings_of(run: str) -> Trainings:
    """The trainings of this process in a run."""
    return _trainings.setdefault(run, Trainings())
