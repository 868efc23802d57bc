"""Raylets in namespaces of a lab, 100 Mbit/s between them: what ranks send goes over real links, by our own sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codedreduce.lab import Lab
from tests.command import codedreduce
from tests.raylets import raylets

from .test_lab import needs_lab
from .test_ray import Command

pytest.importorskip("ray")
pytest.importorskip("torch")

pytestmark = [needs_lab, pytest.mark.timeout(240)]

NODES, STEPS, NUMBERS = 3, 30, 200_000

SCRIPT = f"""
import hashlib, os, sys, time
import torch
import codedreduce.torch as cr

torch.manual_seed(1)
model = torch.nn.Linear({NUMBERS // 10}, 10, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, {NUMBERS // 10}), torch.randint(0, 10, (24,)))


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


with cr.join() as cluster:
    for step in cluster.train(model, data, losses, batch_size=12, steps={STEPS}, state=[optimizer], seed=3):
        optimizer.step()
        if step.round == 10:
            open(f"{{sys.argv[1]}}/in-{{cluster.rank}}-0", "w").close()
        while step.round == 10 and not os.path.exists(f"{{sys.argv[1]}}/hurry"):
            time.sleep(0.05)
bits = hashlib.sha1(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
open(f"{{sys.argv[1]}}/bits-{{cluster.rank}}", "w").write(bits)
print("all of it", bits, os.environ["MASTER_ADDR"], flush=True)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab.up(nodes=NODES, rate=100e6 / 8, name=f"r{os.getpid() % 1000000}")
    yield made
    made.down()


def test_a_machine_is_lost_whose_links_were_real(lab: Lab, tmp_path: Path) -> None:
    script, local = tmp_path / "script.py", tmp_path / "local"
    script.write_text(SCRIPT)
    local.mkdir()
    (local / "hurry").touch()
    done = codedreduce("run", "-n", str(NODES), str(script), str(local), timeout=100)
    assert done.returncode == 0, done.stderr
    with raylets([{}] * NODES, site=lab.name) as cluster:
        inside = ("netns", "exec", lab.namespace(0))
        words = ("-m", "codedreduce", "run", "--on", "ray", "--address", cluster.address)
        command = Command(
            *words, "-n", str(NODES), str(script), str(tmp_path), folder=tmp_path, within=("ip", *inside)
        )  # fmt: skip
        for rank in range(NODES):
            command.until_in(rank)
        sent = [node.sent for node in lab.status()]
        assert all(each > 10 * NUMBERS * 4 / NODES for each in sent), f"vectors go over the links: {sent}"
        found = {rank: cluster.rank(rank, str(tmp_path)) for rank in range(NODES)}
        lost = next(rank for rank, process in found.items() if process is not None and cluster.node_of(process))
        cluster.remove(next(cluster.node_of(one) for rank, one in found.items() if rank == lost and one is not None))
        command.until(lambda: f"[{lost}] (lost with its actor on node 10.77.0." in command.text)
        assert command.ends() == 0, command.text
    left = [rank for rank in range(NODES) if rank != lost]
    assert {(tmp_path / f"bits-{rank}").read_text() for rank in left} == {(local / "bits-0").read_text()}
