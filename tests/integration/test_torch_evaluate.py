"""`step.evaluate()`: loss and gradient once more, at the parameters as they are by then. LBFGS needs it."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce.errors import UsageError

from .torch_model import BATCH, Model, data, losses, run_forked

STEPS = 4
PLACES = {
    "alone": (0, {}),
    "stripes": (3, {}),
    "stalls": (3, {"inject": "stalls:0.2:0.05s"}),
    "tree": (3, {"tree": "2x1"}),
}


def run(script, processes: int, **variables) -> None:
    """All processes must end well."""
    if not processes:
        script()
        return
    found = run_forked(script, processes, {f"CODEDREDUCE_{key.upper()}": str(variables[key]) for key in variables})
    assert not found.errors, found.errors
    assert set(found.codes.values()) == {0}, found.codes


def lbfgs(model: torch.nn.Module) -> torch.optim.LBFGS:
    used = [*model.first.parameters(), *model.last.parameters()]
    return torch.optim.LBFGS(used, max_iter=6, line_search_fn="strong_wolfe")


def in_one_process() -> tuple[list[float], list[torch.Tensor]]:
    """The same in plain PyTorch: the loss of each step, and the parameters it ends with."""
    model, dataset = Model(torch.float64), data(torch.float64)
    optimizer, found = lbfgs(model), []
    for round_ in range(1, STEPS + 1):
        x, y = dataset[cr.batch_indices(len(dataset), BATCH, round_, seed=3)]

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        found.append(float(optimizer.step(closure)))
    return found, [one.detach() for one in model.parameters()]


@pytest.mark.parametrize("place", PLACES)
def test_lbfgs_with_a_line_search_is_that_of_one_process(tmp_path: Path, place: str) -> None:
    processes, variables = PLACES[place]

    def script() -> None:
        model = Model(torch.float64)
        optimizer, found, drawn = lbfgs(model), [], []
        with cr.join() as cluster:
            for step in cluster.train(model, data(torch.float64), losses, BATCH, STEPS, seed=3, state=[optimizer]):
                found.append(float(optimizer.step(step.evaluate)))
                drawn.append(float(torch.rand(1)))
                assert abs(found[-1] - step.loss) < 1e-12, "it evaluates where the step was, first"
            rounds = step.round if found else STEPS
        if found:
            expected, parameters = in_one_process()
            torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-8, atol=1e-10)
            for mine, theirs in zip(model.parameters(), parameters, strict=True):
                torch.testing.assert_close(mine.detach(), theirs, rtol=1e-6, atol=1e-8)
            (tmp_path / f"{cluster.rank}").write_text(f"{drawn if place != 'tree' else ''} {rounds}")

    run(script, processes, **variables)
    left = [one.read_text() for one in tmp_path.iterdir()]
    assert len(left) == (1 if place in ("alone", "tree") else processes)
    assert len(set(left)) == 1, "what a body draws is the same on all ranks"
    assert left[0].endswith(f" {STEPS}"), "evaluations do not count as steps"


def test_a_rank_that_fell_behind_in_a_closure_goes_on_with_the_others(tmp_path: Path) -> None:
    """It cannot take a state there: its step comes to nothing, and it takes one when its body is through."""

    def script() -> None:
        model, seen = Model(torch.float64), []
        optimizer = lbfgs(model)
        with cr.join() as cluster:
            for step in cluster.train(model, data(torch.float64), losses, BATCH, 30, seed=3, state=[optimizer]):
                seen.append(step.round)
                calls = 0

                def closure(step: cr.Step = step) -> torch.Tensor:
                    nonlocal calls
                    calls += 1
                    if cluster.rank == 1 and step.round == 3 and calls == 2:
                        while not (tmp_path / "20").exists():  # more than 64 rounds later: no sums are held
                            time.sleep(0.01)
                    return step.evaluate()

                optimizer.step(closure)
                if cluster.rank == 0 and step.round == 20:
                    (tmp_path / "20").touch()
            bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters()).hex()
            (tmp_path / f"of {cluster.rank}").write_text(bits)
            (tmp_path / f"seen by {cluster.rank}").write_text(str(len(seen)))

    run(script, 3)
    assert len({(tmp_path / f"of {rank}").read_text() for rank in range(3)}) == 1
    assert int((tmp_path / "seen by 1").read_text()) < 20


def check_gradient(model: torch.nn.Module, dataset: TensorDataset, step: cr.Step) -> None:
    """What a step has is the loss and the gradient of its whole batch, in one process."""
    x, y = dataset[cr.batch_indices(len(dataset), BATCH, step.round, seed=3)]
    plain = copy.deepcopy(model)
    plain.zero_grad()
    found = F.cross_entropy(plain(x), y)
    found.backward()
    assert abs(step.loss - found.item()) <= 1e-12
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-14)


def test_a_rank_that_evaluates_more_often_is_told_so(tmp_path: Path) -> None:
    """And so are the others, unless they had done without what it computed: no step has any of it."""

    def script() -> None:
        model, dataset = Model(torch.float64), data(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        said = "through"
        try:
            with cr.join() as cluster:
                for step in cluster.train(model, dataset, losses, BATCH, 4, seed=3):
                    check_gradient(model, dataset, step)
                    if cluster.rank == 1 and step.round == 2:
                        step.evaluate()
                    optimizer.step()
        except UsageError as error:
            said = str(error)
        (tmp_path / f"{cluster.rank}").write_text(said)

    found = run_forked(script, 3, {})
    said = [(tmp_path / f"{rank}").read_text() for rank in range(3)]
    assert "the requests of the ranks differ" in said[1], found
    assert "differ: steps 2 and 3, evaluations 0 and 1" in said[1]
    assert all("the requests of the ranks differ" in one or one == "through" for one in said), said


def test_a_step_that_is_over_cannot_be_evaluated() -> None:
    model = Model()
    with cr.join(environment={}) as cluster:
        steps = cluster.train(model, data(), losses, BATCH, 3)
        first = next(steps)
        before = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
        assert float(first.evaluate()) == first.loss
        for one, was in zip(model.parameters(), before, strict=True):
            assert (one.grad is None and was is None) or torch.equal(one.grad, was), "nothing has changed since"
        next(steps)
        with pytest.raises(UsageError, match="step 1 is over"):
            first.evaluate()
