"""The progress of each process of a run, from its reports to the launcher: facts, no guesses from running times."""

from __future__ import annotations

from collections.abc import Collection

from codedreduce.process.telling import What, Word


class Progress:
    """By rank: whether the process was admitted to a training, whether it has left that training, and its last round.

    >>> progress = Progress()
    >>> progress.hear(Word(2, What.ADMITTED))
    >>> progress.hear(Word(2, What.ENDS, step={"round": 60, "leads": 1}))
    >>> progress.was_admitted(2), progress.has_trained(2), progress.has_led(2), progress.last_round
    (True, True, True, 60)
    """

    def __init__(self) -> None:
        self._admitted: set[int] = set()
        self._trained: dict[int, bool] = {}  # ranks that have left a training, and whether each led it
        self._reached: dict[int, int] = {}  # the last round of each rank that left a training or failed in one
        self.last_round = 0  # that any process has reported

    def hear(self, word: Word) -> None:
        """Take a report of a process."""
        if word.what is What.ADMITTED:
            self._admitted.add(word.rank)
        elif word.what is What.TRAINS:
            self._trained.pop(word.rank, None)  # it has entered another training
        elif word.what in (What.ENDS, What.FAILS):
            reached = word.step.get("round")
            self._reached[word.rank] = int(reached) if isinstance(reached, int | float) else 0
            self.last_round = max(self.last_round, self._reached[word.rank])
            if word.what is What.ENDS:
                self._trained[word.rank] = bool(word.step.get("leads"))

    def is_new(self, rank: int) -> None:
        """The process of this rank was started, for the first time or again."""
        self._admitted.discard(rank)
        self._trained.pop(rank, None)
        self._reached.pop(rank, None)

    @property
    def some_admitted(self) -> bool:
        """Whether any process was admitted, running or ended."""
        return bool(self._admitted)

    def was_admitted(self, rank: int) -> bool:
        """Whether this process was a member of the run: if not, it was too late, or is about to join."""
        return rank in self._admitted

    def has_trained(self, rank: int) -> bool:
        """Whether this process has left its last training: it evaluates or saves, or goes on to another training."""
        return rank in self._trained

    def has_led(self, rank: int) -> bool:
        """Whether this process led the training that it has left: only the leader saves the result."""
        return self._trained.get(rank, False)

    def reached(self, rank: int) -> int:
        """The last round of this process in its last training, if it has reported one; else 0."""
        return self._reached.get(rank, 0)

    def all_have_trained(self, ranks: Collection[int]) -> bool:
        """Whether all of these processes have left their training."""
        return bool(ranks) and self._trained.keys() >= set(ranks)
