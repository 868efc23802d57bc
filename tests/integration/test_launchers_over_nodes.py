"""torchrun and mpiexec over several machines, played by the nodes of a lab, with no address set by hand."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Names, Sshd, a_lab, found, needs
from tests.waiting import wait_until

SECRET = "a secret of more than twenty characters"

#: Trains in stripes, and leaves the bits it ends with, one file a rank.
SCRIPT = """
import os, sys
from pathlib import Path
from codedreduce import Striped
from codedreduce.training import SGD, LogisticRegression, synthetic, train
from codedreduce.launch.environment import read_membership

member = read_membership(os.environ)
result = train(LogisticRegression(), synthetic(600, 50), scheme=Striped(member.size), rounds=8, optimizer=SGD(1.0))
Path(sys.argv[1], f"{member.rank}").write_text(result.parameters.tobytes().hex())
Path(sys.argv[1], f"met-{member.rank}").write_text(f"{member.meeting.host}:{member.meeting.port}")
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with a_lab("l", 3) as lab:
        sshd = Sshd(lab, tmp_path_factory.mktemp("launchers") / "keys", [0, 1, 2])
        try:
            assert wait_until(sshd.answers, 120)
            yield sshd
        finally:
            sshd.close()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    with a_lab("r", 2) as lab:
        yield Names(lab, tmp_path_factory.mktemp("names") / "hosts")


def bits_here(script: Path, folder: Path, ranks: int) -> set[str]:
    """What the script ends with on this machine."""
    folder.mkdir()
    command = [sys.executable, "-m", "codedreduce", "run", "-n", str(ranks), str(script), str(folder)]
    subprocess.run(command, check=True, timeout=120)
    return {(folder / str(rank)).read_text() for rank in range(ranks)}


@needs()
def test_torchrun_meets_by_the_names_of_machines(names: Names, tmp_path: Path) -> None:
    """Two of torchrun's agents find each other by c10d, and name the first machine as it calls itself."""
    script, there = tmp_path / "script.py", tmp_path / "there"
    script.write_text(SCRIPT)
    there.mkdir()
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend",
        "c10d", "--rdzv-endpoint", "c0:29400", "--rdzv-id", "ours", str(script), str(there),
    ]  # fmt: skip
    environment = {**os.environ, "CODEDREDUCE_SECRET": SECRET}
    said = tmp_path / "said"
    with said.open("w") as log:
        agents = [names.start(node, command, env=environment, stdout=log, stderr=log) for node in (0, 1)]
    try:
        assert [agent.wait(120) for agent in agents] == [0, 0], said.read_text()
    finally:
        for agent in agents:
            agent.kill()
    assert {(there / str(rank)).read_text() for rank in range(4)} == bits_here(script, tmp_path / "here", 4)


def open_mpi(sshd: Sshd, hosts: Path) -> list[str]:
    hosts.write_text("c0 slots=1\nc1 slots=1\nc2 slots=1\n")
    return [
        found("mpiexec.openmpi"), "--allow-run-as-root", "--hostfile", str(hosts), "-n", "3", "--mca", "plm_rsh_agent",
        sshd.command, "-x", "CODEDREDUCE_SECRET", "-x", "OMP_NUM_THREADS", "-x", "OPENBLAS_CORETYPE",
    ]  # fmt: skip


def hydra(sshd: Sshd, hosts: Path) -> list[str]:
    hosts.write_text("c0:1\nc1:1\nc2:1\n")
    ssh = hosts.with_name("ssh")
    ssh.write_text(f'#!/bin/sh\nexec {sshd.command} "$@"\n')
    ssh.chmod(0o755)
    return [
        found("mpiexec.hydra"), "-f", str(hosts), "-n", "3", "-launcher", "ssh", "-launcher-exec", str(ssh),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(open_mpi, marks=needs("ssh", "sshd", "mpiexec.openmpi")),
        pytest.param(hydra, marks=needs("ssh", "sshd", "mpiexec.hydra")),
    ],
)
def test_mpiexec_with_a_hostfile_meets_where_it_runs(nodes: Sshd, tmp_path: Path, launcher) -> None:
    script, there = tmp_path / "script.py", tmp_path / "there"
    script.write_text(SCRIPT)
    there.mkdir()
    command = [*launcher(nodes, tmp_path / "hosts"), sys.executable, str(script), str(there)]
    environment = {**os.environ, "CODEDREDUCE_SECRET": SECRET}
    said = tmp_path / "said"
    with said.open("w") as log:
        process = nodes.names.start(0, command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        assert process.wait(120) == 0, said.read_text()
    finally:
        process.kill()
    (met,) = {(there / f"met-{rank}").read_text() for rank in range(3)}
    assert met.startswith("10.77.0.1:")
    assert {(there / str(rank)).read_text() for rank in range(3)} == bits_here(script, tmp_path / "here", 3)


@needs("ssh", "sshd", "mpiexec.openmpi")
def test_mpiexec_elsewhere_than_rank_0_says_what_to_set(nodes: Sshd, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    hosts = tmp_path / "hosts"
    command = [*open_mpi(nodes, hosts), sys.executable, str(script), str(tmp_path)]
    hosts.write_text("c1 slots=2\nc2 slots=1\n")
    environment = {**os.environ, "CODEDREDUCE_SECRET": SECRET}
    process = nodes.names.start(0, command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "rank 0 is on another host than mpiexec" in out
    assert "-x MASTER_ADDR=" in out
