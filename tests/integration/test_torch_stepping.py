"""A loop body that takes the gradients away before it steps, as plain scripts do, is told so."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import codedreduce.torch as cr
from codedreduce import CodedReduce, Striped, Tree
from codedreduce.errors import UsageError

from .torch_model import BATCH, Model, data, losses, run_forked


def trained(
    body: Callable[[torch.optim.Optimizer, cr.Step], None], steps: int = 4, model: nn.Module | None = None
) -> None:
    model = model or Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with cr.join(environment={}) as cluster:
        for step in cluster.train(model, data(), losses, BATCH, steps):
            body(optimizer, step)
    assert step.round == steps


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_taken_away_before_the_step_are_said(set_to_none: bool) -> None:
    def as_in_a_plain_script(optimizer: torch.optim.Optimizer, step: cr.Step) -> None:
        if step.round == 3:
            optimizer.zero_grad(set_to_none)
        optimizer.step()

    with pytest.raises(UsageError, match=r"round 3: AdamW.step\(\) finds no gradients.*leave it out"):
        trained(as_in_a_plain_script)


def test_gradients_that_are_taken_away_afterwards_are_not_missed() -> None:
    def careful(optimizer: torch.optim.Optimizer, step: cr.Step) -> None:
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()  # once more with nothing: that is up to the script

    trained(careful)


def test_other_optimizers_are_not_looked_at() -> None:
    other = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)

    def beside(optimizer: torch.optim.Optimizer, step: cr.Step) -> None:
        other.zero_grad()
        other.step()
        optimizer.step()

    trained(beside)
    other.zero_grad()
    other.step()


def test_gradients_that_are_zero_by_themselves_are_fine() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with cr.join(environment={}) as cluster:
        for _ in cluster.train(model, data(), lambda model, batch: losses(model, batch) * 0, BATCH, 2):
            optimizer.step()
    optimizer.zero_grad()
    optimizer.step()  # after the loop nobody looks


@pytest.mark.parametrize(("scheme", "processes"), [(Striped(2), 2), (CodedReduce(Tree.regular(fanout=2, depth=1)), 3)])
def test_in_a_cluster(scheme, processes: int) -> None:
    def script() -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        with cr.join(scheme) as cluster:
            for _ in cluster.train(model, data(), losses, BATCH, 4):
                optimizer.zero_grad()
                optimizer.step()

    outcome = run_forked(script, processes, {})
    assert outcome.errors[0].startswith("UsageError: round 1: AdamW.step() finds no gradients")
    assert None not in outcome.codes.values(), "somebody hangs"
