"""What a script sees: join a run, and train in it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from codedreduce.errors import UsageError
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Note
from codedreduce.schemes import CodedReduce, MasterWorker, Plan, Scheme
from codedreduce.schemes.work import Piece
from codedreduce.topology import Tree
from codedreduce.torch.layout import Layout
from codedreduce.torch.unit import Losses, Task, UnitGradient
from codedreduce.worlds.delays import parse_delays
from codedreduce.worlds.environment import Membership, read_membership
from codedreduce.worlds.inject import DEFAULT_UNIT, Injection
from codedreduce.worlds.joined import JoinedCluster, check_membership, serve_joined
from codedreduce.worlds.tuning import settings_for

log = logging.getLogger("codedreduce")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One round, on the root: every parameter's `.grad` is the mean gradient of its batch.

    `late` names the workers whose part somebody else delivered. `saved` is how much longer the rounds so far would
    have taken had they waited for all, as far as it is known by now: late workers are measured when they stop.
    """

    round: int
    loss: float
    seconds: float
    late: tuple[int, ...] = ()
    saved: float = 0.0


@dataclass
class _Lateness:
    """How late workers would have been, by round."""

    worst: dict[int, float] = field(default_factory=dict)

    def saved(self) -> float:
        return sum(self.worst.values())


def join(
    scheme: Scheme | None = None,
    stragglers: int = 1,
    *,
    inject: str | None = None,
    noted: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Cluster:
    """Join the run that a launcher has started this process for.

    Rank, size and the root's address come from the environment, as `codedreduce run` and torchrun set them; mpiexec and
    srun set the first two, and MASTER_ADDR and MASTER_PORT must be set beside them. Rank 0 is the root. `scheme` is
    CodedReduce over a balanced tree by default, in which `stragglers` are tolerated under each parent. `inject` makes
    workers late on purpose, to try it out. `noted` is told what a person should hear of (logged by default). Without a
    launcher this process is alone, and computes everything itself.
    """
    membership = read_membership(os.environ if environment is None else environment)
    if scheme is None and membership is not None:
        scheme = membership.scheme or _default(membership.workers, stragglers)
    return Cluster(membership, scheme, inject or (membership.inject if membership else None), noted or log.warning)


def _default(workers: int, stragglers: int) -> Scheme:
    if workers <= stragglers:
        return CodedReduce(Tree.regular(fanout=workers, depth=1), 0)
    fanout = max(4, stragglers + 1)
    return CodedReduce(Tree.balanced(workers=workers, fanout=fanout, stragglers=stragglers), stragglers)


class Cluster:
    """This process's place in a run. Use it in a `with` block; leaving it ends the run for everyone."""

    def __init__(
        self, membership: Membership | None, scheme: Scheme | None, inject: str | None, noted: Callable[[str], None]
    ) -> None:
        self._membership = membership
        self._scheme = scheme or MasterWorker(1)
        self._inject = inject
        self._noted = noted
        self._trainings = 0
        self._running: contextlib.ExitStack | None = None

    @property
    def rank(self) -> int:
        """0 is the root."""
        return self._membership.rank if self._membership else 0

    @property
    def size(self) -> int:
        """Processes in the run, the root counted."""
        return self._membership.size if self._membership else 1

    @property
    def is_root(self) -> bool:
        """Whether the loop body runs here."""
        return self.rank == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.close()

    def train(
        self,
        model: torch.nn.Module,
        dataset: Any,
        losses: Losses,
        batch_size: int,
        steps: int,
        seed: int = 0,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch: int | None = None,
        device: torch.device | str | None = None,
        wire: str | None = None,
    ) -> Iterator[Step]:
        """Yield on the root once a round, with the mean gradient of its batch in every parameter's `.grad`.

        On a worker nothing is yielded: it serves until the run is over. `losses(model, batch)` gives one loss per
        sample. Which samples a batch has follows from the seed (`batch_indices`). `micro_batch` bounds how many samples
        go through the model at once. `device` is where the model and the batches are moved. `wire="bfloat16"` halves
        what travels: models and gradients are rounded on the way, in the same way whoever straggles.

        What cannot work (BatchNorm in training mode, a loss that is not per sample, a dataset without indices, another
        model on another node) raises here, on every node, before the first round.
        """
        where = torch.device(device) if device is not None else None
        if where is not None:
            model.to(where)
        task = Task(
            model=model, dataset=dataset, losses=losses, batch_size=batch_size, steps=steps, seed=seed,
            collate_fn=collate_fn, micro_batch=micro_batch, device=where,
        )  # fmt: skip
        layout = Layout(model)
        if wire is not None and layout.dtype != np.float32:
            raise UsageError(f"wire={wire!r} would lose what float64 parameters are for; leave it out")
        task.rehearse()
        plan = self._scheme.plan(samples=batch_size)
        if self._membership is None:
            return self._alone(task, layout, plan)
        membership = self._meeting(task, layout, wire)
        check_membership(membership, plan)
        wire_dtype = membership.meeting.wire_dtype()
        shared = membership.meeting.same_machine and wire_dtype is None
        itemsize = (wire_dtype or layout.dtype).itemsize
        settings = settings_for(layout.length, shared_memory=shared, itemsize=itemsize)
        if membership.rank:
            return self._serve(task, layout, plan, settings, membership)
        return self._train(task, layout, plan, settings, membership)

    def _meeting(self, task: Task, layout: Layout, wire: str | None) -> Membership:
        """The run of this training: the second one of a script is another than the first."""
        assert self._membership is not None
        self._trainings += 1
        meeting = self._membership.meeting
        size = "whole" if task.micro_batch is None else f"by {task.micro_batch}"
        subject = (
            f"{layout.digest()}, {len(task.dataset)} samples, batches of {task.batch_size} computed {size}, "
            f"seed {task.seed}" + (f", sent as {wire}" if wire else "")
        )
        name = meeting.run if self._trainings == 1 else f"{meeting.run}-{self._trainings}"
        return replace(self._membership, meeting=replace(meeting, run=name, subject=subject, wire=wire))

    def _train(
        self, task: Task, layout: Layout, plan: Plan, settings: Settings, membership: Membership
    ) -> Iterator[Step]:
        lateness = _Lateness()
        vector = np.zeros(layout.length, dtype=layout.dtype)
        cluster = JoinedCluster(membership, plan, settings, dtype=layout.dtype, noted=self._hear)
        with contextlib.ExitStack() as stack:
            self._running = stack
            stack.enter_context(cluster)
            for round_ in range(1, task.steps + 1):
                layout.read_model(vector)
                result = cluster.aggregate(vector)
                for late in result.lateness:
                    lateness.worst[late.round] = max(late.seconds, lateness.worst.get(late.round, 0.0))
                loss = layout.write_gradients(result.vector, task.batch_size)
                yield Step(
                    round=round_, loss=loss, seconds=result.seconds, late=result.late, saved=lateness.saved()
                )  # fmt: skip
            self._running = None

    def _serve(
        self, task: Task, layout: Layout, plan: Plan, settings: Settings, membership: Membership
    ) -> Iterator[Step]:
        if membership.meeting.same_machine and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # workers share this machine's cores
        injection = None
        if self._inject is not None:
            delays = parse_delays(self._inject, workers=plan.workers, unit=DEFAULT_UNIT, seed=task.seed)
            injection = Injection(delays=delays)
        serve_joined(
            membership, plan, settings, UnitGradient(task, layout), dtype=layout.dtype, injection=injection
        )  # fmt: skip
        return
        yield  # a generator that yields nothing

    def _alone(self, task: Task, layout: Layout, plan: Plan) -> Iterator[Step]:
        """All units of the plan, one after the other, summed as a run of that plan would."""
        gradient = UnitGradient(task, layout)
        vector = np.zeros(layout.length, dtype=layout.dtype)
        for round_ in range(1, task.steps + 1):
            begin = time.monotonic()
            layout.read_model(vector)

            def evaluate(piece: Piece, round_: int = round_) -> np.ndarray[Any, Any]:
                out = np.empty(layout.length, dtype=layout.dtype)
                gradient(piece, vector, round_, out, 0)
                return out

            loss = layout.write_gradients(plan.reference(evaluate), task.batch_size)
            yield Step(round=round_, loss=loss, seconds=time.monotonic() - begin)

    def _hear(self, note: Note) -> None:
        self._noted(note.reason)
