"""The trainings of a process, one after the other in the same run: how each is called, and who was in the last.

Every process of a run counts alike. After a kill the next training begins with those that are left, and of ranks the
one leads that led last. A process that was started again begins its script anew, and skips the trainings that are over:
it does not have what came of them, and of ranks takes the state of those who have.
"""

from __future__ import annotations

from dataclasses import replace

from codedreduce.run.agreement import Meeting

#: Seconds that processes wait for each other between two trainings: one may evaluate for long meanwhile, and whoever
#: started them ends them when it dies.
BETWEEN = 7 * 24 * 3600.0


class Trainings:
    """Those of one run.

    >>> trainings = Trainings()
    >>> for _ in range(2):
    ...     trainings.begin()
    ...     print([trainings.meeting(Meeting(run="r")).run for _ in range(2)])
    ['r', 'r.2']
    ['r-2', 'r-2.2']
    """

    def __init__(self) -> None:
        self._number = 0
        self._layouts = 0  # of this training: each time that what is trained changes it meets anew
        self._reached: int | None = None  # how many were in when they parted last
        self._generation = 0  # and which one it was: who led then leads at first

    def begin(self) -> None:
        """Another training begins."""
        self._number += 1
        self._layouts = 0

    def meeting(self, meeting: Meeting) -> Meeting:
        """Where those meet who are in this training: after the first, those who were in when they parted are enough."""
        self._layouts += 1
        name = meeting.run if self._number == 1 else f"{meeting.run}-{self._number}"
        name += f".{self._layouts}" if self._layouts > 1 else ""
        least = meeting.least if meeting.least is not None else self._reached
        if self._reached is not None:  # all that are left were here a moment ago
            meeting = replace(
                meeting, root_within=max(meeting.root_within, BETWEEN), all_within=max(meeting.all_within, BETWEEN)
            )  # fmt: skip
        return replace(
            meeting, run=name, series=meeting.run, training=self._number, least=least, generation=self._generation
        )

    def part(self, reached: int, generation: int) -> None:
        """So many are in when this process leaves; the generation says who leads them."""
        self._reached, self._generation = reached, generation


_trainings: dict[str, Trainings] = {}


def trainings_of(run: str) -> Trainings:
    """Those of this process in a run."""
    return _trainings.setdefault(run, Trainings())
