"""Machines that compute other bits, and nothing wrong: said at the start, and not taken for corruption."""

import os
from pathlib import Path

import pytest
import torch

import codedreduce.torch as cr
import codedreduce.torch.gradient.torch_arithmetic as of_torch
from codedreduce.process.arithmetic import Arithmetic, of_numpy

from .test_torch_striped import bits_of, digest, run
from .torch_model import BATCH, Model, data, losses, run_ranks


def trains(folder: Path, other: int = 2):
    """A script on four processes, of which one has another library, or a device of another kind."""

    def script() -> None:
        if int(os.environ["RANK"]) == other:
            of_torch._of_torch = lambda device: Arithmetic("0ther0ne", "PyTorch 2.0 for another CPU")
        model, notes = Model(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with cr.join(on_note=lambda note: notes.append(f"{note.kind}: {note.reason}")) as cluster:
            for _ in cluster.train(model, data(), losses, BATCH, 4, state=[optimizer]):
                optimizer.step()
        (folder / f"{cluster.rank}").write_text(digest(*model.parameters()))
        (folder / f"notes of {cluster.rank}").write_text("\n".join(notes))

    return script


def test_it_is_said_once_with_what_follows(tmp_path: Path) -> None:
    outcome = run(trains(tmp_path))
    assert set(outcome.codes.values()) == {0}, outcome
    bits_of(tmp_path)
    (said,) = (tmp_path / "notes of 0").read_text().split("\n")
    assert said.startswith("arithmetic: the arithmetic of rank 2 differs from that of rank 0: ")
    assert "PyTorch 2.0 for another CPU" in said
    assert f"PyTorch {torch.__version__}" in said
    assert "results that are bit-identical with any stragglers need hosts of one kind" in said


def test_of_a_tree_too(tmp_path: Path) -> None:
    outcome = run_ranks(trains(tmp_path), workers=2, tree="2x1")
    assert set(outcome.codes.values()) == {0}, outcome
    assert "the arithmetic of rank 2 differs from that of rank 0" in (tmp_path / "notes of 0").read_text()


def test_machines_of_one_kind_say_nothing(tmp_path: Path) -> None:
    outcome = run(trains(tmp_path, other=-1))
    assert set(outcome.codes.values()) == {0}, outcome
    assert (tmp_path / "notes of 0").read_text() == ""


def test_audits_need_machines_of_one_kind(tmp_path: Path) -> None:
    outcome = run(trains(tmp_path), audit=0.1, all_within=8)
    assert "arithmetic" in outcome.errors[2]
    assert "PyTorch 2.0 for another CPU" in outcome.errors[2]


def test_the_same_machine_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = of_torch.arithmetic(None)
    of_numpy.cache_clear()
    of_torch._of_torch.cache_clear()
    assert of_torch.arithmetic(None) == first
    assert first.digest != of_numpy().digest


def test_random_numbers_are_as_they_were() -> None:
    of_torch._of_torch.cache_clear()
    torch.manual_seed(3)
    there = torch.get_rng_state()
    of_torch.arithmetic(None)
    assert torch.equal(torch.get_rng_state(), there)
