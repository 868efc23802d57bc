"""How far each process of a run has come, as it tells its launcher: facts, and no guesses from how long it runs."""

from __future__ import annotations

from collections.abc import Collection

from codedreduce.process.telling import What, Word


class Progress:
    """By rank: whether the process was admitted to a training, and whether it has left that, after which round.

    >>> progress = Progress()
    >>> progress.hear(Word(2, What.ADMITTED))
    >>> progress.hear(Word(2, What.ENDS, step={"round": 60, "leads": 1}))
    >>> progress.was_admitted(2), progress.has_trained(2), progress.has_led(2), progress.last_round
    (True, True, True, 60)
    """

    def __init__(self) -> None:
        self._admitted: set[int] = set()
        self._trained: dict[int, bool] = {}  # those that have left a training, and whether they led it
        self._reached: dict[int, int] = {}  # the last rounds of those, and of those that failed in one
        self._round = 0

    def hear(self, word: Word) -> None:
        """A process tells something."""
        if word.what is What.ADMITTED:
            self._admitted.add(word.rank)
        elif word.what is What.TRAINS:
            self._trained.pop(word.rank, None)  # it is in another training
        elif word.what in (What.ENDS, What.FAILS):
            reached = word.step.get("round")
            self._reached[word.rank] = int(reached) if isinstance(reached, int | float) else 0
            self._round = max(self._round, self._reached[word.rank])
            if word.what is What.ENDS:
                self._trained[word.rank] = bool(word.step.get("leads"))

    def is_new(self, rank: int) -> None:
        """The process of this rank was started, for the first time or again."""
        self._admitted.discard(rank)
        self._trained.pop(rank, None)
        self._reached.pop(rank, None)

    @property
    def some_admitted(self) -> bool:
        """Whether any process was admitted, of those that run or have ended."""
        return bool(self._admitted)

    def was_admitted(self, rank: int) -> bool:
        """Whether this process has had a part in the run: if not, it came too late for it, or is about to come."""
        return rank in self._admitted

    def has_trained(self, rank: int) -> bool:
        """Whether this process has left its last training: it evaluates or saves, or goes on to another training."""
        return rank in self._trained

    def has_led(self, rank: int) -> bool:
        """Whether this process led the training that it has left: the others leave it to save."""
        return self._trained.get(rank, False)

    def reached(self, rank: int) -> int:
        """The round that this process came to in its last training, if it has told; else 0."""
        return self._reached.get(rank, 0)

    def all_have_trained(self, ranks: Collection[int]) -> bool:
        """Whether none of these processes is in a training, or about to be admitted to one."""
        return bool(ranks) and self._trained.keys() >= set(ranks)

    @property
    def last_round(self) -> int:
        """The last round that a process has told of; 0 if there is none."""
        return self._round
