"""What optimizers and their helpers expect of gradients: scaling, sparse rows, accumulation, what is not finite."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce.errors import Diverged, UsageError

from .torch_model import BATCH, Model, data, losses, run_forked


def run(script, processes: int, **variables) -> None:
    """All processes must end well."""
    if not processes:
        script()
        return
    found = run_forked(script, processes, {f"CODEDREDUCE_{key.upper()}": str(variables[key]) for key in variables})
    assert not found.errors, found.errors
    assert set(found.codes.values()) == {0}, found.codes


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_scaler_leaves_out_the_same_steps_as_in_one_process(tmp_path: Path, ranks: int) -> None:
    """Scales are far too large at first, and again when they have grown."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
        model = Model()
        factors = {"growth_factor": 2.0**20, "backoff_factor": 2.0**-20, "growth_interval": 4}
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, **factors)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), scaler

    def script() -> None:
        model, optimizer, scaler = made()
        scales = []

        def scaled(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
            return scaler.scale(losses(model, batch))

        with cr.join() as cluster:
            options = {"state": [optimizer, scaler], "nonfinite": "pass", "seed": 3}
            for _ in cluster.train(model, data(), scaled, BATCH, 12, **options):
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
        plain, other, its = made()
        expected = []
        for round_ in range(1, 13):
            x, y = data()[cr.batch_indices(200, BATCH, round_, seed=3)]
            other.zero_grad()
            its.scale(F.cross_entropy(plain(x), y, reduction="none")).sum().backward()
            for one in plain.parameters():
                one.grad = one.grad / BATCH if one.grad is not None else None
            its.unscale_(other)
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            its.step(other)
            its.update()
            expected.append(its.get_scale())
        assert scales == expected
        assert scales.count(2.0**127) == 2, "it grew twice"
        assert scales[0] == scales[5] == 2.0**107, "and steps were left out after that"
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        (tmp_path / f"{cluster.rank}").write_text(
            "".join(one.detach().numpy().tobytes().hex() for one in model.parameters())
        )

    run(script, ranks)
    assert len({one.read_text() for one in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("how", ["in state", "in losses", "asked for its scale"])
def test_over_a_tree_a_scaler_is_refused(how: str) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "3", "CODEDREDUCE_TREE": "2x1", "CODEDREDUCE_RUN": "refused"}
    model = Model()
    scaler = torch.amp.GradScaler("cpu")
    cluster = cr.join(environment=environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})

    def scaled(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        each = losses(model, batch)
        return scaler.scale(each) if how == "in losses" else each * scaler.get_scale()

    computed, state = (losses, [scaler]) if how == "in state" else (scaled, [])
    with pytest.raises(UsageError, match="GradScaler"):
        cluster.train(model, data(), computed, BATCH, 4, state=state)
    assert not torch.amp.GradScaler.scale.__closure__, "it is as it was"


@pytest.mark.parametrize("ranks", [0, 3])
def test_sparse_embeddings_have_sparse_gradients(tmp_path: Path, ranks: int) -> None:
    generator = torch.Generator().manual_seed(1)
    words = TensorDataset(
        torch.randint(0, 40, (60, 3), generator=generator), torch.randint(0, 2, (60,), generator=generator)
    )

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.embedding, self.last = nn.Embedding(40, 6, sparse=True).double(), nn.Linear(6, 2).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.embedding(x).mean(1))

    def made() -> tuple[Words, list[torch.optim.Optimizer]]:
        model = Words()
        sparse = torch.optim.SparseAdam(model.embedding.parameters(), lr=0.05)
        return model, [sparse, torch.optim.Adam(model.last.parameters(), lr=0.05)]

    def script() -> None:
        (model, optimizers), (plain, others) = made(), made()
        with cr.join() as cluster:
            for step in cluster.train(model, words, losses, 12, 6, seed=3, state=optimizers):
                x, y = words[cr.batch_indices(60, 12, step.round, seed=3)]
                plain.zero_grad()
                F.cross_entropy(plain(x), y).backward()
                mine, theirs = model.embedding.weight.grad.coalesce(), plain.embedding.weight.grad.coalesce()
                assert torch.equal(mine.indices(), theirs.indices())
                torch.testing.assert_close(mine.values(), theirs.values(), rtol=1e-10, atol=1e-14)
                for one in (*optimizers, *others):
                    one.step()
        torch.testing.assert_close(model.embedding.weight, plain.embedding.weight, rtol=1e-9, atol=1e-12)
        (tmp_path / f"{cluster.rank}").touch()

    run(script, ranks)
    assert len(list(tmp_path.iterdir())) == max(1, ranks)


def test_that_gradients_of_rounds_without_a_step_are_lost_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, logger="codedreduce"), cr.join(environment={}) as cluster:
        for step in cluster.train(model, data(), losses, BATCH, 9):
            if step.round % 3 == 0:
                optimizer.step()
    (said,) = [one.getMessage() for one in caplog.records if "are lost" in one.getMessage()]
    assert "round 3: no optimizer used the gradients of the last 2 rounds" in said
    assert "batch_size" in said


@pytest.mark.parametrize("place", ["alone", "stripes", "tree"])
@pytest.mark.parametrize("nonfinite", ["refuse", "pass"])
def test_a_gradient_that_is_not_finite_ends_the_run_or_passes(tmp_path: Path, place: str, nonfinite: str) -> None:
    def spoilt(model: nn.Module, batch: list[torch.Tensor], step: cr.Step) -> torch.Tensor:
        return losses(model, batch) * (float("nan") if step.round == 3 else 1.0)

    def script() -> None:
        model, seen, said = Model(), [], ""
        try:
            with cr.join() as cluster:
                for step in cluster.train(model, data(), spoilt, BATCH, 4, nonfinite=nonfinite):
                    seen.append((step.round, step.loss == step.loss))
        except Diverged as error:
            said = str(error)
        if seen:
            (tmp_path / f"{cluster.rank}").write_text(f"{seen} {said}")

    if place == "alone":
        script()
    else:
        run_forked(script, 3, {"CODEDREDUCE_TREE": "2x1"} if place == "tree" else {})
    found = [one.read_text() for one in sorted(tmp_path.iterdir())]
    assert len(found) == (3 if place == "stripes" else 1)
    for one in found:
        if nonfinite == "pass":
            assert one == "[(1, True), (2, True), (3, False), (4, True)] "
        else:
            assert one.startswith("[(1, True), (2, True)] ")
    if nonfinite == "refuse":
        assert "round 3: the gradient is not finite" in found[0]
