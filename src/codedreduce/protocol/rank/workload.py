"""What a rank computes in a round: the parts it was given, one after the other, and what has come of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from codedreduce.protocol.core.blocks import SHORTEST, Block
from codedreduce.protocol.core.messages import Done, Unable
from codedreduce.schemes import Part
from codedreduce.vectors import Vector


class BlockTask:
    """A part that is computed: since when, and how far it is. `is_check`: another computes it, too, and sends it."""

    __slots__ = ("_under_way", "advanced", "began", "is_check", "part")

    def __init__(self, part: Part, began: float, *, is_check: bool = False) -> None:
        self.part = part
        self.is_check = is_check
        self.began = began
        self.advanced = 0  # blocks that are known to be done
        self._under_way = began  # when the first block was done

    def advance(self, blocks: int, now: float) -> None:
        """So many blocks are done."""
        if not self.advanced:
            self._under_way = now
        self.advanced = blocks

    def block_seconds(self, blocks: int, now: float) -> float:
        """What a block took, of so many; the first one, which may have begun late, left out where there are others.

        Above zero, which would say that others did it: a rank that was stopped hears of all blocks at the same moment.
        """
        if self.advanced and blocks > 1:
            return max(SHORTEST, (now - self._under_way) / (blocks - 1))
        return max(SHORTEST, (now - self.began) / blocks)


class Workload:
    """The parts that a rank has been given in a round: what it computes now, what comes next, what it has done."""

    def __init__(self) -> None:
        self.todo: deque[Part] = deque()
        self.checks: deque[Block] = deque()  # blocks of others, which come first: somebody may wait for what they show
        self.is_checking = False  # whether what is computed now is one of those
        self.now: Part | None = None
        self.task = 0
        self.done: dict[Part, Vector] = {}  # kept until the next round: a new keeper is sent its stripe again
        self.said: list[Done] = []  # and a coordinator told again, over a new connection
        self.unable: list[Unable] = []  # what was said to be beyond this rank
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
        """The same round, as another coordinator shares it out: what is done, and what is under way, need not be."""
        self.todo.clear()
        self.checks.clear()
        self.unable = []

    def next(self, now: float) -> Part | None:
        """Begin with what comes next, if there is something."""
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
        """Nothing of what this rank did, or does, in this round is of use."""
        self.todo.clear()
        self.checks.clear()
        self.now = None
        self.done = {}
        self.said = []
        self._tasks.clear()

    def under_way(self, task: int) -> BlockTask | None:
        """What a task is, unless nobody needs it."""
        return self._tasks.get(task)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be begun."""
        return not self.todo and not self.checks

    def take_on(self, parts: Iterable[Part]) -> None:
        """These are to be done, too, unless they are known already."""
        known = {*self.todo, *self.done, None if self.is_checking else self.now}
        self.todo.extend(part for part in parts if part not in known)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is computed, nor to be computed."""
        return self.is_empty and self.now is None

    @property
    def advanced(self) -> int:
        """Blocks that are done of what is computed now."""
        return self._tasks[self.task].advanced if self.now is not None else 0

    def advance(self, blocks: int, now: float) -> None:
        """So many blocks are done of what is computed now."""
        self._tasks[self.task].advance(blocks, now)

    def ended(self, task: int) -> BlockTask | None:
        """A task was computed, or stopped; what it was, unless nobody needs it."""
        if task == self.task:
            self.now = None
        return self._tasks.pop(task, None)

    def cut(self, unit: int, end: int) -> bool:
        """Of a unit do the blocks before `end` only; whether what is computed now is to be stopped."""
        kept = [Part(unit, part.first, min(part.last, end)) if part.unit == unit else part for part in self.todo]
        self.todo = deque(part for part in kept if part.blocks > 0)
        if self.now is None or self.is_checking or self.now.unit != unit or end >= self.now.last:
            return False
        if end <= self.now.first:
            del self._tasks[self.task]  # nobody needs it
            self.now = None
            return True
        self.now = Part(unit, self.now.first, end)
        return self.is_far_enough

    @property
    def is_far_enough(self) -> bool:
        """Whether what is computed now has been cut, and is done up to there."""
        return self.now is not None and not self.is_checking and self.advanced >= self.now.blocks
