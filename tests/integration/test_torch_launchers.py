"""What other launchers leave behind when they are ended: nothing in /dev/shm, and no process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from codedreduce.process.addresses import free_port

from .test_launcher import nobody_runs

SCRIPT = """
import os, sys
from pathlib import Path
import torch
import codedreduce.torch as cr

class Data:
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.full((100,), float(index))

model = torch.nn.Linear(100, 1000)
with cr.join() as cluster:
    for step in cluster.train(model, Data(), lambda model, x: model(x).sum(1), 64, 10**6, num_workers=1):
        if step.round > 2:
            Path(f"{sys.argv[1]}/{os.getpid()}").touch()
"""

MPIEXEC = Path(sys.executable).parent / "mpiexec"


def waited_for(happens: Callable[[], object], within: float = 120.0) -> bool:
    deadline = time.monotonic() + within
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(happens())


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"], signal.SIGTERM),
        ([str(MPIEXEC), "-n", "2", sys.executable], signal.SIGKILL),
    ],
    ids=["torchrun is told to end", "mpiexec is killed"],
)
def test_nothing_is_left(tmp_path: Path, launcher: list[str], number: signal.Signals) -> None:
    if launcher[0] == str(MPIEXEC) and not MPIEXEC.exists():
        pytest.skip("mpiexec comes with the extra bench")
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(SCRIPT)
    begun.mkdir()
    before = set(os.listdir("/dev/shm"))
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if launcher[0] == str(MPIEXEC) else {}
    with subprocess.Popen(
        [*launcher, str(script), str(begun)], env={**os.environ, **variables}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            assert waited_for(lambda: len(os.listdir(begun)) == 2), "both ranks train"
            process.send_signal(number)
            process.wait(timeout=120)
        finally:
            process.kill()
    assert waited_for(lambda: nobody_runs(str(script)))
    assert waited_for(lambda: set(os.listdir("/dev/shm")) <= before), "of others there may be files for a moment"
