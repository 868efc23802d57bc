"""What a loop body changes beside its step: right on every rank, and refused over a tree where it can be seen."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import codedreduce.torch as cr
from codedreduce import CodedReduce, MasterWorker, Scheme, Striped, Tree
from codedreduce.errors import UsageError

from .test_torch_striped import digest
from .torch_model import BATCH, Model, data, run_forked

RANKS, STEPS = 3, 8


class Student(nn.Module):
    """A model with all that a body may change: a buffer, an attribute, a frozen layer, a teacher, a coefficient."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = Model(torch.float64, dropout)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale / self.temperature


class Script:
    """One body for all: it steps and changes things, with gradients from wherever they come."""

    def __init__(self) -> None:
        self.student = Student()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.coefficient = 1.0
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1, momentum=0.9)

    def losses(self, model: nn.Module, batch) -> torch.Tensor:
        x, y = batch
        target = self.teacher(x).softmax(1)
        own, other = (F.cross_entropy(model(x), wanted, reduction="none") for wanted in (y, target))
        return own + self.coefficient * other

    def body(self, round_: int) -> list[torch.Tensor | None]:
        """What it stepped with."""
        gradients = [None if one.grad is None else one.grad.clone() for one in self.student.parameters()]
        self.optimizer.step()
        self.coefficient *= 0.9
        self.student.scale *= 1.02
        self.student.temperature *= 1.01
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                mine.lerp_(theirs, 0.2)
        if round_ == 3:
            self.student.inner.frozen.requires_grad_(True)
        if round_ == 6:
            self.student.inner.first.requires_grad_(False)
        return gradients


def plain() -> list[list[torch.Tensor | None]]:
    """The same in a loop of PyTorch's own."""
    script, dataset, found = Script(), data(torch.float64), []
    for round_ in range(1, STEPS + 1):
        script.optimizer.zero_grad()
        batch = dataset[cr.batch_indices(len(dataset), BATCH, round_, seed=3)]
        script.losses(script.student, batch).mean().backward()
        found.append(script.body(round_))
    return found


def compared(folder: Path, scheme: Scheme) -> Callable[[], None]:
    wanted = plain()

    def run() -> None:
        script = Script()
        with cr.join(scheme) as cluster:
            for step in cluster.train(
                script.student, data(torch.float64), script.losses, BATCH, STEPS, seed=3, state=[script.optimizer]
            ):
                for mine, theirs in zip(script.body(step.round), wanted[step.round - 1], strict=True):
                    assert (mine is None) == (theirs is None), f"round {step.round}"
                    if mine is not None:
                        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
            (folder / f"{cluster.rank}").write_text(f"{step.round} {digest(*script.student.parameters())}")

    return run


def test_every_gradient_is_plain_pytorchs_whatever_a_body_changes(tmp_path: Path) -> None:
    """A coefficient, a buffer, a teacher, an attribute, a layer unfrozen and one frozen; alone, and on every rank."""
    compared(tmp_path, MasterWorker(1))()
    assert (tmp_path / "0").read_text().startswith(f"{STEPS} ")
    outcome = run_forked(compared(tmp_path, Striped(RANKS)), RANKS, {"CODEDREDUCE_INJECT": "stalls:0.2:0.05s"})
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    found = {(tmp_path / f"{rank}").read_text() for rank in range(RANKS)}
    assert len(found) == 1
    assert found.pop().startswith(f"{STEPS} ")


def unfreezes(model: Student) -> None:
    model.inner.frozen.requires_grad_(True)


def freezes(model: Student) -> None:
    model.inner.last.requires_grad_(False)


def scales(model: Student) -> None:
    model.scale *= 1.1


def moves_what_is_frozen(model: Student) -> None:
    with torch.no_grad():
        model.inner.frozen.weight += 0.1


def evaluates(model: Student) -> None:
    model.eval()
    model(data(torch.float64)[:][0])


REFUSED = {
    unfreezes: "round 2: the loop body has unfrozen 'inner.frozen.weight'; over a tree workers do not receive this",
    freezes: "round 2: the loop body has frozen 'inner.last.weight'; over a tree",
    scales: "round 2: the loop body has changed 'scale', which is not trained; over a tree",
    moves_what_is_frozen: "round 2: the loop body has changed 'inner.frozen.weight', which is not trained; over",
}


def over_a_tree(change: Callable[[Student], None], steps: int, seen: list[int]) -> Callable[[], None]:
    def run() -> None:
        model = Student()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def losses(model: nn.Module, batch) -> torch.Tensor:
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        with cr.join(CodedReduce(Tree.regular(fanout=2, depth=1))) as cluster:
            for step in cluster.train(model, data(torch.float64), losses, BATCH, steps, seed=3):
                optimizer.step()
                seen.append(step.round)
                if step.round == 2:
                    change(model)

    return run


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_over_a_tree_it_is_refused(change: Callable[[Student], None]) -> None:
    outcome = run_forked(over_a_tree(change, STEPS, []), RANKS, {"CODEDREDUCE_ORPHANED_AFTER": "3"})
    assert outcome.codes[0] == 1
    assert outcome.errors[0].startswith(f"UsageError: {REFUSED[change]}"), outcome.errors


def test_evaluating_over_a_tree_is_not() -> None:
    outcome = run_forked(over_a_tree(evaluates, STEPS, []), RANKS)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors


def test_a_model_that_was_evaluated_on_one_rank_goes_on_training(tmp_path: Path) -> None:
    """What a body left in evaluation mode is set back; a layer that alone was set to it stays."""

    def script() -> None:
        model = Student(dropout=0.5)
        model.inner.unused.eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def losses(model: nn.Module, batch) -> torch.Tensor:
            assert model.training
            assert model.inner.dropout.training
            assert not model.inner.unused.training
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        with cr.join() as cluster:
            training = cluster.train(model, data(torch.float64), losses, BATCH, epochs=3, seed=3, state=[optimizer])
            ends = []
            for epoch, steps in cr.by_epoch(training):
                for step in steps:
                    assert step.epoch == epoch
                    optimizer.step()
                if cluster.is_root:
                    evaluates(model)
                ends.append(step.round)
            (tmp_path / f"{cluster.rank}").write_text(f"{ends} {digest(*model.parameters())}")

    outcome = run_forked(script, RANKS)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    found = {(tmp_path / f"{rank}").read_text() for rank in range(RANKS)}
    assert len(found) == 1
    of_epoch = 200 // BATCH
    calm = found.pop()
    assert calm.startswith(f"{[of_epoch, 2 * of_epoch, 3 * of_epoch]} ")
    outcome = run_forked(script, RANKS, {"CODEDREDUCE_INJECT": "rank:0:1:0.05s"})
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert {(tmp_path / f"{rank}").read_text() for rank in range(RANKS)} == {calm}, "others did what is rank 0's"


def test_how_long_is_said_once() -> None:
    def begin(**length: int) -> int:
        with cr.join(environment={}) as cluster:
            training = cluster.train(Model(), data(), lambda model, batch: model(batch[0]).sum(1), BATCH, **length)
            return [step.ends_epoch for step in training].index(True)

    assert begin(epochs=1) == 200 // BATCH - 1
    for length in ({}, {"steps": 3, "epochs": 1}, {"epochs": 0}):
        with pytest.raises(UsageError, match=r"; set steps=|: set only one of them"):
            begin(**length)
