"""The root as the one who decides: it computes shares of which others say different things, and knows what is right.

It is the last that is asked: a share takes it as long as all who are in it together.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from codedreduce.protocol.accounts import digest_as_sent
from codedreduce.protocol.events import AnyAction, Compute, Computed
from codedreduce.protocol.settings import Settings
from codedreduce.protocol.standing_in import ShareByUnits, can_stand_in
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector


class Judgement(NamedTuple):
    """What a share is, and digests of all sums and single units in it, by their tasks."""

    task: int
    vector: Vector
    digest: bytes
    sums: dict[int, bytes]
    own: dict[int, bytes]


class Judging:
    """A part of the root: what it is to decide, and what it computes of that."""

    def __init__(self, plan: TreePlan, settings: Settings, *, computes: bool) -> None:
        self._plan = plan
        self._settings = settings
        self.is_able = computes and can_stand_in(plan)
        self._round = 0
        self._model: Vector | None = None
        self._share: _Watched | None = None
        self._waiting: deque[tuple[int, int]] = deque()

    def begin(self, round_: int, model: Vector) -> None:
        """Something may have to be decided that was computed with this model."""
        self._round, self._model = round_, model

    def end(self) -> None:
        """Nothing has to be decided any more."""
        self._model = self._share = None
        self._waiting.clear()

    def decide(self, task: int, provider: int, actions: list[AnyAction]) -> None:
        """Find out what a share is, the way that provider would make it; when others are decided."""
        self._waiting.append((task, provider))
        if self._share is None:
            self._next(actions)

    def _next(self, actions: list[AnyAction]) -> None:
        self._share = None
        if self._waiting:
            self._share = _Watched(self._plan, self._settings, *self._waiting.popleft())
            self._go_on(actions)

    def _go_on(self, actions: list[AnyAction]) -> None:
        assert self._share is not None
        assert self._model is not None
        pieces = self._share.next()
        assert pieces is not None, "what is complete has been taken"
        task = self._name(self._share.task)
        actions.append(Compute(round=self._round, task=task, pieces=pieces, model=self._model))

    def _name(self, task: int) -> int:
        """What is computed to decide is not to be taken for what is computed in the place of workers that are gone."""
        return self._plan.delegated(self._plan.delegated(task))

    def computed(self, event: Computed, actions: list[AnyAction]) -> Judgement | None:
        """A unit is computed; what is decided, if that was the last one of a share."""
        share = self._share
        if share is None or event.round != self._round or event.task != self._name(share.task):
            return None
        share.computed(event.vector)
        if share.next() is not None:
            self._go_on(actions)
            return None
        vector = share.result()
        digest = digest_as_sent([vector], self._settings)
        judgement = Judgement(share.task, vector, digest, {**share.sums, share.task: digest}, share.own)
        self._next(actions)
        return judgement

    def failed(self) -> None:
        """The root cannot compute."""
        self.is_able = False
        self._share = None
        self._waiting.clear()


class _Watched(ShareByUnits):
    """A share of which all that is in it is looked at."""

    def __init__(self, plan: TreePlan, settings: Settings, task: int, provider: int) -> None:
        super().__init__(plan, task, provider)
        self._settings = settings
        self.sums: dict[int, bytes] = {}
        self.own: dict[int, bytes] = {}

    def computed(self, vector: Vector) -> None:
        """A unit is computed; one to which nothing is added is a sum itself."""
        if self.has_shares:
            self.own[self.at] = digest_as_sent([vector], self._settings)
        super().computed(vector)

    def _is_complete(self, task: int, total: Vector) -> None:
        self.sums[task] = digest_as_sent([total], self._settings)
