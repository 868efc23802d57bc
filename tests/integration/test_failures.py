"""Real processes whose gradients raise errors or are not finite: tried on a replica, and the run ends if it repeats."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from codedreduce import CodedReduce, GradientCoding, MasterWorker, Scheme, Striped, Tree, train
from codedreduce.errors import Diverged, UsageError, WorkerFailed
from codedreduce.node.local import LocalCluster
from codedreduce.protocol import Settings
from codedreduce.run.failures import PASS
from codedreduce.schemes import Piece, Plan
from codedreduce.training import LogisticRegression, synthetic

PLAN = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)
SETTINGS = Settings(length=1000, least_head_start=0.02)
MODEL = np.arange(1000, dtype=np.float32)
DATA = synthetic(samples=120, features=5, seed=0)

Gradient = Callable[[Piece, np.ndarray, int, np.ndarray, int], None]


def failing(*when: tuple[int, int], error: Exception | None = None) -> Gradient:
    """Counts samples; at these nodes in these rounds it raises, or without an error gives a number that is none."""

    def gradient(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        np.multiply(model, np.float32(sum(len(part) for part in piece)), out=out)
        if (node, round_) in when:
            if error is not None:
                raise error
            out[17] = np.inf

    return gradient


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not list(Path("/dev/shm").glob(f"codedreduce-{os.getpid()}-*"))
    children = psutil.Process().children()
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("error", [MemoryError("no room"), ValueError("cursed"), None], ids=lambda error: repr(error))
@pytest.mark.parametrize("node", [1, 4], ids=["inner", "leaf"])
def test_a_replica_does_what_a_worker_failed_at(node: int, error: Exception | None, capfd) -> None:
    with LocalCluster.of(PLAN, failing((node, 2), (node, 4), error=error), SETTINGS) as cluster:
        for round_ in range(1, 7):
            result = cluster.sum_of(MODEL)
            np.testing.assert_array_equal(result.vector, 60 * MODEL)
            if round_ in (2, 4):
                assert node in result.late or PLAN.tree.parent(node) in result.late
        notes = cluster.journal.of_kind("failed")
    assert [(note.nodes, note.round) for note in notes] == [((node,), 2), ((node,), 4)]
    reason = f"{type(error).__name__}: {error}" if error is not None else "its gradient is not finite"
    assert notes[0].reason == f"worker {node} failed in round 2: {reason}"
    printed = capfd.readouterr().err
    assert printed.count(f"{type(error).__name__}: {error}") == (error is not None), "the traceback, once"


@pytest.mark.parametrize(
    ("plan", "nodes"),
    [
        (PLAN, (3, 4)),  # a leaf and its replica
        (PLAN, (1, 3, 4)),  # a parent's own unit, and whichever child is asked for it
        (CodedReduce(Tree.regular(fanout=2, depth=2), 1, order="eager").plan(samples=60), (1, 2)),
        (GradientCoding(4, 1, code="cyclic").plan(samples=60), (1, 3)),
    ],
    ids=["leaves", "own unit", "eager", "cyclic"],
)
def test_what_fails_at_two_ends_the_run_and_names_both(plan: Plan, nodes: tuple[int, ...]) -> None:
    broken = failing(*((node, 2) for node in nodes), error=ValueError("cursed"))
    with LocalCluster.of(plan, broken, SETTINGS) as cluster:
        cluster.sum_of(MODEL)
        with pytest.raises(WorkerFailed, match=r"worker \d failed: ValueError: cursed; worker \d, asked instead: Val"):
            cluster.sum_of(MODEL)
        named = {node for note in cluster.journal.of_kind("failed") for node in note.nodes}
        assert named <= set(nodes)
        assert len(named) >= 2


def test_what_nobody_else_can_do_ends_the_run() -> None:
    plan = MasterWorker(3).plan(samples=60)
    with (
        pytest.raises(WorkerFailed, match=r"worker 2 failed: ValueError: cursed$"),
        LocalCluster.of(plan, failing((2, 1), error=ValueError("cursed")), SETTINGS) as cluster,
    ):
        cluster.sum_of(MODEL)


def test_what_is_finite_nowhere_has_diverged() -> None:
    with LocalCluster.of(PLAN, failing((3, 1), (4, 1)), SETTINGS) as cluster:  # noqa: SIM117
        with pytest.raises(Diverged, match=r"round 1: the gradient is not finite \(of worker \d, and of \d that was"):
            cluster.sum_of(MODEL)


def test_numbers_that_are_not_finite_can_pass() -> None:
    cluster = LocalCluster.of(PLAN, failing((3, 1)), SETTINGS)
    cluster.run = replace(cluster.run, nonfinite=PASS)
    with cluster:
        vector = cluster.sum_of(MODEL).vector
    assert np.isinf(vector[17])
    np.testing.assert_array_equal(np.delete(vector, 17), np.delete(60 * MODEL, 17))


class Broken(LogisticRegression):
    """Whoever comes to its third evaluation first runs out of memory."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark
        self.evaluations = 0

    def evaluate(self, model, x, y, weights, out):
        self.evaluations += 1
        if self.evaluations == 3:
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                raise MemoryError("none left")
        return super().evaluate(model, x, y, weights, out)


SCHEMES = {"tree": CodedReduce(Tree.regular(fanout=2, depth=1), 1), "striped": Striped(3)}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_training_in_which_a_worker_fails_ends_with_the_same_bits(scheme: Scheme, tmp_path: Path) -> None:
    calm = train(LogisticRegression(), DATA, scheme=scheme, rounds=6)
    notes: list[str] = []
    broken = Broken(tmp_path / "failed")
    disturbed = train(broken, DATA, scheme=scheme, rounds=6, on_note=lambda note: notes.append(note.reason))
    np.testing.assert_array_equal(disturbed.parameters, calm.parameters)
    assert sum("MemoryError: none left" in note for note in notes) == 1


class Cursed(LogisticRegression):
    """Cannot be evaluated in the third round, by anybody."""

    def evaluate(self, model, x, y, weights, out):
        if self.evaluations == 2:
            raise ValueError("cursed")
        self.evaluations += 1
        return super().evaluate(model, x, y, weights, out)

    evaluations = 0


def test_ranks_that_all_fail_end_and_name_two() -> None:
    with pytest.raises(WorkerFailed, match=r"worker \d failed: ValueError: cursed; worker \d, asked instead: V"):
        train(Cursed(), DATA, scheme=Striped(3, blocks=1), rounds=6)


def test_words_that_mean_nothing() -> None:
    with pytest.raises(UsageError, match="nonfinite must be 'refuse' or 'pass', got 'maybe'"):
        train(LogisticRegression(), DATA, scheme=MasterWorker(2), rounds=1, nonfinite="maybe")
