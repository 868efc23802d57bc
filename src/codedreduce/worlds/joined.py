"""One process of many, each started by a launcher with the same script."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codedreduce.errors import SchemeError
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Note, Vector
from codedreduce.schemes import Plan, RingPlan
from codedreduce.worlds.environment import Membership
from codedreduce.worlds.inject import Injection
from codedreduce.worlds.local import FLOAT32
from codedreduce.worlds.zeromq.computing import Gradient
from codedreduce.worlds.zeromq.root import RootNode, RoundResult
from codedreduce.worlds.zeromq.serve import serve_worker


class JoinedCluster:
    """The root of a run whose workers a launcher has started."""

    def __init__(
        self,
        membership: Membership,
        plan: Plan,
        settings: Settings,
        *,
        dtype: np.dtype[np.generic] = FLOAT32,
        noted: Callable[[Note], None] | None = None,
    ) -> None:
        check_membership(membership, plan)
        self._root = RootNode(membership.meeting, plan, settings, dtype, lambda: None, noted)

    def __enter__(self) -> JoinedCluster:
        try:
            self._root.wait_for_all()
        except BaseException:
            self._root.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._root.close()

    def aggregate(self, model: Vector) -> RoundResult:
        """One round."""
        return self._root.aggregate(model)


def serve_joined(
    membership: Membership,
    plan: Plan,
    settings: Settings,
    gradient: Gradient,
    *,
    dtype: np.dtype[np.generic] = FLOAT32,
    injection: Injection | None = None,
) -> None:
    """The life of a worker that a launcher has started."""
    check_membership(membership, plan)
    serve_worker(membership.meeting, membership.rank, plan, settings, dtype, gradient, injection)


def check_membership(membership: Membership, plan: Plan) -> None:
    """Refuse a plan for another number of workers, and the ring, which has no root to train on."""
    if isinstance(plan, RingPlan):
        raise SchemeError(
            "a ring has no root, so a script that trains on its root cannot run on one; use another scheme"
        )
    if plan.workers != membership.workers:
        raise SchemeError(
            f"the scheme {plan.scheme} has {plan.workers} workers, and the launcher started {membership.workers}"
        )
