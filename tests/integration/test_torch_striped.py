"""PyTorch in stripes: every rank yields and steps, as one process would, whatever the loop body does."""

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import codedreduce.torch as cr
from codedreduce import MasterWorker, Striped
from codedreduce.errors import UsageError

from .torch_model import BATCH, Model, Outcome, data, losses, run_forked

RANKS = 4


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.blake2b(b"".join(one.detach().numpy().tobytes() for one in tensors), digest_size=8).hexdigest()


def run(script: Callable[[], None], ranks: int = RANKS, **variables) -> Outcome:
    return run_forked(script, ranks, {f"CODEDREDUCE_{key.upper()}": str(variables[key]) for key in variables})


def each_rank(folder: Path, ranks: int = RANKS) -> list[str]:
    return [(folder / f"{rank}").read_text() for rank in range(ranks)]


def trained(folder: Path, steps: int = 8, body: Callable | None = None, **options) -> Callable[[], None]:
    """A script that trains on every rank, and leaves the bits it ends with."""

    def script() -> None:
        model = Model(dropout=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        with cr.join() as cluster:
            for step in cluster.train(model, data(), losses, BATCH, steps, seed=3, state=[optimizer], **options):
                optimizer.step()
                if body is not None:
                    body(cluster, model, step)
            (folder / f"{cluster.rank}").write_text(f"{digest(*model.parameters())} {step.round} {step.loss!r}")

    return script


def bits_of(folder: Path, ranks: int = RANKS, *, without: tuple[int, ...] = ()) -> str:
    """What all ranks ended with, which must be the same."""
    found = {(folder / f"{rank}").read_text() for rank in range(ranks) if rank not in without}
    assert len(found) == 1, found
    return found.pop()


def test_every_step_is_that_of_one_process(tmp_path: Path) -> None:
    """The gradient of every round, on every rank, against plain PyTorch over the same batch."""

    def script() -> None:
        model, plain = Model(torch.float64), Model(torch.float64)
        optimizer, other = (torch.optim.AdamW(one.parameters(), lr=0.05) for one in (model, plain))
        dataset = data(torch.float64)
        seen = 0
        with cr.join() as cluster:
            assert cluster.size == RANKS
            for step in cluster.train(model, dataset, losses, BATCH, 8, seed=3):
                x, y = dataset[cr.batch_indices(len(dataset), BATCH, step.round, seed=3)]
                other.zero_grad()
                loss = F.cross_entropy(plain(x), y)
                loss.backward()
                assert abs(step.loss - loss.item()) <= 1e-12 * abs(loss.item())
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    if theirs.grad is None:
                        assert mine.grad is None
                    else:
                        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-14)
                optimizer.step()
                other.step()
                seen += 1
        assert seen == 8

    outcome = run(script)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors


def test_the_same_bits_whoever_straggles(tmp_path: Path) -> None:
    found = []
    for inject in ("", "stalls:0.2:0.2s", "exponential"):
        outcome = run(trained(tmp_path), **({"inject": inject} if inject else {}))
        assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
        found.append(bits_of(tmp_path))
    assert len(set(found)) == 1


def test_the_same_bits_when_one_is_killed(tmp_path: Path) -> None:
    outcome = run(trained(tmp_path))
    calm = bits_of(tmp_path)

    def die(cluster: cr.Cluster, model: nn.Module, step: cr.Step) -> None:
        if cluster.rank == 2 and step.round == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    outcome = run(trained(tmp_path, body=die))
    assert outcome.codes == {0: 0, 1: 0, 2: -signal.SIGKILL, 3: 0}, outcome.errors
    assert bits_of(tmp_path, without=(2,)) == calm


def test_a_body_that_is_slow_on_another_rank_holds_nobody_up(tmp_path: Path) -> None:
    """A rank whose body takes its time falls behind, and steps through the sums it missed."""

    def slow(cluster: cr.Cluster, model: nn.Module, step: cr.Step) -> None:
        time.sleep(0.5 if cluster.rank == 3 and step.round == 2 else 0.2)

    run(trained(tmp_path))
    calm = bits_of(tmp_path)
    outcome = run(trained(tmp_path, body=slow))
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert bits_of(tmp_path) == calm


class Script:
    """A script whose body changes what a root could not tell its workers of; alone it is one plain process."""

    def __init__(self, folder: Path, steps: int = 9) -> None:
        self.folder = folder
        self.steps = steps

    def __call__(self) -> None:
        model = Model(torch.float64)
        teacher = Model(torch.float64)
        model.register_buffer("scale", torch.ones((), dtype=torch.float64))
        coefficient = [1.0]

        def annealed(model: nn.Module, batch) -> torch.Tensor:
            x, y = batch
            with torch.no_grad():
                target = teacher(x).softmax(1)
            own = F.cross_entropy(model(x) * model.scale, y, reduction="none")
            return own + coefficient[0] * F.cross_entropy(model(x), target, reduction="none")

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        noise = []
        with cr.join(scheme=self.scheme()) as cluster:
            for step in cluster.train(
                model, data(torch.float64), annealed, BATCH, self.steps, seed=3, state=[optimizer]
            ):
                optimizer.step()
                coefficient[0] *= 0.9
                model.scale *= 1.01
                with torch.no_grad():
                    for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
                        mine.lerp_(theirs, 0.1)
                noise.append(float(torch.rand(())))
                if step.round == 4:
                    model.frozen.requires_grad_(True)
            rank = cluster.rank
        torch.save(
            {"parameters": list(model.parameters()), "teacher": list(teacher.parameters()), "noise": noise},
            self.folder / f"{rank}.pt",
        )

    def scheme(self) -> MasterWorker | None:
        """Alone this process computes everything in one go."""
        return None if "RANK" in os.environ else MasterWorker(1)

    def result(self, rank: int) -> dict:
        return torch.load(self.folder / f"{rank}.pt")


def test_what_a_body_changes_is_what_one_process_has(tmp_path: Path) -> None:
    """Annealed closures, buffers, a teacher, a layer that is unfrozen: on all ranks what one process gives."""
    script = Script(tmp_path)
    script()
    alone = script.result(0)
    outcome = run(script)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    first = script.result(0)
    for rank in range(RANKS):
        found = script.result(rank)
        assert found["noise"] == alone["noise"]
        for key in ("parameters", "teacher"):
            for mine, theirs, ones in zip(found[key], first[key], alone[key], strict=True):
                assert torch.equal(mine, theirs), "ranks differ"
                torch.testing.assert_close(mine, ones, rtol=1e-9, atol=1e-12)


def unfreezing(folder: Path, *, behind: bool) -> Callable[[], None]:
    """A layer is unfrozen after round 100; one rank may then be so far behind that it never comes to that round."""
    is_through = folder / "through with 100 rounds"

    def script() -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        seen = []
        with cr.join() as cluster:
            for step in cluster.train(model, data(), losses, BATCH, 110, seed=3, state=[optimizer]):
                optimizer.step()
                seen.append(step.round)
                if step.round == 100:
                    model.frozen.requires_grad_(True)
                if behind and cluster.rank == 3 and step.round == 10:
                    while not is_through.exists():
                        time.sleep(0.01)
                if cluster.rank == 0 and step.round == 100:
                    is_through.touch()
            missed = sorted(set(range(1, 111)) - set(seen))
            (folder / f"{cluster.rank}").write_text(f"{digest(*model.parameters())} {step.round} {step.loss!r}")
            (folder / f"missed by {cluster.rank}").write_text(json.dumps(missed))

    return script


def test_one_that_missed_that_a_layer_was_unfrozen_goes_on(tmp_path: Path) -> None:
    outcome = run(unfreezing(tmp_path, behind=False))
    calm = bits_of(tmp_path)
    (tmp_path / "through with 100 rounds").unlink()
    outcome = run(unfreezing(tmp_path, behind=True))
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    missed = json.loads((tmp_path / "missed by 3").read_text())
    assert missed == list(range(missed[0], 101)), "it took the state after round 100"
    assert missed[0] in (11, 12), "the sum of round 11 may have come before it could be said to be behind"
    assert bits_of(tmp_path) == calm


def test_ranks_begin_with_the_model_of_rank_0(tmp_path: Path) -> None:
    def script() -> None:
        model = Model(dropout=0.2)
        rank = int(os.environ["RANK"])
        if rank:
            with torch.no_grad():
                model.first.weight += rank
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        with cr.join() as cluster:
            for _ in cluster.train(model, data(), losses, BATCH, 4, seed=3, state=[optimizer]):
                optimizer.step()
        (tmp_path / f"{rank}").write_text(digest(*model.parameters()))

    outcome = run(script)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    odd = bits_of(tmp_path)
    run(trained(tmp_path, 4))
    assert odd == bits_of(tmp_path).split()[0]


@pytest.mark.parametrize(("drifting", "skipping"), [(2, "a step"), (2, "another rate"), (0, "a step")])
def test_a_rank_that_drifts_is_named_and_takes_the_state(tmp_path: Path, drifting: int, skipping: str) -> None:
    def script() -> None:
        model = Model()
        rank = int(os.environ["RANK"])
        odd = rank == drifting
        lr = 0.2 if odd and skipping == "another rate" else 0.05
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        notes = []
        with cr.join(on_note=lambda note: notes.append((note.kind, note.nodes))) as cluster:
            for step in cluster.train(model, data(), losses, BATCH, 6, seed=3, state=[optimizer]):
                if odd and skipping == "a step" and step.round == 1:
                    continue
                optimizer.step()
        (tmp_path / f"{rank}").write_text(digest(*model.parameters()))
        if cluster.is_root:
            assert notes == [("drift", (drifting,))]

    outcome = run(script)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    bits_of(tmp_path)


@pytest.mark.parametrize("breaks", [(0,), (0, 1, 2, 3)])
def test_a_break_on_rank_0_ends_it_on_all(tmp_path: Path, breaks: tuple[int, ...]) -> None:
    def script() -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        with cr.join() as cluster:
            for step in cluster.train(model, data(), losses, BATCH, 50, seed=3):
                optimizer.step()
                if step.round == 5 and cluster.rank in breaks:
                    break
            (tmp_path / f"{cluster.rank}").write_text(f"{step.round} {digest(*model.parameters())}")

    outcome = run(script)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert bits_of(tmp_path).startswith("5 ")


def test_a_break_elsewhere_is_an_error(tmp_path: Path) -> None:
    def script() -> None:
        model = Model()
        with cr.join() as cluster:
            for step in cluster.train(model, data(), losses, BATCH, 12, seed=3):
                if step.round == 3 and cluster.rank == 2:
                    break
                time.sleep(0.01)
            (tmp_path / f"{cluster.rank}").write_text(str(step.round))

    outcome = run(script)
    assert outcome.codes == {0: 0, 1: 0, 2: 1, 3: 0}, outcome.errors
    what = "rank 0 goes on|the run ended after round 12"  # the latter if it was that late
    assert re.search(f"UsageError: rank 2 left its loop after round 3, and ({what})", outcome.errors[2])
    assert each_rank(tmp_path) == ["12", "12", "3", "12"]


def test_two_trainings_one_after_the_other(tmp_path: Path) -> None:
    def script() -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        with cr.join() as cluster:
            for steps in (3, 4):
                for step in cluster.train(model, data(), losses, BATCH, steps, seed=3):
                    optimizer.step()
                    reached = step.round
                assert reached == steps
        (tmp_path / f"{cluster.rank}").write_text(digest(*model.parameters()))

    outcome = run(script)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    bits_of(tmp_path)


def test_bfloat16_travels_the_same_whoever_straggles(tmp_path: Path) -> None:
    found = []
    for inject in ("", "stalls:0.3:0.1s"):
        outcome = run(trained(tmp_path, wire="bfloat16"), **({"inject": inject} if inject else {}))
        assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
        found.append(bits_of(tmp_path))
    assert found[0] == found[1]


def test_one_rank_alone(tmp_path: Path) -> None:
    outcome = run(trained(tmp_path), ranks=1)
    assert outcome.codes == {0: 0}, outcome.errors


def test_state_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="list in state= has no state_dict"), cr.join(environment={}) as cluster:
        next(iter(cluster.train(Model(), data(), losses, BATCH, 1, state=[[]])))


def test_a_scheme_for_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    def script() -> None:
        with cr.join(Striped(5)) as cluster:
            next(iter(cluster.train(Model(), data(), losses, BATCH, 1)))

    outcome = run(script, ranks=2)
    assert "has 5 ranks, and the launcher started 2 processes" in outcome.errors[0]


def test_ranks_go_on_without_rank_0(tmp_path: Path) -> None:
    def die(cluster: cr.Cluster, model: nn.Module, step: cr.Step) -> None:
        if cluster.rank == 0 and step.round == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    outcome = run(trained(tmp_path, steps=20, body=die))
    assert outcome.codes == {0: -signal.SIGKILL, 1: 0, 2: 0, 3: 0}, outcome.errors
    bits = bits_of(tmp_path, without=(0,))
    assert run(trained(tmp_path, steps=20)).codes == dict.fromkeys(range(RANKS), 0)
    assert bits == bits_of(tmp_path)


@pytest.mark.parametrize("restarts", ["1", "0"])
def test_an_error_in_the_loop_body_of_rank_0(tmp_path: Path, restarts: str) -> None:
    """The others go on, as after a kill, whether or not it will be started again."""

    def err(cluster: cr.Cluster, model: nn.Module, step: cr.Step) -> None:
        if cluster.rank == 0 and step.round == 3:
            raise RuntimeError("my own bug")

    outcome = run(trained(tmp_path, steps=20, body=err), restarts=restarts)
    assert outcome.codes == {0: 1, 1: 0, 2: 0, 3: 0}, outcome.errors
    assert outcome.errors[0].startswith("RuntimeError: my own bug")
    bits = bits_of(tmp_path, without=(0,))
    assert run(trained(tmp_path, steps=20)).codes == dict.fromkeys(range(RANKS), 0)
    assert bits == bits_of(tmp_path)


def test_an_error_in_the_loop_body_that_the_script_catches(tmp_path: Path) -> None:
    """It ends the training with that round, on all ranks."""

    def script() -> None:
        model = Model()
        with cr.join() as cluster:
            try:
                for step in cluster.train(model, data(), losses, BATCH, 20, seed=3):
                    if step.round == 3:
                        raise KeyError("caught")
            except KeyError:
                pass
            for step in cluster.train(model, data(), losses, BATCH, 2, seed=3):
                (tmp_path / f"{cluster.rank}").write_text(f"{step.round}")

    outcome = run(script, restarts="1")
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert bits_of(tmp_path) == "2"
