"""What audits have found: who was wrong how often, what is said of it, and who is not used any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from codedreduce.protocol.blaming import DAMAGED, Blaming
from codedreduce.protocol.collecting import Collecting
from codedreduce.protocol.events import AnyAction, Note
from codedreduce.protocol.messages import Account
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import TreePlan


class Findings:
    """A part of the root: it is told of sums that are wrong, and of what they were made of, in this order or another.

    Who was wrong may become known later than that something was.
    """

    def __init__(self, plan: TreePlan, settings: Settings, below: Collecting) -> None:
        self._plan = plan
        self._settings = settings
        self._below = below
        self._round = settings.after
        self._blaming = Blaming(plan)
        self._suspects: list[tuple[int, int]] = []  # whose sum of which task is wrong, and nobody is named yet
        self._named: set[int] = set()  # in this round
        self._count: Counter[int] = Counter()  # by node, the rounds in which it was wrong
        self._passed: dict[int, int] = {}  # by node, the last round in which all that was looked at was right

    def begin(self, round_: int, actions: list[AnyAction]) -> None:
        """A round is audited."""
        self.give_up(actions)
        self._round = round_
        self._blaming = Blaming(self._plan)
        self._named = set()

    def passed(self, nodes: Iterable[int]) -> None:
        """All that was looked at was right, and these had a part in it."""
        self._passed.update(dict.fromkeys(nodes, self._round))

    def heard(self, account: Account, actions: list[AnyAction]) -> None:
        """A node says what its sum was made of."""
        if account.round == self._round:
            self._blaming.heard(account)
            self._name(actions)

    def better_of(self, one: int, other: int, task: int) -> int | None:
        """Which of two different sums is right, if it is known by now that the other was damaged on its way."""
        return self._blaming.better_of(one, other, task)

    def are_right(self, sums: Mapping[int, bytes], own: Mapping[int, bytes]) -> None:
        """The root has computed these itself."""
        self._blaming.are_right(sums, own)

    def are_wrong(self, task: int, right: bytes, nodes: Iterable[int], actions: list[AnyAction]) -> None:
        """What came of a task from these nodes is not right."""
        self._blaming.is_right(task, right)
        self._suspects += [(node, task) for node in nodes]
        self._name(actions)

    @property
    def are_open(self) -> bool:
        """Whether somebody may still be named."""
        return bool(self._suspects)

    def _name(self, actions: list[AnyAction]) -> None:
        waiting, self._suspects = self._suspects, []
        for node, task in waiting:
            found = self._blaming.blame(node, task)
            if found is None:
                self._suspects.append((node, task))
                continue
            for who, what in found:
                self._say(who, what, actions)

    def _say(self, node: int, what: str, actions: list[AnyAction]) -> None:
        if node in self._named:
            return
        self._named.add(node)
        reason = f"worker {node} {what} in round {self._round}, which an audit found and put right"
        if what == DAMAGED:
            actions.append(Note(kind="damaged", reason=reason, round=self._round, nodes=(node,)))
            return
        passed = self._passed.get(node)
        reason += f"; the last one that it passed was in round {passed}" if passed else "; it has passed none before"
        actions.append(Note(kind="mistaken", reason=reason, round=self._round, nodes=(node,)))
        self._count[node] += 1
        assert self._settings.audit is not None
        if self._count[node] == self._settings.audit.quarantine:
            reason = f"worker {node} is not used any more: it was found to be wrong in {self._count[node]} rounds"
            actions.append(Note(kind="quarantined", reason=reason, round=self._round, nodes=(node,)))
            self._below.shun({node}, actions)

    def give_up(self, actions: list[AnyAction]) -> None:
        """Who could show who was wrong does not answer: nobody is named."""
        for node, task in self._suspects:
            reason = (
                f"what worker {node} delivered of task {task} in round {self._round} was wrong, which an audit found"
            )
            reason += " and put right; whether by it or by one below it could not be found out"
            actions.append(Note(kind="mistaken", reason=reason, round=self._round))
        self._suspects = []
