"""What happened in a run: one stream of rounds, notes, intervals and lateness, whatever world it ran in.

Worlds and the training loop write it; the run log, progress bars, reports and timelines read it, as it comes
(`readers`) or afterwards (`rounds`, `notes`, `intervals`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from codedreduce.protocol.core.events import Note

#: Notes that a person must hear of, however often they come.
MUST_BE_HEARD = frozenset(
    {"checkpoint", "waiting", "approximate", "dead", "left", "refused", "drift", "failed", "stands in", "orphaned"}
    | {"mistaken", "damaged", "quarantined", "unaudited", "arithmetic"}
)

#: Notes that a person should hear of, but that anybody could make many of: said the 1st, 10th, 100th, ... time.
WORTH_SAYING = frozenset({"unreadable", "stranger", "stray", "unaudited"})

#: Notes of a kind that are kept; the others are counted.
KEPT_OF_A_KIND = 1000

#: Every round, for `Journal(timeline=...)`.
ALL_ROUNDS = range(1, 2**63 - 1)


class Interval(NamedTuple):
    """What a node did for a while: `compute`, `send`, `stall`, `interrupted`."""

    round: int
    node: int
    kind: str
    begin: float
    end: float
    samples: int = 0


class NoteTaken(NamedTuple):
    """A node had something to tell, at a time of its world's clock."""

    at: float
    node: int
    note: Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """A worker's result of a round came, or would have come, so long after the round was over."""

    round: int
    node: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLog:
    """One round: its time, loss, who was late, and how much longer the late ones would have held it up.

    `residual` is the part that is missing from the gradient (0: nothing); `work` how many batches were computed for it,
    where that is known. `lateness` is filled in as it becomes known, which is while later rounds run.
    """

    round: int
    seconds: float
    loss: float = float("nan")
    late: tuple[int, ...] = ()
    residual: float = 0.0
    work: float = float("nan")
    lateness: dict[int, float] = field(default_factory=dict)

    @property
    def saved(self) -> float:
        """Seconds that waiting for all would have added, as measured when the late ones stopped or delivered."""
        return max(self.lateness.values(), default=0.0)


Entry = RoundLog | NoteTaken | Interval | Lateness
Reader = Callable[[Entry], None]
OnRound = Callable[[RoundLog], None]
OnNote = Callable[[Note], None]


class Journal:
    """Keeps the stream, bounded, and passes every entry on to its readers.

    `timeline` says of which rounds intervals are wanted; `remember` how many rounds are kept (all of them without).
    """

    def __init__(self, *readers: Reader, timeline: Container[int] = (), remember: int | None = None) -> None:
        self.readers = readers
        self.timeline = timeline
        self.rounds: deque[RoundLog] = deque(maxlen=remember)
        self.notes: list[NoteTaken] = []
        self.counts: Counter[str] = Counter()  # notes by kind, also of those that are not kept
        self.intervals: list[Interval] = []
        self.saved = 0.0  # seconds saved against waiting for all, as far as it is known

    def add(self, entry: Entry) -> None:
        """Something happened."""
        match entry:
            case RoundLog():
                self.rounds.append(entry)
            case NoteTaken(note=note):
                self.counts[note.kind] += 1
                if self.counts[note.kind] <= KEPT_OF_A_KIND:
                    self.notes.append(entry)
            case Interval():
                if entry.round not in self.timeline or not entry.end > entry.begin:
                    return
                self.intervals.append(entry)
            case Lateness():
                self._late(entry)
        for reader in self.readers:
            reader(entry)

    def _late(self, entry: Lateness) -> None:
        """Late results come while the next rounds run: the round they belong to is one of the last."""
        for log in reversed(self.rounds):
            if log.round == entry.round:
                before = log.saved
                log.lateness[entry.node] = entry.seconds
                self.saved += log.saved - before
            if log.round <= entry.round:
                return

    def note(self, at: float, node: int, note: Note) -> None:
        """A machine had something to tell: how late somebody was, or something in words."""
        if note.kind == "late" and note.seconds is not None:
            if node == 0:  # everyone's lateness is told to the root in the end
                self.add(Lateness(round=note.round, node=note.nodes[0], seconds=note.seconds))
        else:
            self.add(NoteTaken(at, node, note))

    def of_kind(self, kind: str) -> list[Note]:
        """The notes of a kind, as far as they are kept."""
        return [told.note for told in self.notes if told.note.kind == kind]


def listening(on_round: OnRound | None = None, on_note: OnNote | None = None) -> Reader:
    """A reader that calls back for every round, and for every note that a person should hear of."""
    heard: Counter[str] = Counter()

    def read(entry: Entry) -> None:
        if isinstance(entry, RoundLog) and on_round is not None:
            on_round(entry)
        elif isinstance(entry, NoteTaken) and on_note is not None:
            kind = entry.note.kind
            heard[kind] += 1
            if kind in MUST_BE_HEARD or (kind in WORTH_SAYING and _is_power_of_ten(heard[kind])):
                on_note(entry.note)

    return read


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"
