"""Why a run failed, as its processes report it: an error that several processes report is shown once."""

from __future__ import annotations

from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.process.telling import Said, What, Word


class Reasons:
    """What processes have reported to the launcher: which joined, which reached a training, and which failed.

    >>> reasons = Reasons(3)
    >>> for rank in range(3):
    ...     reasons.hear(Word(rank, What.ERRS, "no such thing", "script.py, line 3", is_usage=True))
    >>> reasons.of_all()
    UsageError('no such thing (script.py, line 3)')

    Ranks with the same difference from the first are named together.

    >>> for rank, about in enumerate((1, 1, 2)):
    ...     reasons.hear(Word(rank, What.ERRS, f"rank {about} has seed 1, and the root seed 0", is_usage=True))
    >>> reasons.of_all()
    UsageError('ranks 1, 2 have seed 1, and the root seed 0')
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._joined: set[int] = set()
        self._trained: set[int] = set()
        self._away: set[int] = set()  # ended without an error before they reached a training
        self._errors: dict[int, Word] = {}

    def hear(self, word: Word) -> None:
        """Take a report of a process."""
        if word.what is What.JOINS:
            self._joined.add(word.rank)
            self._errors.pop(word.rank, None)  # it was started again
        elif word.what is What.TRAINS:
            self._trained.add(word.rank)
        elif word.what is What.ERRS:
            self._errors[word.rank] = word

    def ended_well(self, rank: int) -> None:
        """A process has ended without an error, and not on request."""
        if rank not in self._trained:
            self._away.add(rank)

    @property
    def some_wait_in_vain(self) -> bool:
        """Whether some processes have reached a training, and others have ended without reaching it."""
        return bool(self._trained and self._away)

    def ended_before_it_came(self) -> UsageError:
        """The error for processes that wait for one that has ended."""
        subject = named(self._away)
        return UsageError(
            f"{subject} ended without an error before the training that the others wait in: every process must reach "
            "the same cluster.train(...) or train(...)"
        )

    def check_that_some_trained(self) -> None:
        """Raise if no process reached a training: every process ran the whole script by itself."""
        if self._trained:
            return
        if self._joined:
            raise UsageError(
                "the script ended without training: it joins the run, but never loops over cluster.train(...)"
            )
        raise UsageError(
            f"no process has joined the run: each of the {self._count} ran the whole script by itself; train in it "
            "with codedreduce.torch.join() or codedreduce.train()"
        )

    def said_by(self, rank: int) -> str:
        """Why a process ended, if it has reported that."""
        return self._errors[rank].text if rank in self._errors else ""

    def blame(self, rank: int) -> int | None:
        """The rank with the output that explains why this process failed; None if the report explains it."""
        return self._errors[rank].about if rank in self._errors else rank

    def of_all(self) -> CodedReduceError | None:
        """All reported errors, each with its ranks, unless all ranks report it."""
        by_text: dict[str, list[Word]] = {}
        for word in self._errors.values():
            by_text.setdefault(Said.of(word.text).rest, []).append(word)
        lines = []
        for words in by_text.values():
            said = [Said.of(word.text) for word in words]
            text = str(said[0]._replace(ranks=frozenset().union(*(one.ranks for one in said))))
            ranks = {word.rank for word in words}
            is_for_all = len(ranks) == self._count or (len(by_text) == 1 and 0 in ranks)
            says_who = text.startswith(tuple(f"{what} {min(ranks)} " for what in ("rank", "node")))
            subject = "" if is_for_all or says_who else f"{named(ranks)}: "
            where = f" ({words[0].where})" if words[0].where else ""
            lines.append(f"{subject}{text}{where}")
        if not lines:
            return None
        kind = UsageError if all(word.is_usage for word in self._errors.values()) else CodedReduceError
        return kind("\n".join(lines))


def named(ranks: set[int]) -> str:
    """Ranks as text.

    >>> named({3}), named({1, 2})
    ('rank 3', 'ranks 1, 2')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
