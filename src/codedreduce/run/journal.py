"""What happened in a run: one stream of rounds, notes, intervals and lateness, the same for every world.

Worlds and the training loop write it. The run log, progress bars, reports and timelines read it, during the run
(`readers`) or afterwards (`rounds`, `notes`, `intervals`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from codedreduce.protocol.core.events import Note

#: Kinds of notes that are always reported to the user.
MUST_BE_HEARD = frozenset(
    {"checkpoint", "waiting", "approximate", "dead", "left", "refused", "drift", "failed", "stands in", "orphaned"}
    | {"mistaken", "damaged", "quarantined", "unaudited", "arithmetic"}
)

#: Kinds of notes that any process could cause in large numbers: the 1st, 10th, 100th, ... is reported.
WORTH_SAYING = frozenset({"unreadable", "stranger", "stray", "unaudited"})

#: Notes that are kept of each kind; further ones are only counted.
KEPT_OF_A_KIND = 1000

#: Every round, for `Journal(timeline=...)`.
ALL_ROUNDS = range(1, 2**63 - 1)


class Interval(NamedTuple):
    """An activity of a rank: `compute`, `send`, `stall`, `interrupted`."""

    round: int
    node: int
    kind: str
    begin: float
    end: float
    samples: int = 0


class NoteTaken(NamedTuple):
    """A note of a rank, with the time of its world's clock."""

    at: float
    node: int
    note: Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """A worker's result of a round arrived, or would have arrived, `seconds` after the round was over."""

    round: int
    node: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLog:
    """One round: its time, loss, late ranks, and how much longer a wait for them would have taken.

    `residual` is the part that is missing from the gradient (0: nothing); `work` is the number of batches that were
    computed for it, if known. `lateness` is filled in while later rounds run.
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
        """Seconds that a wait for all would have added, measured when the late ranks stopped or delivered."""
        return max(self.lateness.values(), default=0.0)


Entry = RoundLog | NoteTaken | Interval | Lateness
Reader = Callable[[Entry], None]
OnRound = Callable[[RoundLog], None]
OnNote = Callable[[Note], None]


class Journal:
    """Keeps the stream, bounded, and passes every entry on to its readers.

    `timeline`: the rounds of which intervals are kept; `remember`: the number of rounds that are kept (None: all).
    """

    def __init__(self, *readers: Reader, timeline: Container[int] = (), remember: int | None = None) -> None:
        self.readers = readers
        self.timeline = timeline
        self.rounds: deque[RoundLog] = deque(maxlen=remember)
        self.notes: list[NoteTaken] = []
        self.counts: Counter[str] = Counter()  # notes by kind, including those that are not kept
        self.intervals: list[Interval] = []
        self.saved = 0.0  # seconds saved against a wait for all, as far as known

    def add(self, entry: Entry) -> None:
        """Add an entry, and pass it to the readers."""
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
        """Late results arrive while the next rounds run, so their round is one of the last."""
        for log in reversed(self.rounds):
            if log.round == entry.round:
                before = log.saved
                log.lateness[entry.node] = entry.seconds
                self.saved += log.saved - before
            if log.round <= entry.round:
                return

    def note(self, at: float, node: int, note: Note) -> None:
        """Add a note of a state machine: the lateness of a worker, or a text."""
        if note.kind == "late" and note.seconds is not None:
            if node == 0:  # the root gets the lateness of all workers in the end
                self.add(Lateness(round=note.round, node=note.nodes[0], seconds=note.seconds))
        else:
            self.add(NoteTaken(at, node, note))

    def of_kind(self, kind: str) -> list[Note]:
        """The notes of a kind, as far as they are kept."""
        return [told.note for told in self.notes if told.note.kind == kind]


def listening(on_round: OnRound | None = None, on_note: OnNote | None = None) -> Reader:
    """A reader that calls back for every round, and for every note that the user should see."""
    heard: Counter[str] = Counter()

    def read(entry: Entry) -> None:
        if isinstance(entry, RoundLog) and on_round is not None:
            on_round(entry)
        elif isinstance(entry, NoteTaken) and on_note is not None:
            kind = entry.note.kind
            heard[kind] += 1
            if kind in MUST_BE_HEARD or (kind in WORTH_SAYING and is_power_of_ten(heard[kind])):
                on_note(entry.note)

    return read


def is_power_of_ten(count: int) -> bool:
    """Whether this is the first, tenth, hundredth time and so on, which is reported."""
    return str(count).strip("0") == "1"
