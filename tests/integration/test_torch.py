"""PyTorch over real processes: the gradient against plain PyTorch, the same bits whoever straggles."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import codedreduce.torch as cr
from codedreduce import GradientCoding, MasterWorker
from codedreduce.torch.gradient.unit_gradient import UnitGradient
from codedreduce.torch.model.layout import Layout
from codedreduce.torch.model.loss_output import At
from codedreduce.torch.training.training import Training
from tests.waiting import wait_until

from .torch_model import BATCH, Model, data, losses, run_ranks

STEPS = 6


def save(path: Path, model: nn.Module, steps: list) -> None:
    parameters = {name: one.detach().double().numpy() for name, one in model.named_parameters()}
    np.savez(path, losses=[step.loss for step in steps], late=[len(step.late) for step in steps], **parameters)


def train(folder: Path, *, steps: int = STEPS, dtype=torch.float32, dropout: float = 0.0, lossy=losses, **options):
    """The script of most tests: a function for every rank, and where the root leaves what came of it."""
    target = folder / "out.npz"

    def script() -> None:
        model = Model(dtype, dropout)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        done = []
        with cr.join() as cluster:
            for step in cluster.train(model, data(dtype), lossy, BATCH, steps, seed=3, **options):
                optimizer.step()
                done.append(step)
        if cluster.is_root:
            save(target, model, done)

    return script, target


def run(folder: Path, *, settings: dict | None = None, killed: int = 0, **options) -> dict[str, np.ndarray]:
    script, target = train(folder, **options)
    outcome = run_ranks(script, **(settings or {}))
    expected = dict.fromkeys(range(7), 0) | ({killed: -signal.SIGKILL} if killed else {})
    assert outcome.codes == expected, outcome.errors
    found = dict(np.load(target))
    target.unlink()
    return found


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(one[key].tobytes() == other[key].tobytes() for key in one if key != "late")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_every_step_is_that_of_one_process(tmp_path: Path, dtype: torch.dtype, tolerance: float) -> None:
    """The gradient of every round against plain PyTorch over the same batch: no code in common but the batches."""

    def script() -> None:
        model, plain = Model(dtype), Model(dtype)
        optimizer, other = (torch.optim.AdamW(one.parameters(), lr=0.05) for one in (model, plain))
        dataset = data(dtype)
        with cr.join() as cluster:
            for step in cluster.train(model, dataset, losses, BATCH, 8, seed=3):
                x, y = dataset[cr.batch_indices(len(dataset), BATCH, step.round, seed=3)]
                other.zero_grad()
                loss = F.cross_entropy(plain(x), y)
                loss.backward()
                assert abs(step.loss - loss.item()) <= tolerance * abs(loss.item())
                for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
                    if theirs.grad is None:
                        assert mine.grad is None, f"{name} has a gradient"
                        continue
                    error = torch.linalg.norm(mine.grad - theirs.grad) / torch.linalg.norm(theirs.grad)
                    assert error <= tolerance, f"round {step.round}, {name}: {error:.2e}"
                optimizer.step()
                other.step()
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    error = torch.linalg.norm(mine - theirs) / torch.linalg.norm(theirs)
                    assert error <= 20 * tolerance, f"round {step.round}: {error:.2e}"
            assert step.round == 8 or not cluster.is_root

    def checked() -> None:
        if os.environ["RANK"] != "0":
            model = Model(dtype)
            with cr.join() as cluster:
                assert list(cluster.train(model, data(dtype), losses, BATCH, 8, seed=3)) == []
            return
        script()

    outcome = run_ranks(checked)
    assert outcome.codes == dict.fromkeys(range(7), 0), outcome.errors


def killed_in(rank: int, round_: int):
    """Losses that end their process when a rank is asked for them in a round, or later if it is late in that.

    Not in the last one, which is rehearsed.
    """

    def lossy(model: nn.Module, batch, step: At) -> torch.Tensor:
        if os.environ["RANK"] == str(rank) and round_ <= step.round < STEPS:
            os.kill(os.getpid(), signal.SIGKILL)
        return losses(model, batch)

    return lossy


def test_the_same_bits_whoever_stalls_or_is_killed(tmp_path: Path) -> None:
    """With dropout: the random state goes with the samples, not with the worker."""
    calm = run(tmp_path, dropout=0.3)
    for inject in ("stalls:0.3:0.15s", "one:0.2s"):
        stalling = run(tmp_path, dropout=0.3, settings={"inject": inject})
        assert stalling["late"].sum() > 0, "nobody was late: the test shows nothing"
        assert same_bits(calm, stalling)
    for rank in (1, 4, 6):
        assert same_bits(calm, run(tmp_path, dropout=0.3, killed=rank, lossy=killed_in(rank, 2)))
    other_seed = run(tmp_path, dropout=0.31)
    assert not same_bits(calm, other_seed)


def test_bfloat16_on_the_wire_gives_the_same_bits_too(tmp_path: Path) -> None:
    exact = run(tmp_path)
    calm = run(tmp_path, wire="bfloat16")
    stalling = run(tmp_path, wire="bfloat16", settings={"inject": "stalls:0.3:0.15s"})
    assert stalling["late"].sum() > 0
    assert same_bits(calm, stalling)
    assert same_bits(calm, run(tmp_path, wire="bfloat16", killed=2, lossy=killed_in(2, 2)))
    assert not same_bits(calm, exact)
    np.testing.assert_allclose(calm["losses"], exact["losses"], rtol=0.02)


def test_alone_and_with_other_schemes(tmp_path: Path, monkeypatch) -> None:
    """Without a launcher a process computes everything itself: with the plan of a run, to the run's bits."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    shared = run(tmp_path, settings={"scheme": "master-worker"})
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    steps = []
    with cr.join(MasterWorker(6)) as cluster:
        assert (cluster.rank, cluster.size) == (0, 1)
        for step in cluster.train(model, data(), losses, BATCH, 6, seed=3):
            optimizer.step()
            steps.append(step)
    save(tmp_path / "alone.npz", model, steps)
    assert same_bits(shared, dict(np.load(tmp_path / "alone.npz")))
    eager = run(tmp_path, settings={"order": "eager"})
    np.testing.assert_allclose(eager["losses"], shared["losses"], rtol=1e-5)


def test_micro_batches_collating_and_autocast(tmp_path: Path) -> None:
    whole = run(tmp_path)
    small = run(tmp_path, micro_batch=2)
    np.testing.assert_allclose(small["losses"], whole["losses"], rtol=1e-5)

    def collate(samples: list) -> dict[str, torch.Tensor]:
        return {"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])}

    def from_dict(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return losses(model, (batch["x"], batch["y"]))

    options = {"lossy": from_dict, "collate_fn": collate, "device": "cpu", "micro_batch": 4}
    calm = run(tmp_path, **options)
    np.testing.assert_allclose(calm["losses"], whole["losses"], rtol=0.05)
    stalling = run(tmp_path, settings={"inject": "stalls:0.3:0.15s"}, **options)
    assert stalling["late"].sum() > 0
    assert same_bits(calm, stalling)


def test_parameters_of_several_types(tmp_path: Path) -> None:
    def script() -> None:
        torch.manual_seed(0)
        model = nn.ModuleList(nn.Linear(10, 4, dtype=dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16))

        def mixed(model: nn.Module, batch) -> torch.Tensor:
            x, y = batch
            return F.cross_entropy(sum(one(x.to(one.weight.dtype)).double() for one in model), y, reduction="none")

        with cr.join() as cluster:
            for step in cluster.train(model, data(), mixed, BATCH, 3):
                x, y = data()[cr.batch_indices(200, BATCH, step.round)]
                grads = [one.grad.clone() for one in model.parameters()]
                assert [one.dtype for one in grads] == [one.dtype for one in model.parameters()]
                model.zero_grad()
                mixed(model, (x, y)).mean().backward()
                for mine, one in zip(grads, model.parameters(), strict=True):
                    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[one.dtype]
                    assert torch.linalg.norm((mine - one.grad).double()) <= tolerance * torch.linalg.norm(
                        one.grad.double()
                    )

    outcome = run_ranks(script, workers=2, tree="2x1")
    assert outcome.codes == {0: 0, 1: 0, 2: 0}, outcome.errors


def test_break_ends_the_run_everywhere_and_another_can_follow(tmp_path: Path) -> None:
    def script() -> None:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        with cr.join() as cluster:
            for _ in range(2):  # a second training of the same script
                for step in cluster.train(model, data(), losses, BATCH, 1000):
                    optimizer.step()
                    seen.append(step.round)
                    if step.round == 3:
                        break
        assert seen == ([1, 2, 3] * 2 if cluster.is_root else [])

    outcome = run_ranks(script)
    assert outcome.codes == dict.fromkeys(range(7), 0), outcome.errors


def test_an_error_in_the_loop_body_ends_the_run_everywhere(tmp_path: Path) -> None:
    def script() -> None:
        with cr.join() as cluster:
            for step in cluster.train(Model(), data(), losses, BATCH, 1000):
                if step.round == 2:
                    raise RuntimeError("early stopping went wrong")

    outcome = run_ranks(script)
    assert outcome.codes == {0: 1, **dict.fromkeys(range(1, 7), 0)}, outcome.errors
    assert "early stopping went wrong" in outcome.errors[0]


def test_a_straggler_stops_at_the_next_micro_batch() -> None:
    """A unit of six micro-batches, told to stop after the second: it computes two and says that it has not finished."""
    evaluated = 0

    def counted(model: nn.Module, batch) -> torch.Tensor:
        nonlocal evaluated
        evaluated += 1
        return losses(model, batch)

    model = Model()
    layout = Layout(model)
    task = Training(model=model, dataset=data(), losses=counted, batch_size=BATCH, steps=1, micro_batch=1)
    gradient = UnitGradient(task, layout)
    evaluated = 0  # what was rehearsed does not count
    (unit,) = MasterWorker(6).plan(samples=BATCH).units(2)
    (piece,) = unit.pieces
    vector, out = np.zeros((2, layout.length), dtype=np.float32)
    layout.read_model(vector)
    assert gradient(piece, vector, 1, out, 2) is True
    assert evaluated == BATCH // 6
    evaluated = 0
    gradient.should_stop = lambda: evaluated == 2
    assert gradient(piece, vector, 1, out, 2) is False
    assert evaluated == 2


def test_a_worker_in_the_middle_of_its_unit_takes_the_next_model(tmp_path: Path) -> None:
    """Worker 6 is held in the first micro-batch of a round until that and two more are over: it computes no second."""
    seen, over = tmp_path / "seen", tmp_path / "over"
    seen.write_text("")

    def held(model: nn.Module, batch, step: At) -> torch.Tensor:
        if os.environ["RANK"] == "6" and 2 <= step.round < 12:  # the first and the last are rehearsed
            with seen.open("a") as file:
                file.write(f"{step.round}\n")
            assert wait_until(over.exists)
        return losses(model, batch)

    def script() -> None:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with cr.join() as cluster:
            for step in cluster.train(model, data(), held, BATCH, 12, micro_batch=1):
                optimizer.step()
                begun = seen.read_text().split()
                if begun and step.round >= int(begun[0]) + 2:
                    over.touch()

    outcome = run_ranks(script)
    assert outcome.codes == dict.fromkeys(range(7), 0), outcome.errors
    begun = seen.read_text().split()
    assert begun.count(begun[0]) == 1, "it went on with a model that was over"


def test_cyclic_codes_with_dropout(tmp_path: Path) -> None:
    """Weights of both signs, overlapping ranges: still the gradient, with the same dropout whoever computes."""

    def script() -> None:
        model = Model(torch.float64, dropout=0.3)
        scheme = GradientCoding(6, 2, code="cyclic")
        with cr.join(scheme) as cluster:
            for step in cluster.train(model, data(torch.float64), losses, BATCH, 6, seed=3):
                gradients = [one.grad for one in model.parameters() if one.requires_grad]
                np.savez(
                    tmp_path / f"{os.environ['CASE']}-{step.round}.npz", *[one for one in gradients if one is not None]
                )

    for case, inject in (("calm", None), ("stalls", "stalls:0.2:0.1s")):
        settings = {"inject": inject} if inject else {}
        os.environ["CASE"] = case
        outcome = run_ranks(script, tree="6x1", **settings)
        assert outcome.codes == dict.fromkeys(range(7), 0), outcome.errors
    for round_ in range(1, 7):
        one, other = (np.load(tmp_path / f"{case}-{round_}.npz") for case in ("calm", "stalls"))
        assert len(one.files) == len(other.files) == 4
        for name in one.files:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-9, atol=1e-12)
