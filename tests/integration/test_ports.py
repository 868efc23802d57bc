"""Public training scripts, ported: every step is the plain script's, and the same bits whoever stalls."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lightning.pytorch  # noqa: F401  (loaded here, once for all processes)
import pytest
import torch
from transformers import BertForSequenceClassification, Trainer  # noqa: F401

from tests.changed_lines import PORTS, ports
from tests.command import codedreduce

from .torch_model import run_forked

RANKS = 3
STALLS = ("stalls:0.15:0.1s", "stalls:0.3:0.05s")


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Port(NamedTuple):
    """What both scripts are told to be comparable, and what is told to the port alone, to draw random numbers."""

    name: str
    short: tuple[str, ...]
    still: tuple[str, ...] = ()
    tolerance: float = 1e-6


ALL = [
    Port("bert", ("--epochs", "2", "--samples", "96"), ("--in-order", "--dropout", "0")),
    Port("bert_trainer", ("--epochs", "2", "--samples", "96"), ("--in-order", "--dropout", "0")),
    Port("dcgan", ("--epochs", "2", "--samples", "144"), ("--in-order",)),
    Port(
        "imagenet",
        ("--epochs", "2", "--samples", "96", "--size", "16", "--width", "4", "--lr", "0.005"),
        ("--in-order",),
    ),
    Port("lightning_classifier", ("--epochs", "2", "--samples", "200"), ("--in-order", "--dropout", "0")),
    Port("mnist", ("--epochs", "2", "--samples", "320"), ("--in-order", "--dropout", "0")),
    Port("nanogpt", ("--max-iters", "12", "--warmup-iters", "4"), ("--in-order",)),
    Port("word_language_model", ("--epochs", "2", "--batches", "5"), ("--zero-state", "--dropout", "0")),
    Port("vae", ("--epochs", "5", "--samples", "192"), ("--in-order", "--noise", "0")),
]


def script(path: Path, *arguments: str) -> Callable[[], None]:
    """A script as a process of its own runs it; torch is loaded already."""

    def run() -> None:
        sys.argv = [str(path), *arguments]
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115
        runpy.run_path(str(path), run_name="__main__")

    return run


def run_plain(one: Port, kept: Path) -> dict:
    outcome = run_forked(script(PORTS / f"{one.name}_plain.py", *one.short, *one.still, "--save", str(kept)), 1)
    assert outcome.codes == {0: 0}, outcome.errors
    return torch.load(kept)


def run_port(one: Port, kept: Path, inject: str, *arguments: str) -> dict:
    ranks = script(PORTS / f"{one.name}.py", *one.short, *arguments, "--save", str(kept))
    outcome = run_forked(ranks, RANKS, {"CODEDREDUCE_INJECT": inject})
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    return torch.load(kept)


def whole(model: dict[str, torch.Tensor]) -> torch.Tensor:
    """All parameters; not running statistics, which a plain script moves once a micro-batch."""
    return torch.cat([one.double().flatten() for name, one in model.items() if not name.endswith(STATISTICS)])


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_every_step_is_the_plain_scripts(one: Port, tmp_path: Path) -> None:
    plain = run_plain(one, tmp_path / "plain.pt")
    port = run_port(one, tmp_path / "port.pt", STALLS[0], *one.still)
    assert len(port["losses"]) == len(plain["losses"])
    worst = max(abs(a - b) / abs(b) for a, b in zip(port["losses"], plain["losses"], strict=True))
    assert port["model"].keys() == plain["model"].keys()
    mine, theirs = whole(port["model"]), whole(plain["model"])
    apart = float((mine - theirs).norm() / theirs.norm())
    assert worst <= one.tolerance
    assert apart <= one.tolerance


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_the_same_bits_whoever_stalls(one: Port, tmp_path: Path) -> None:
    """With dropout, noise and shuffling, where a script has them."""
    first, second = (run_port(one, tmp_path / f"{inject}.pt", inject) for inject in STALLS)
    assert first["losses"] == second["losses"]
    assert len(set(first["losses"])) > 1
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name


def test_by_the_launcher(tmp_path: Path) -> None:
    """The same script by its command line ends with the same bits as in forked processes."""
    one, kept = next(one for one in ALL if one.name == "mnist"), tmp_path / "launched.pt"
    arguments = ["run", "-n", str(RANKS), "--inject", STALLS[0], str(PORTS / "mnist.py"), *one.short]
    run = codedreduce(*arguments, "--save", str(kept), timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "test: loss" in run.stdout
    forked = run_port(one, tmp_path / "forked.pt", STALLS[1])
    launched = torch.load(kept)
    assert launched["losses"] == forked["losses"]
    for name, tensor in launched["model"].items():
        assert torch.equal(tensor, forked["model"][name]), name


def test_few_lines_are_changed() -> None:
    assert {name: lines for name, lines in ports().items() if lines >= 25} == {}


def test_the_table_in_the_docs_is_true() -> None:
    text = (PORTS.parents[1] / "docs" / "pytorch.md").read_text()
    rows = re.findall(
        r"^\| (\w+) \| (\d+) \|", text.split("## Public scripts, ported")[1].split("\n## ")[0], re.MULTILINE
    )
    assert {name: int(lines) for name, lines in rows} == ports()
