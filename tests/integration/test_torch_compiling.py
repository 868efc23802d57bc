"""Models that torch compiles: they are compiled once a machine, used in every round, and resumed without it.

A backend of this file's own stands for torch's compiler, which needs one for C++.
"""

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import codedreduce.torch as cr
from codedreduce import Striped
from codedreduce.torch.rounds.model_replica import TorchReplica

from .test_torch_striped import bits_of, digest
from .torch_model import BATCH, Model, data, losses, run_forked

RANKS = 3


def backend(folder: Path) -> Callable:
    """Writes down by whom a graph that was compiled is called."""

    def compiled(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        def called(*given: object) -> object:
            with (folder / "called").open("a") as file:
                file.write(f"{os.getpid()}\n")
            return graph.forward(*given)

        return called

    return compiled


@pytest.mark.parametrize("what", ["model", "losses", "submodule"])
def test_what_is_compiled_is_used_in_every_round(tmp_path: Path, what: str) -> None:
    def script() -> None:
        torch._dynamo.reset()
        model, computed = Model(torch.float64), losses
        if what == "model":
            model = torch.compile(model, backend=backend(tmp_path))
        elif what == "losses":
            computed = torch.compile(losses, backend=backend(tmp_path))
        else:
            model.first = torch.compile(model.first, backend=backend(tmp_path))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with cr.join(Striped(RANKS, blocks=2)) as cluster:
            for _ in cluster.train(model, data(torch.float64), computed, BATCH, 5, seed=3, state=[optimizer]):
                optimizer.step()
            (tmp_path / f"{cluster.rank}").write_text(digest(*model.parameters()))

    script()
    alone = (tmp_path / "0").read_text()
    assert len((tmp_path / "called").read_text().split()) == 5 * 2 * RANKS, "a call for every block of every round"
    (tmp_path / "called").unlink()
    outcome = run_forked(script, RANKS)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert bits_of(tmp_path, RANKS) == alone
    calls = (tmp_path / "called").read_text().split()
    assert len(set(calls)) == RANKS
    assert len(calls) >= 5 * 2 * RANKS


def test_the_first_compiles_while_the_others_wait(tmp_path: Path) -> None:
    """As long as torch's cache is empty one process is in there, and the others after it."""

    def slow(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"begin {os.getpid()}\n".encode())
        if not (tmp_path / "cache").exists():
            torch.linalg.svd(torch.randn(300, 300))
            (tmp_path / "cache").touch()
            os.write(log, f"filled {os.getpid()}\n".encode())
        return graph.forward

    def script() -> None:
        torch._dynamo.reset()
        model = torch.compile(Model(torch.float64), backend=slow)
        with cr.join(Striped(RANKS)) as cluster:
            for _ in cluster.train(model, data(torch.float64), losses, BATCH, 2):
                pass

    outcome = run_forked(script, RANKS)
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [what for what, _ in lines].count("filled") == 1
    assert lines[:2] == [["begin", lines[0][1]], ["filled", lines[0][1]]]
    assert len({who for _, who in lines}) == RANKS


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_of_a_compiled_model_is_resumed_by_a_plain_one(tmp_path: Path, first: bool) -> None:
    torch._dynamo.reset()
    ended = []
    for steps, is_compiled in ((3, first), (6, not first), (6, False)):
        model = Model(torch.float64)
        trained = torch.compile(model, backend="eager") if is_compiled else model
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        folder = tmp_path / ("whole" if len(ended) == 2 else "parts")
        with cr.join() as cluster:
            for _ in cluster.train(
                trained, data(torch.float64), losses, BATCH, steps, state=[optimizer], checkpoint=folder, every=1,
                resume=True,
            ):  # fmt: skip
                optimizer.step()
        ended.append(copy.deepcopy(model.state_dict()))
    for name in ended[0]:
        torch.testing.assert_close(ended[1][name], ended[2][name], rtol=1e-12, atol=1e-14)
    (file, *_) = sorted((tmp_path / "parts").glob("*.pt"))
    assert set(torch.load(file, weights_only=True)["model"]) == set(ended[0])


def test_a_compiled_part_is_taken_from_a_plain_one() -> None:
    plain, other = Model(), Model()
    with torch.no_grad():
        plain.first.weight += 1
    other.first = torch.compile(other.first, backend="eager")
    TorchReplica(other).be(TorchReplica(plain).now())
    assert torch.equal(other.first.weight, plain.first.weight)
    TorchReplica(plain).be(TorchReplica(other).now())
