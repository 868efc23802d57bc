"""Jobs of a real Slurm: a controller and three nodes, each at a node of a lab. Skipped where there is none."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from codedreduce import Striped
from tests.clusters import a_lab, needs
from tests.command import codedreduce
from tests.slurm import Slurm
from tests.waiting import wait_until

from .test_restarts import SCRIPT, expect_same_bits

pytestmark = needs("slurmctld", "slurmd", "munged")

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"

#: The first life of a job goes slowly after round 40: it is requeued before it is through.
IN_THE_MIDDLE = """
        Path(sys.argv[1], f"round-{os.environ.get('SLURM_RESTART_COUNT', 0)}").write_text(str(step.round))
        if step.round > 40 and len(sys.argv) > 2 and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(1)
"""
AT_THE_END = """
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
Path(sys.argv[1], f"digest-{cluster.rank}").write_text(digest)
"""

SECRET = "a secret of more than twenty characters"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with a_lab("s", 4) as lab:
        made = Slurm(lab, tmp_path_factory.mktemp("slurm") / "slurm")
        try:
            assert wait_until(made.is_up, 120), (made.folder / "daemons.log").read_text()
            yield made
        finally:
            made.close()


def digits(folder: Path) -> Path:
    """The example, with checkpoints, and the bits it ends with in a file a rank."""
    text = EXAMPLE.read_text()
    for old, new in (
        ("steps=240)", 'steps=120, num_workers=1, state=[optimizer], checkpoint=sys.argv[1] + "/kept", every=1000)'),
        ("        optimizer.step()\n", f"        optimizer.step(){IN_THE_MIDDLE}"),
        ("import torch\n", "import hashlib, os, sys, time\nfrom pathlib import Path\nimport torch\n"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "digits.py"
    path.write_text(text + AT_THE_END)
    return path


def test_a_requeued_job_ends_with_the_bits_of_one_that_never_stopped(slurm: Slurm, tmp_path: Path) -> None:
    """The digits example on three nodes: told to end in the middle it writes a checkpoint, and goes on from there."""
    script, here, there = digits(tmp_path), tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    local = codedreduce("run", "-n", "1", "--units", "3", str(script), str(here))
    assert local.returncode == 0, local.stderr
    said = tmp_path / "said"
    job = slurm.submit(
        "--nodes=3", "--ntasks=3", "--requeue", "--open-mode=append", f"--output={said}",
        script=f"export CODEDREDUCE_SECRET='{SECRET}'\nsrun -K0 {sys.executable} {script} {there} slowly",
    )  # fmt: skip
    first, second = there / "round-0", there / "round-1"
    assert wait_until(lambda: first.exists() and int(first.read_text() or 0) > 40, 120), said.read_text()
    assert slurm.ask("scontrol", "requeue", job).returncode == 0
    assert wait_until(lambda: slurm.state(job) == "COMPLETED", 200), f"{slurm.state(job)}: {said.read_text()}"
    text = said.read_text()
    assert int(first.read_text()) < 120
    assert second.read_text() == "120"
    written = re.search(r"leave requested: writing a checkpoint after round (\d+)", text)
    assert written is not None, text
    assert int(written[1]) > 40
    assert {(there / f"digest-{rank}").read_text() for rank in range(3)} == {(here / "digest-0").read_text()}


class Step:
    """`srun` of a script that trains in stripes until it is told to stop, on three nodes."""

    def __init__(self, slurm: Slurm, folder: Path, more: str = "", **variables: str) -> None:
        self.slurm, self.folder, self.said = slurm, folder, folder / "said"
        script = folder / "script.py"
        text = SCRIPT.format(before="from codedreduce import Striped", more=f"scheme=Striped(3), {more}")
        script.write_text(text.replace('os.environ["RANK"]', 'os.environ["SLURM_PROCID"]'))
        environment = {**slurm.environment, "CODEDREDUCE_SECRET": SECRET, **variables}
        command = [
            "srun",
            "--nodes=3",
            "--ntasks=3",
            f"--job-name={folder.name}",
            sys.executable,
            str(script),
            str(folder),
        ]
        with self.said.open("w") as said:
            self.process = slurm.at(0, command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def pid(self, rank: int) -> int:
        path = self.folder / f"computed-{rank}-0"
        assert wait_until(lambda: path.exists() or self.process.poll() is not None, 120), self.said.read_text()
        assert path.exists(), self.said.read_text()
        return int(path.read_text())


def test_srun_needs_nothing_set_and_a_killed_task_does_not_end_the_others(slurm: Slurm, tmp_path: Path) -> None:
    step = Step(slurm, tmp_path)
    try:
        pids = [step.pid(rank) for rank in range(3)]
        os.kill(pids[0], signal.SIGKILL)  # who leads
        assert wait_until(lambda: "task 0: Killed" in step.said.read_text(), 120)
        (tmp_path / "stop").touch()
        step.process.wait(120)
    finally:
        step.process.kill()
    for rank in (1, 2):
        model = int((tmp_path / f"rounds-{rank}").read_text()), np.load(tmp_path / f"model-{rank}.npy")
        expect_same_bits(Striped(3), model)


def test_sigusr1_ahead_of_the_limit_leaves_a_checkpoint(slurm: Slurm, tmp_path: Path) -> None:
    """As `--signal=USR1@60` sends it to all tasks of a step."""
    step = Step(slurm, tmp_path, more=f'checkpoint="{tmp_path}/kept", every=10**6,')
    try:
        for rank in range(3):
            step.pid(rank)
        assert wait_until((tmp_path / "three").exists, 120)
        assert slurm.ask("scancel", "--signal=USR1", f"--name={tmp_path.name}").returncode == 0
        code = step.process.wait(120)
    finally:
        step.process.kill()
    assert code == 143, step.said.read_text()
    assert list((tmp_path / "kept").glob("round-*.json")), step.said.read_text()


def test_without_a_secret_it_is_said_how_to_have_one(slurm: Slurm, tmp_path: Path) -> None:
    step = Step(slurm, tmp_path, CODEDREDUCE_SECRET="", XDG_CONFIG_HOME=str(tmp_path))
    assert step.process.wait(120) != 0
    said = step.said.read_text()
    assert "enough if hosts share your home folder" in said
    assert "export CODEDREDUCE_SECRET=$(openssl rand -hex 32)" in said
