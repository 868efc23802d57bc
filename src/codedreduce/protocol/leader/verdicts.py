"""The leader's part in audits: it assigns checks of blocks, decides which results are right, and quarantines ranks.

A block that is drawn (`audits`) is computed by the rank that sends it, and by a second rank (the checker) before its
own work. So the result of the check is almost always known before the first rank has computed the rest of its part. If
the two differ the leader asks a third rank, and so on until two agree and no other two do. A rank with another result
was wrong: others repeat its work of this round. After several wrong results the rank is quarantined: it gets no work.

The leader does not wait for a late checker: it asks another rank. If no other is at the round, the leader waits for one
that is present, as long again as the round has taken. If none arrives, the block passes unchecked, with a note. If
ranks differ and no other rank can decide, all of them compute the block once more; then the run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from codedreduce.protocol.core.audits import Mistakes
from codedreduce.protocol.core.blocks import Block
from codedreduce.protocol.core.events import Actions, Note
from codedreduce.protocol.core.messages import Check, Checked, Message, Passed, Tell, Trouble
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.leader.assignments import Assignments
from codedreduce.protocol.leader.distribution import Allotment
from codedreduce.protocol.leader.pace import NEVER, Pace
from codedreduce.protocol.leader.participation import Participation
from codedreduce.schemes import Part, StripedPlan

#: A checker is late after this many times its expected time, and this fraction of the time that the round has taken.
PATIENCE, OF_THE_ROUND = 2.0, 0.1

Say = Callable[[int, Message, float], None]


@dataclass(slots=True)
class Case:
    """An audited block: the digests that ranks reported, the ranks that were asked, and the right digest."""

    said: dict[int, bytes] = field(default_factory=dict)
    before: dict[int, set[bytes]] = field(default_factory=dict)  # earlier digests of ranks that reported again
    asked: dict[int, tuple[float, int]] = field(default_factory=dict)  # when, and number of blocks up to this one
    checkers: set[int] = field(default_factory=set)  # ranks that were ever asked
    sends: set[int] = field(default_factory=set)  # ranks that reported the block as part of what they send
    looked: float = 0.0  # when the leader last intervened, because no rank had reported
    since: float = 0.0  # when it first did
    right: bytes | None = None
    is_over: bool = False
    passed: set[int] = field(default_factory=set)  # ranks that were told that they were right
    found: set[int] = field(default_factory=set)  # ranks that were found to be wrong

    def ask(self, rank: int, now: float, blocks: int) -> None:
        """Note that a rank is asked, which has this number of blocks to do until it can answer."""
        self.asked[rank] = (now, blocks)
        self.checkers.add(rank)

    @property
    def is_waited_for(self) -> bool:
        """Whether a rank has computed the block as part of what it sends, and may not send it yet."""
        return not self.is_over and bool(self.sends or self.said.keys() - self.checkers)

    def majority(self) -> bytes | None:
        """The digest that most ranks reported, at least two; None in a tie."""
        first, *others = Counter(self.said.values()).most_common(2)
        return first[0] if first[1] > 1 and all(count < first[1] for _, count in others) else None

    def has_said_else(self, rank: int, digest: bytes) -> bool:
        """Whether a rank has ever reported a different digest."""
        return self.said.get(rank, digest) != digest or bool(self.before.get(rank, set()) - {digest})


class Verdicts:
    """The audits of a round, as the leader sees them."""

    def __init__(
        self, actions: Actions, plan: StripedPlan, settings: Settings, participation: Participation, pace: Pace,
        assignments: Assignments, mistakes: Mistakes, say: Say, *, own: int, generation: int,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._plan = plan
        self._settings = settings
        self._timing = settings.timing
        self._participation = participation
        self._pace = pace
        self._assignments = assignments
        self._mistakes = mistakes
        self._say = say
        self._own = own
        self._generation = generation
        self._round = 0
        self._began = 0.0
        self._cases: dict[Block, Case] = {}
        self._is_closed = False
        self._absent: set[int] = set()  # ranks that did not arrive while the leader waited
        self._right_in: dict[int, int] = {}  # the last round in which a rank was found to be right
        self._right_before: dict[int, int] = {}  # the same, when this one began

    # -- a round begins

    def begin(self, round_: int, loads: Mapping[int, Allotment], now: float) -> dict[int, tuple[Block, ...]]:
        """Draw the blocks to audit, and return the checks of each rank, which it does before its other work."""
        self._round, self._began = round_, now
        self._cases = {}
        self._is_closed = False
        self._right_before = dict(self._right_in)
        audit = self._settings.audit
        if audit is None or not audit.blocks(round_, 0, self._plan.blocks):
            return {}
        checks: dict[int, list[Block]] = {}
        free = {rank: self._expected(rank, load.blocks) for rank, load in loads.items()}
        worker = {
            (part.unit, block): rank for rank, load in loads.items() for part in load.parts()
            for block in range(part.first, part.last)
        }  # fmt: skip
        for unit in self._plan.all_units:
            for number in audit.blocks(round_, unit, self._plan.blocks):
                block = (unit, number)
                self._cases[block] = case = Case()
                able = [rank for rank in self._plan.readers(unit) if rank in free and rank != worker.get(block)]
                if not able:  # a rank may still arrive at the round
                    able = self._may_come(block, {worker.get(block, -1)})[:1]
                    free |= dict.fromkeys(able, 0.0)
                if able:
                    after = {rank: (free[rank] + self._expected(rank, 1), (rank - unit) % len(free)) for rank in able}
                    chosen = min(able, key=after.__getitem__)
                    free[chosen] += self._expected(chosen, 1)
                    checks.setdefault(chosen, []).append(block)
                    case.ask(chosen, now, len(checks[chosen]))
        return {rank: tuple(blocks) for rank, blocks in checks.items()}

    def _expected(self, rank: int, blocks: int) -> float:
        each = self._pace.block(rank) or self._pace.usual() or 1.0
        return blocks * each

    def ahead(self, rank: int, checks: Mapping[int, tuple[Block, ...]]) -> float:
        """Seconds that a rank needs for its checks before it begins with its parts, as far as is known."""
        return len(checks.get(rank, ())) * (self._pace.block(rank) or self._pace.usual() or 0.0)

    # -- digests of ranks

    @property
    def is_over(self) -> bool:
        """Whether all cases are decided."""
        return all(case.is_over for case in self._cases.values())

    @property
    def is_on(self) -> bool:
        """Whether the round is audited."""
        return bool(self._cases)

    def close(self) -> None:
        """Decide nothing more: the round is over, or a rank has its sum, which the others take."""
        self._is_closed = True
        for case in self._cases.values():
            case.is_over = True

    def reopen(self) -> bool:
        """No rank has the sum any more: audit blocks without a verdict after all. Return whether any were closed."""
        was_closed, self._is_closed = self._is_closed and self.is_on, False
        for case in self._cases.values() if was_closed else ():
            case.is_over = case.right is not None
        return was_closed

    def did(self, rank: int, part: Part) -> None:
        """A rank has done a part. It reports the digests of the audited blocks in it, or has reported them."""
        for block in range(part.first, part.last):
            case = self._cases.get((part.unit, block))
            if case is not None:
                case.sends.add(rank)

    def checked(self, rank: int, checked: Checked, now: float) -> list[int]:
        """A rank reports its digest of a block; return the ranks that this shows to be wrong."""
        block = (checked.unit, checked.block)
        case = self._cases.get(block)
        if checked.round != self._round or case is None:
            return []
        if rank in case.said and case.said[rank] != checked.digest:
            case.before.setdefault(rank, set()).add(case.said[rank])
        case.said[rank] = checked.digest
        self._absent.discard(rank)
        case.passed.discard(rank)  # the message may have been lost
        case.asked.pop(rank, None)
        return self._decide(block, case, now)

    def _decide(self, block: Block, case: Case, now: float) -> list[int]:
        if case.right is None:
            case.right = case.majority()
        if case.right is None and self._is_closed:
            return []  # an unchecked block does not pass: it is not needed any more
        if case.right is None and len(set(case.said.values())) > 1:
            case.is_over = False  # it may have passed because no other rank was present
            if not case.asked:
                self._ask_another(block, case, now)
        if case.right is None and not case.is_over:
            return []
        case.is_over = True
        wrong = []
        for rank in sorted({*case.said, *case.before}):
            if case.right is not None and case.has_said_else(rank, case.right):
                if rank not in case.found:
                    case.found.add(rank)
                    wrong.append(rank)
            elif rank in case.said:
                self._right_in[rank] = self._round
                self._pass(rank, block, case, now)
        return wrong

    def _pass(self, rank: int, block: Block, case: Case, now: float) -> None:
        if rank not in case.passed:
            case.passed.add(rank)
            passed = Passed(
                generation=self._generation, round=self._round, unit=block[0], block=block[1], digest=case.said[rank]
            )  # fmt: skip
            self._say(rank, passed, now)

    def why(self, rank: int) -> str:
        """The blocks that a rank computed wrongly in this round, and the earlier rounds that may be wrong as well."""
        blocks = [
            f"{block} of unit {unit}" for (unit, block), case in self._cases.items()
            if case.right is not None and case.has_said_else(rank, case.right)
        ]  # fmt: skip
        last = self._right_before.get(rank, self._settings.after)
        since = "it was last found to be right in" if rank in self._right_before else "it was not audited before"
        if rank in self._right_before:
            since += f" round {last}"
        if last + 1 < self._round:
            since += f", so its results of rounds {last + 1} to {self._round - 1} may be wrong, too"
        return f"rank {rank} computed block {' and block '.join(blocks)} wrongly in round {self._round}; {since}"

    # -- late or missing digests

    def _ask_another(self, block: Block, case: Case, now: float) -> bool:
        """Have one more rank compute a block; if there is none, and the digests differ, the same ranks once more."""
        able = [
            rank for rank in self._plan.readers(block[0])
            if rank not in case.said and rank not in case.asked and self._participation.can_compute(rank)
        ]  # fmt: skip
        able = [rank for rank in able if self._participation.can_help(rank)] or able
        if not able and len(set(case.said.values())) > 1 and self._may_decide(block, case):
            return False
        if not able and not case.before and len(set(case.said.values())) > 1:
            able = [rank for rank in case.said if self._participation.can_compute(rank)]
            case.before = {rank: {digest} for rank, digest in case.said.items()}
            case.said = {}
        else:
            assignments = self._assignments
            able = sorted(able, key=lambda rank: (assignments.of(rank).is_stuck, assignments.of(rank).blocks, rank))[:1]
        for rank in able:
            self._ask(rank, block, case, 1 + self._assignments.of(rank).blocks, now)
        return bool(able)

    def _ask(self, rank: int, block: Block, case: Case, ahead: int, now: float) -> None:
        case.ask(rank, now, ahead)
        self._say(rank, Check(generation=self._generation, round=self._round, blocks=(block,)), now)

    def undecided(self) -> tuple[Trouble, ...]:
        """The ranks that reported different digests of a block, if no other rank can decide."""
        for (unit, block), case in self._cases.items():
            is_open = case.right is None and not case.is_over and not case.asked and len(set(case.said.values())) > 1
            if is_open and not self._may_decide((unit, block), case):
                words = f"computed other bits than another rank for block {block} of unit {unit}; no rank can decide"
                return tuple((rank, words) for rank in sorted(case.said))
        return ()

    def gone(self, rank: int, now: float) -> None:
        """A rank cannot be reached: others do its checks."""
        for block, case in self._cases.items():
            if case.asked.pop(rank, None) is not None and not case.asked and case.is_waited_for:
                self._look_at(block, case, now)

    def look(self, now: float) -> float:
        """Ask other ranks in place of late ones; return when to check again."""
        due = float("inf")
        for block, case in self._cases.items():
            if case.is_waited_for:
                if self._is_due(case) <= now:
                    self._look_at(block, case, now)
                if not case.is_over:
                    due = min(due, self._is_due(case))
        return due

    def _is_due(self, case: Case) -> float:
        """When to ask another rank, if those asked have not answered."""
        again = case.looked + self._longer(case.looked) if case.looked else 0.0
        return max((self._late_at(rank, *asked) for rank, asked in case.asked.items()), default=again)

    def _longer(self, since: float) -> float:
        """How much longer to wait, from this time on."""
        longer = OF_THE_ROUND * (since - self._began) + self._settings.least_head_start
        return max(self._timing.check_timeout, longer)

    def _may_come(self, block: Block, others: Collection[int]) -> list[int]:
        """The ranks that could check a block if they arrived at this round, without `others`."""
        there = self._participation.present - self._absent
        return [
            rank for rank in self._plan.readers(block[0])
            if rank in there and rank not in others and not self._participation.is_wrong(rank)
        ]  # fmt: skip

    def _may_decide(self, block: Block, case: Case) -> list[int]:
        """The ranks that are present and could decide which digest is right, once they arrive at this round."""
        participation = self._participation
        return [
            rank for rank in self._plan.readers(block[0])
            if rank in participation.present and rank not in case.said
            and not participation.is_wrong(rank) and not participation.is_through(rank)
        ]  # fmt: skip

    def _late_at(self, rank: int, since: float, blocks: int) -> float:
        each = self._pace.block(rank) or self._pace.usual()
        if each is None:
            return float("inf")
        lag = self._pace.lag(rank)
        expected = (lag if lag < NEVER else 0.0) + blocks * each
        return since + PATIENCE * expected + self._longer(since)

    def _look_at(self, block: Block, case: Case, now: float) -> None:
        case.looked = now
        case.since = case.since or now
        for rank in sorted(case.sends - case.said.keys() - {self._own}):  # its report may be lost
            self._say(rank, Tell(generation=self._generation, round=self._round), now)
        if self._ask_another(block, case, now):
            return
        late, case.asked = case.asked, {}
        for rank, (_, blocks) in late.items():
            if self._participation.can_compute(rank):
                self._ask(rank, block, case, blocks + 1, now)  # the request may be lost
        if not case.asked and len(set(case.said.values())) == 1:
            absent = self._may_come(block, case.said)
            if absent and now < case.since + max(self._timing.checker_wait, case.since - self._began):
                return
            self._absent.update(absent)
            case.is_over = True
            words = f"round {self._round}: no rank is left to check block {block[1]} of unit {block[0]}"
            self._actions.append(Note(kind="unaudited", reason=words, round=self._round, nodes=tuple(case.said)))
            self._decide(block, case, now)

    def ranks(self) -> Iterable[int]:
        """The ranks that a round waits for, to report digests of audited blocks."""
        waited = {rank for case in self._cases.values() if not case.is_over for rank in case.asked}
        for block, case in self._cases.items():
            if not case.is_over and len(set(case.said.values())) > 1:
                waited.update(self._may_decide(block, case))
        return waited
