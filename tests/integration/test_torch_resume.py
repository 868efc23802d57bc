"""PyTorch trainings that go on from checkpoints, with the bits of those that never stopped."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import codedreduce.torch as cr
from codedreduce import CodedReduce, Scheme, Striped, Tree
from codedreduce.errors import UsageError

from .test_torch_striped import digest
from .torch_model import BATCH, Model, data, losses, run_forked

RANKS = 3


def script(
    folder: Path | None, out: Path, steps: int, scheme: Scheme | None = None, dies_in: int = 0, **options: object
) -> Callable[[], None]:
    """Trains with an optimizer and a scheduler that remember, and leaves the bits it ends with, one file a rank."""

    def run() -> None:
        model = Model(dropout=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        kept = {"checkpoint": folder, "every": 2} if folder is not None else {}
        rounds = []
        with cr.join(scheme) as cluster:
            for step in cluster.train(
                model, data(), losses, BATCH, steps, seed=3, state=[optimizer, scheduler], **kept, **options
            ):
                optimizer.step()
                scheduler.step()
                rounds.append(step.round)
                if cluster.rank == 0 and step.round == dies_in:
                    os.kill(os.getpid(), signal.SIGKILL)
            (out / f"{cluster.rank}").write_text(f"{digest(*model.parameters())} {rounds}")

    return run


def results(out: Path, ranks: int = RANKS) -> list[tuple[str, str]]:
    found = [(out / f"{rank}").read_text().split(" ", 1) for rank in range(ranks)]
    return [(bits, rounds) for bits, rounds in found]


def run(what: Callable[[], None], ranks: int = RANKS) -> None:
    outcome = run_forked(what, ranks, {})
    assert outcome.codes == dict.fromkeys(range(ranks), 0), outcome.errors


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Path]:
    """What all processes of a run log, in one file."""
    path, log = tmp_path / "said", logging.getLogger("codedreduce")
    handler = logging.FileHandler(path)
    log.addHandler(handler)
    yield path
    log.removeHandler(handler)
    handler.close()


def test_alone(tmp_path: Path, said: Path) -> None:
    script(None, tmp_path, 9)()
    ((expected, _),) = results(tmp_path, 1)
    script(tmp_path / "kept", tmp_path, 5)()
    script(tmp_path / "kept", tmp_path, 9, resume=True)()
    assert results(tmp_path, 1) == [(expected, "[6, 7, 8, 9]")]
    assert said.read_text().count("Resumed from round 5") == 1


def test_alone_it_is_told_of_damage_and_of_what_could_not_be_written(tmp_path: Path, said: Path) -> None:
    script(tmp_path / "kept", tmp_path, 4)()
    (tmp_path / "kept" / "round-00000004.pt").write_bytes(b"")
    (tmp_path / "kept" / "round-00000006.json.writing").mkdir()
    script(tmp_path / "kept", tmp_path, 6, resume=True)()
    assert "round-00000004.json.damaged is damaged: round-00000004.pt has 0 bytes" in said.read_text()
    assert "Resumed from round 2" in said.read_text()
    assert "the checkpoint of round 6 could not be written" in said.read_text()
    assert "Is a directory" in said.read_text()


@pytest.mark.parametrize("scheme", [None, CodedReduce(Tree.regular(fanout=2, depth=1), 1)], ids=["stripes", "tree"])
def test_who_keeps_files_of_his_own_says_where_they_end(scheme: Scheme | None, tmp_path: Path) -> None:
    """As one would by hand: everything with a state_dict is saved, loaded, and the rounds go on counting."""

    def half(steps: int, first: int) -> Callable[[], None]:
        def run() -> None:
            model = Model(dropout=0.2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            if (tmp_path / "mine.pt").exists():
                mine = torch.load(tmp_path / "mine.pt", weights_only=True)
                model.load_state_dict(mine["model"])
                optimizer.load_state_dict(mine["optimizer"])
            rounds = []
            with cr.join(scheme) as cluster:
                options = {"state": [optimizer], "first_round": first}
                for step in cluster.train(model, data(), losses, BATCH, steps, seed=3, **options):
                    optimizer.step()
                    rounds.append(step.round)
                    if cluster.is_root and step.round == 3:
                        mine = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(mine, tmp_path / "mine.pt")
                (tmp_path / f"{cluster.rank}").write_text(f"{digest(*model.parameters())} {rounds}")

        return run

    run(half(6, 1))
    (expected, _) = results(tmp_path)[0]
    run(half(6, 4))
    assert results(tmp_path)[0] == (expected, "[4, 5, 6]")


def test_ranks_begin_with_the_same_round() -> None:
    def begin() -> None:
        with cr.join() as cluster:
            list(cluster.train(Model(), data(), losses, BATCH, 6, first_round=1 + cluster.rank // 2))

    outcome = run_forked(begin, RANKS, {"CODEDREDUCE_ALL_WITHIN": "5"})
    assert outcome.codes[2] == 1
    assert "rounds from 2" in outcome.errors[2]
    assert "rounds from 1" in outcome.errors[2]


@pytest.mark.parametrize("first", [0, 7])
def test_the_first_round_is_one_of_them(first: int) -> None:
    with cr.join() as cluster, pytest.raises(UsageError, match=f"first_round={first}: the rounds are 1 to 6"):
        cluster.train(Model(), data(), losses, BATCH, 6, first_round=first)


def test_in_stripes_all_ranks_go_on(tmp_path: Path, said: Path) -> None:
    """Only rank 0 reads the checkpoint: the others begin as the script made them, and take its state."""
    run(script(None, tmp_path, 9))
    (expected, _), *_ = results(tmp_path)
    run(script(tmp_path / "kept", tmp_path, 5))
    run(script(tmp_path / "kept", tmp_path, 9, resume=True))
    assert results(tmp_path) == [(expected, "[6, 7, 8, 9]")] * RANKS
    assert said.read_text().count("Resumed from round 5") == 1, "once, and not once a rank"


def test_in_stripes_with_another_number_of_ranks_and_as_many_units(tmp_path: Path) -> None:
    run(script(None, tmp_path, 9, Striped(4)), 4)
    (expected, _), *_ = results(tmp_path, 4)
    run(script(tmp_path / "kept", tmp_path, 5, Striped(4)), 4)
    run(script(tmp_path / "kept", tmp_path, 9, Striped(3, units=4), resume=True), 3)
    assert results(tmp_path, 3) == [(expected, "[6, 7, 8, 9]")] * 3


def test_in_stripes_when_all_is_done_all_ranks_have_it(tmp_path: Path) -> None:
    run(script(tmp_path / "kept", tmp_path, 5))
    (expected, _), *_ = results(tmp_path)
    run(script(tmp_path / "kept", tmp_path, 5, resume=True))
    assert results(tmp_path) == [(expected, "[]")] * RANKS


def test_in_stripes_after_rank_0_was_killed(tmp_path: Path) -> None:
    run(script(None, tmp_path, 9))
    (expected, _), *_ = results(tmp_path)
    outcome = run_forked(script(tmp_path / "kept", tmp_path, 9, dies_in=7), RANKS, {"CODEDREDUCE_ORPHANED_AFTER": "30"})
    assert outcome.codes[0] == -signal.SIGKILL
    assert [outcome.codes[rank] for rank in range(1, RANKS)] == [0] * (RANKS - 1), "another leads, and the run ends"
    assert {bits for bits, _ in results(tmp_path)[1:]} == {expected}
    assert (tmp_path / "kept" / "round-00000009.pt").exists(), "and writes where rank 0 wrote"
    run(script(tmp_path / "kept", tmp_path, 9, resume=True))
    assert results(tmp_path) == [(expected, "[]")] * RANKS


def test_over_a_tree(tmp_path: Path) -> None:
    tree = CodedReduce(Tree.regular(fanout=2, depth=1), 1)

    def root_only(steps: int, **options: object) -> str:
        run(script(options.pop("folder", None), tmp_path, steps, tree, **options))  # type: ignore[arg-type]
        return results(tmp_path, 1)[0]

    expected, _ = root_only(9)
    root_only(5, folder=tmp_path / "kept")
    assert root_only(9, folder=tmp_path / "kept", resume=True) == (expected, "[6, 7, 8, 9]")


def test_a_checkpoint_is_what_torch_reads(tmp_path: Path) -> None:
    script(tmp_path / "kept", tmp_path, 4)()
    found = torch.load(tmp_path / "kept" / "round-00000004.pt", weights_only=True)
    model = Model(dropout=0.2)
    model.load_state_dict(found["model"])
    assert digest(*model.parameters()) == results(tmp_path, 1)[0][0]


def test_another_seed_or_model_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "kept", tmp_path, 2)()
    with cr.join() as cluster, pytest.raises(UsageError, match="seed '3', now '4'"):
        next(iter(cluster.train(
            Model(dropout=0.2), data(), losses, BATCH, 4, seed=4, checkpoint=tmp_path / "kept", resume=True
        )))  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(10, 4))
    with cr.join() as cluster, pytest.raises(UsageError, match="model 'Model"):
        next(iter(cluster.train(
            model, data(), losses_of_rows, BATCH, 4, seed=3, checkpoint=tmp_path / "kept", resume=True
        )))  # fmt: skip


def losses_of_rows(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return model(batch[0]).square().sum(1)
