"""Raylets in namespaces of a lab, 100 Mbit/s between them: what ranks send goes over real links, by our own sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codedreduce.lab import Lab
from tests.command import codedreduce
from tests.raylets import raylets
from tests.waiting import LINGER, PATIENCE

from .test_lab import needs_lab
from .test_ray import Command

pytest.importorskip("ray")
pytest.importorskip("torch")

pytestmark = needs_lab

RANKS, STEPS, NUMBERS = 3, 200, 100_000

SCRIPT = f"""
import hashlib, os, sys, time
import torch
import codedreduce.torch as cr

{LINGER}

torch.manual_seed(1)
model = torch.nn.Linear({NUMBERS // 10}, 10, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, {NUMBERS // 10}), torch.randint(0, 10, (24,)))


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


with cr.join() as cluster:
    times = os.environ.get("CODEDREDUCE_RESTARTED", "0")
    for step in cluster.train(model, data, losses, batch_size=12, steps={STEPS}, state=[optimizer], seed=3):
        optimizer.step()
        open(f"{{sys.argv[1]}}/in-{{cluster.rank}}-{{times}}", "w").close()
        linger(f"{{sys.argv[1]}}/hurry", {STEPS} - step.round)
bits = hashlib.sha1(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
open(f"{{sys.argv[1]}}/bits-{{cluster.rank}}", "w").write(bits)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab.up(nodes=RANKS + 2, rate=100e6 / 8, name=f"r{os.getpid() % 1000000}")
    yield made
    made.down()


def test_rank_0_comes_back_at_another_address(lab: Lab, tmp_path: Path) -> None:
    script, local = tmp_path / "script.py", tmp_path / "local"
    script.write_text(SCRIPT)
    local.mkdir()
    (local / "hurry").touch()
    done = codedreduce("run", "-n", "1", "--units", str(RANKS), str(script), str(local), timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    with raylets([{"num_cpus": 0}, *({} for _ in range(RANKS + 1))], site=lab.name) as cluster:
        words = ("-m", "codedreduce", "run", "--on", "ray", "--address", cluster.address, "-n", str(RANKS))
        inside = ("ip", "netns", "exec", lab.namespace(0))
        command = Command(*words, str(script), str(tmp_path), folder=tmp_path, within=inside)
        for rank in range(RANKS):
            command.until_in(rank)
        first = cluster.rank(0, str(tmp_path))
        assert first is not None
        lost = cluster.node_of(first)
        sent = lab.status()[lost].sent
        assert sent > NUMBERS * 4 / RANKS, f"vectors go over the links: {sent}"
        cluster.remove(lost)
        command.until_in(0, times=1)
        assert f"[0] (lost with its actor on node {lab.address(lost)}" in command.text
        assert "[0] (has a place on node 10.77.0." in command.text
        assert command.ends() == 0, command.text
    assert {(tmp_path / f"bits-{rank}").read_text() for rank in range(RANKS)} == {(local / "bits-0").read_text()}
