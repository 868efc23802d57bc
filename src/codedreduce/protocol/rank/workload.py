"""A rank's work in a round: the parts it was assigned, one after the other, and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from codedreduce.protocol.core.blocks import SHORTEST, Block
from codedreduce.protocol.core.messages import Done, Unable
from codedreduce.schemes import Part
from codedreduce.vectors import Vector


class BlockTask:
    """A part in computation: start time and progress. `is_check`: another rank computes it as well, and sends it."""

    __slots__ = ("_under_way", "advanced", "began", "is_check", "part")

    def __init__(self, part: Part, began: float, *, is_check: bool = False) -> None:
        self.part = part
        self.is_check = is_check
        self.began = began
        self.advanced = 0  # blocks that are known to be done
        self._under_way = began  # the time at which the first block was done

    def advance(self, blocks: int, now: float) -> None:
        """Record that so many blocks are done."""
        if not self.advanced:
            self._under_way = now
        self.advanced = blocks

    def block_seconds(self, blocks: int, now: float) -> float:
        """The time per block, without the first block if there are others: that one may have begun late.

        It is above zero; zero would mean that other ranks did the block. A rank that was stopped gets all reports at
        one moment.
        """
        if self.advanced and blocks > 1:
            return max(SHORTEST, (now - self._under_way) / (blocks - 1))
        return max(SHORTEST, (now - self.began) / blocks)


class Workload:
    """The parts that a rank was assigned in a round: in computation, waiting, and done."""

    def __init__(self) -> None:
        self.todo: deque[Part] = deque()
        self.checks: deque[Block] = deque()  # blocks of other ranks; first, as others may wait for the digests
        self.is_checking = False  # whether the current computation is a check
        self.now: Part | None = None
        self.task = 0
        self.done: dict[Part, Vector] = {}  # held until the next round: a new reducer gets its stripe of each
        self.said: list[Done] = []  # repeated to a leader over a new connection
        self.unable: list[Unable] = []  # units that this rank has reported as failed
        self._tasks: dict[int, BlockTask] = {}

    def clear(self) -> None:
        """A new round."""
        self.todo.clear()
        self.checks.clear()
        self.is_checking = False
        self.now = None
        self.done = {}
        self.said = []
        self.unable = []
        self._tasks.clear()

    def begin_again(self) -> None:
        """Begin the same round again under another leader: results and the current computation stay valid."""
        self.todo.clear()
        self.checks.clear()
        self.unable = []

    def next(self, now: float) -> Part | None:
        """Begin with the next check or part, if there is one."""
        self.is_checking = bool(self.checks)
        if self.checks:
            unit, block = self.checks.popleft()
            self.now = Part(unit, block, block + 1)
        else:
            self.now = self.todo.popleft() if self.todo else None
        if self.now is not None:
            self.task += 1
            self._tasks[self.task] = BlockTask(self.now, now, is_check=self.is_checking)
        return self.now

    def drop(self) -> None:
        """Discard all results and work of this rank in this round."""
        self.todo.clear()
        self.checks.clear()
        self.now = None
        self.done = {}
        self.said = []
        self._tasks.clear()

    def under_way(self, task: int) -> BlockTask | None:
        """The computation with this number, None if it is no longer needed."""
        return self._tasks.get(task)

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be computed."""
        return not self.todo and not self.checks

    def take_on(self, parts: Iterable[Part]) -> None:
        """Add parts, unless they are known already."""
        known = {*self.todo, *self.done, None if self.is_checking else self.now}
        self.todo.extend(part for part in parts if part not in known)

    @property
    def is_idle(self) -> bool:
        """True if nothing is being computed, and nothing waits."""
        return self.is_empty and self.now is None

    @property
    def advanced(self) -> int:
        """The number of finished blocks in the current computation."""
        return self._tasks[self.task].advanced if self.now is not None else 0

    def advance(self, blocks: int, now: float) -> None:
        """Record that so many blocks of the current computation are done."""
        self._tasks[self.task].advance(blocks, now)

    def ended(self, task: int) -> BlockTask | None:
        """A computation has ended or was stopped; return it, None if it is no longer needed."""
        if task == self.task:
            self.now = None
        return self._tasks.pop(task, None)

    def cut(self, unit: int, end: int) -> bool:
        """Keep only the blocks of a unit before `end`; return True if the current computation is to be stopped."""
        kept = [Part(unit, part.first, min(part.last, end)) if part.unit == unit else part for part in self.todo]
        self.todo = deque(part for part in kept if part.blocks > 0)
        if self.now is None or self.is_checking or self.now.unit != unit or end >= self.now.last:
            return False
        if end <= self.now.first:
            del self._tasks[self.task]  # no longer needed
            self.now = None
            return True
        self.now = Part(unit, self.now.first, end)
        return self.is_far_enough

    @property
    def is_far_enough(self) -> bool:
        """True if the current computation was cut, and has reached its new end."""
        return self.now is not None and not self.is_checking and self.advanced >= self.now.blocks
