"""Trainings on a GPU that ranks share: by its memory and through the host's, calm and with stalls and deaths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codedreduce.torch.device.device_sums import add_up

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

SCRIPT = """
import hashlib, json, os, signal, sys
import torch
import torch.nn.functional as F
import codedreduce.torch as cr

out, dtype, dies, dropout = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Dropout(dropout))
model.append(torch.nn.Linear(300, 10))
model = model.to("cuda", dtype)
x = torch.randn(600, 64, generator=torch.Generator().manual_seed(1), dtype=dtype)
data = torch.utils.data.TensorDataset(x, x[:, :10].argmax(1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

def losses(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets, reduction="none")

found = []
with cr.join() as cluster:
    for step in cluster.train(model, data, losses, 60, 12, device="cuda", state=[optimizer]):
        optimizer.step()
        found.append(step.loss)
        if dies and cluster.rank == 1 and step.round == dies:
            os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.blake2b(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
    with open(f"{out}/{cluster.rank}", "w") as file:
        json.dump([digest, found, [p.detach().double().cpu().tolist() for p in model.parameters()][1]], file)
"""


def run(
    folder: Path, ranks: int, dtype: str = "float32", dies: int = 0, dropout: float = 0.1, **said: str
) -> list[Any]:
    """What each rank ends with; of one process alone, if there is one."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    for one in folder.glob("[0-9]"):
        one.unlink()
    command = [str(script), str(folder), dtype, str(dies), str(dropout)]
    if ranks > 1:
        command = ["-m", "codedreduce", "run", "-n", str(ranks), *command]
    done = subprocess.run([sys.executable, *command], env={**os.environ, **said}, capture_output=True, timeout=200)
    left = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]"))]
    assert len(left) == ranks - bool(dies), done.stderr.decode()[-3000:]
    return left


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_wherever_vectors_lie_and_whoever_stalls_or_dies(dtype: str, tmp_path: Path) -> None:
    (calm, *others) = run(tmp_path, 3, dtype)
    assert [other[0] for other in others] == [calm[0]] * 2
    through_the_host = run(tmp_path, 3, dtype, CODEDREDUCE_DEVICE_MEMORY="0")
    assert {one[0] for one in through_the_host} == {calm[0]}
    stalled = run(tmp_path, 3, dtype, CODEDREDUCE_INJECT="worker:2:0.5:0.3s")
    assert stalled[0][:2] == calm[:2]
    assert {one[0] for one in run(tmp_path, 3, dtype, dies=5)} == {calm[0]}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_process_alone_comes_to_the_same(dtype: str, tmp_path: Path) -> None:
    calm, *_ = run(tmp_path, 3, dtype, dropout=0.0)
    (alone,) = run(tmp_path, 1, dtype, dropout=0.0)
    close = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(alone[1], calm[1], rtol=close)
    np.testing.assert_allclose(alone[2], calm[2], rtol=100 * close, atol=close)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_audited(dtype: str, tmp_path: Path) -> None:
    calm = run(tmp_path, 3, dtype)
    for memory in ("1", "0"):
        audited = run(tmp_path, 3, dtype, CODEDREDUCE_AUDIT="0.5", CODEDREDUCE_DEVICE_MEMORY=memory)
        assert audited[0][0] == calm[0][0]


@pytest.mark.parametrize("count", [2, 3, 8, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_in_one_pass(count: int, dtype: torch.dtype) -> None:
    vectors = [torch.randn(100_003, dtype=dtype, device="cuda") for _ in range(count)]
    expected = vectors[0].cpu().numpy().copy()
    for vector in vectors[1:]:
        expected += vector.cpu().numpy()
    out = torch.empty_like(vectors[0])
    add_up(vectors, out)
    assert out.cpu().numpy().tobytes() == expected.tobytes()
    add_up(vectors, vectors[0])
    assert np.array_equal(vectors[0].cpu().numpy(), expected)


@pytest.mark.parametrize("count", [2, 3, 8, 11])
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16])
def test_narrow_numbers_are_added_wide_and_rounded_once(count: int, to: torch.dtype) -> None:
    """As on the host, to the bit."""
    vectors = [torch.randn(100_003, device="cuda").bfloat16() for _ in range(count)]
    expected = vectors[0].cpu().float()
    for vector in vectors[1:]:
        expected += vector.cpu().float()
    out = torch.empty(100_003, dtype=to, device="cuda")
    add_up(vectors, out)
    assert torch.equal(out.cpu(), expected.to(to))
