"""The model does not depend on who was there: six ranks, four, or some of six that come and go, have the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from torch import nn

import codedreduce.torch as cr
from codedreduce import MasterWorker, Striped
from codedreduce.errors import SchemeError, UsageError
from codedreduce.launch.environment import read_membership
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.training import LogisticRegression, synthetic, train
from tests.waiting import PATIENCE, linger, wait_until

from .test_restarts import expect_same_bits, running  # noqa: F401
from .test_torch_striped import bits_of, trained
from .test_torch_striped import run as run_torch

SIX = Striped(6)
STEPS = 40


@pytest.mark.parametrize("options", [("-n", "6"), ("-n", "4", "--units", "6"), ("-n", "1", "--units", "6")])
def test_fewer_ranks_with_as_many_units(running, options: tuple[str, ...]) -> None:  # noqa: F811
    run = running(*options)
    run.wait((run.folder / "three").exists)
    said = run.stop()
    assert run.process.returncode == 0, said
    for rank in range(int(options[1])):
        expect_same_bits(SIX, run.model(rank))


def test_of_six_places_four_are_taken_two_of_them_lost_and_one_more_taken(running) -> None:  # noqa: F811
    run = running("-n", "3:6", "--start", "4")
    run.wait((run.folder / "three").exists)
    for rank in (3, 2):
        os.kill(run.pid(rank), signal.SIGKILL)
        words = f"[{rank}] (killed by signal 9; the run goes on without it)"
        run.wait(lambda words=words: words in run.said.read_text())
    added = run.joined_by(4)
    try:
        run.pid(4)
        said = run.stop()
        assert added.wait(PATIENCE) == 0
    finally:
        added.kill()
        added.wait()
    assert run.process.returncode == 0, said
    for rank in (0, 1, 4):
        expect_same_bits(SIX, run.model(rank))


def test_six_are_killed_and_four_go_on_from_their_checkpoint(running) -> None:  # noqa: F811
    more = "checkpoint=folder / 'kept', every=2, resume=True,"
    six = running("-n", "6", more=more)

    def reached() -> int:
        return max((int(path.stem[6:]) for path in (six.folder / "kept").glob("round-*.json")), default=0)

    six.wait(lambda: reached() > 3)
    six.process.kill()
    six.process.wait()
    assert wait_until(lambda: len(six.everyone()) == 0), "the kernel ends the others"
    before = reached()
    (six.folder / "three").unlink(missing_ok=True)
    four = running("-n", "4", "--units", "6", more=more)
    four.wait(lambda: reached() > before)
    said = four.stop()
    assert four.process.returncode == 0, said
    for rank in range(4):
        rounds, model = four.model(rank)
        assert rounds > before
        expect_same_bits(SIX, (rounds, model))


def test_in_pytorch(tmp_path: Path) -> None:
    outcome = run_torch(trained(tmp_path, STEPS), ranks=6)
    assert set(outcome.codes.values()) == {0}, outcome.errors
    six = bits_of(tmp_path, 6)
    for rank in range(6):
        (tmp_path / f"{rank}").unlink()

    outcome = run_torch(trained(tmp_path, STEPS), ranks=4, units=6)
    assert set(outcome.codes.values()) == {0}, outcome.errors
    assert bits_of(tmp_path, 4) == six
    outcome = run_torch(trained(tmp_path, STEPS), ranks=4)
    assert bits_of(tmp_path, 4) != six, "four units are another sum, or this test shows nothing"
    for rank in range(4):
        (tmp_path / f"{rank}").unlink()

    took: Path = tmp_path / "took"

    def body(cluster: cr.Cluster, model: nn.Module, step: cr.Step) -> None:
        if step.round == 3 and cluster.rank == 0:
            (tmp_path / "three").touch()
        if cluster.rank in (2, 3) and step.round == 2 + cluster.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if cluster.rank == 4 and step.round < STEPS:
            took.touch()
        if step.round > 3:
            linger(str(took), STEPS - step.round)

    script = trained(tmp_path, STEPS, body)

    def come_or_not() -> None:
        rank = int(os.environ["RANK"])
        if rank == 4:
            assert wait_until((tmp_path / "three").exists)
        if rank < 5:
            script()

    outcome = run_torch(come_or_not, ranks=6, least=3)
    killed = -signal.SIGKILL
    assert outcome.codes == {0: 0, 1: 0, 2: killed, 3: killed, 4: 0, 5: 0}, outcome.errors
    assert took.exists(), "the one that was added has taken part"
    assert bits_of(tmp_path, 6, without=(2, 3, 5)) == six


def test_the_launcher_says_how_many_unless_the_script_does() -> None:
    base = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    membership = read_membership({**base, "CODEDREDUCE_UNITS": "12"})
    assert membership is not None
    assert membership.cut(Striped(4)) == Striped(4, units=12)
    assert membership.cut(Striped(4, units=8)) == Striped(4, units=8)
    with pytest.raises(SchemeError, match="CODEDREDUCE_UNITS is only for stripes"):
        membership.cut(MasterWorker(3))


def test_processes_of_a_training_of_its_own() -> None:
    trainings = [
        train(LogisticRegression(), synthetic(600, 50), rounds=12, scheme=scheme)
        for scheme in (Striped(4), Striped(2, units=4))
    ]
    assert trainings[0].parameters.tobytes() == trainings[1].parameters.tobytes()
    with pytest.raises(UsageError, match="they follow from its workers; use striped"):
        parse_scheme("coded-reduce", tree=parse_tree("2x2"), stragglers=1, units=8)
