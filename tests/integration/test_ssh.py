"""`codedreduce run --hosts`: real ssh and sshd, on the nodes of a lab. Skipped where there are none."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from codedreduce import Striped
from codedreduce.errors import UsageError
from codedreduce.lab import Lab
from codedreduce.launch.ssh import SshHost, parse_hosts
from codedreduce.launch.ssh.connection import why_not
from codedreduce.launch.ssh.hosts import laid_out
from tests.clusters import Sshd, a_lab, commands_in, launched, needs, start
from tests.command import codedreduce
from tests.waiting import wait_until

from .test_restarts import SCRIPT, expect_same_bits

over_ssh = needs("ssh", "sshd")

SECRET = "a secret of more than twenty characters"


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Sshd]]:
    """Launchers begin at node 0; there is an sshd at the nodes 1, 2 and 3, and none at 4."""
    with a_lab("h", 5) as lab:
        sshd = Sshd(lab, tmp_path_factory.mktemp("ssh") / "keys", [1, 2, 3])
        try:
            assert wait_until(sshd.answers, 120)
            yield lab, sshd
        finally:
            sshd.close()


class Running:
    """A run over ssh that trains until it is told to stop, and says who computed and with which model it ended."""

    def __init__(self, lab: Lab, sshd: Sshd, folder: Path, *options: str, before: str = "", more: str = "") -> None:
        self.folder, self.lab = folder, lab
        script = folder / "script.py"
        script.write_text(SCRIPT.format(before=before, more=more))
        command = [
            sys.executable,
            "-m",
            "codedreduce",
            "run",
            "--ssh",
            sshd.command,
            *options,
            str(script),
            str(folder),
        ]
        self.said = folder / "said"
        environment = {**os.environ, "CODEDREDUCE_SECRET": SECRET}
        with self.said.open("w") as said:
            self.process = start(lab, 0, command, cwd=folder, env=environment, stdout=said, stderr=said)

    def pid(self, rank: int, times: int = 0) -> int:
        """Wait for a process to have computed."""
        path = self.folder / f"computed-{rank}-{times}"
        assert wait_until(lambda: path.exists() or self.process.poll() is not None, 120), self.said.read_text()
        assert path.exists(), self.said.read_text()
        return int(path.read_text())

    def stop(self) -> str:
        (self.folder / "stop").touch()
        assert self.process.wait(120) == 0, self.said.read_text()
        return self.said.read_text()

    def model(self) -> tuple[int, np.ndarray]:
        return int((self.folder / "rounds-0").read_text()), np.load(self.folder / "model-0.npy")

    def nothing_is_left(self) -> bool:
        """But for sshd itself."""

        def is_left() -> list[str]:
            lines = [line for node in (1, 2, 3) for line in commands_in(self.lab, node)]
            return [line for line in lines if "codedreduce" in line or "script.py" in line]

        return wait_until(lambda: not is_left(), 120)


@over_ssh
def test_ranks_on_three_hosts_have_the_bits_of_one_machine(ssh: tuple[Lab, Sshd], tmp_path: Path) -> None:
    before = 'print("rank", rank, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.getcwd())'
    run = Running(*ssh, tmp_path, "--hosts", "n1:2,n2,n3", "--output", "all", before=before)
    try:
        pids = [run.pid(rank) for rank in range(4)]
        lab = ssh[0]
        homes = [psutil.Process(pid).ppid() for pid in pids]
        assert homes[0] == homes[1] != homes[2], "one agent a host"
        everything = [line for node in range(4) for line in commands_in(lab, node)]
        assert not [line for line in everything if SECRET in line]
        received = lab.status()[3].received
        assert wait_until(lambda: lab.status()[3].received > received), "it goes through the lab's cables"
        said = run.stop()
    finally:
        run.process.kill()
    assert f"[0] rank 0 0 2 {tmp_path}" in said
    assert f"[1] rank 1 1 2 {tmp_path}" in said
    assert f"[3] rank 3 0 1 {tmp_path}" in said
    assert run.nothing_is_left()
    expect_same_bits(Striped(4), run.model())


@over_ssh
def test_who_dies_is_started_again_on_its_host_also_after_the_connection_was_lost(
    ssh: tuple[Lab, Sshd], tmp_path: Path
) -> None:
    run = Running(*ssh, tmp_path, "--hosts", "n1,n2,n3", "--restart")
    try:
        first = run.pid(1)
        agents = {rank: psutil.Process(run.pid(rank)).ppid() for rank in range(3)}
        os.kill(first, signal.SIGKILL)
        assert psutil.Process(run.pid(1, times=1)).ppid() == agents[1]
        os.kill(agents[2], signal.SIGKILL)  # the kernel ends what it started
        again = psutil.Process(run.pid(2, times=1))
        assert again.ppid() != agents[2]
        said = run.stop()
    finally:
        run.process.kill()
    assert "(killed by signal 9; started again, the 1st time)" in said
    assert "the connection to n3 was lost" in said
    assert run.nothing_is_left()
    expect_same_bits(Striped(3), run.model())


@over_ssh
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_launcher_ends(ssh: tuple[Lab, Sshd], tmp_path: Path, how: signal.Signals) -> None:
    more = f'checkpoint="{tmp_path}/kept", every=10**6,'
    run = Running(*ssh, tmp_path, "--hosts", "n1,n2", more=more)
    try:
        run.pid(0), run.pid(1)
        assert wait_until((tmp_path / "three").exists, 120)
        run.process.send_signal(how)
        assert run.process.wait(120) == (-9 if how is signal.SIGKILL else 143)
    finally:
        run.process.kill()
    assert run.nothing_is_left()
    assert bool(list((tmp_path / "kept").glob("round-*.json"))) == (how is signal.SIGTERM)


@over_ssh
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", "nobody.invalid"], "cannot use nobody.invalid: ssh: Could not resolve hostname"),
        (["--hosts", "n1,n4"], "Connection refused (is sshd running there, and at this port?)"),
        (["--hosts", "n1", "--python", "/nowhere/python"], "there is no /nowhere/python that can be run there"),
        (["--hosts", "n1", "--python", "/usr/bin/python3 -S"], "there is no"),
        (["--hosts", "n1,n2", "-n", "5"], "the run has 5 processes, and the hosts take 2"),
    ],
)  # fmt: skip
def test_hosts_that_cannot_be_used(ssh: tuple[Lab, Sshd], tmp_path: Path, options: list[str], words: str) -> None:
    lab, sshd = ssh
    (tmp_path / "script.py").touch()
    run = launched(lab, "run", "--ssh", sshd.command, *options, str(tmp_path / "script.py"))
    assert run.returncode == 2, run.stdout + run.stderr
    assert words in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@over_ssh
def test_a_python_without_codedreduce(ssh: tuple[Lab, Sshd], tmp_path: Path) -> None:
    lab, sshd = ssh
    (tmp_path / "script.py").touch()
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    run = launched(
        lab,
        "run",
        "--ssh",
        sshd.command,
        "--hosts",
        "n1",
        "--python",
        f"{bare}/bin/python",
        str(tmp_path / "script.py"),
    )
    assert run.returncode == 2
    assert f"{bare}/bin/python there has no codedreduce; install it (pip install codedreduce==" in run.stderr


@over_ssh
def test_another_version(ssh: tuple[Lab, Sshd], tmp_path: Path) -> None:
    """One that says hello as another version would."""
    lab, sshd = ssh
    (tmp_path / "script.py").touch()
    old = tmp_path / "python"
    old.write_text(
        """#!/bin/sh\necho 'codedreduce agent: {"type":"Hello","version":"0.0.1","address":"10.77.0.2"}'\ncat"""
    )
    old.chmod(0o755)
    run = launched(
        lab, "run", "--ssh", sshd.command, "--hosts", "n1", "--python", str(old), str(tmp_path / "script.py")
    )
    assert run.returncode == 2
    assert "n1 has codedreduce 0.0.1" in run.stderr


@over_ssh
def test_a_key_that_is_not_let_in(ssh: tuple[Lab, Sshd], tmp_path: Path) -> None:
    lab, sshd = ssh
    (tmp_path / "script.py").touch()
    run = launched(lab, "run", "--ssh", f"ssh -F {sshd.strangers}", "--hosts", "n1", str(tmp_path / "script.py"))
    assert run.returncode == 2
    assert "Permission denied" in run.stderr
    assert "set up a login without a password: ssh-copy-id n1" in run.stderr


@over_ssh
def test_a_way_that_is_shut(ssh: tuple[Lab, Sshd], tmp_path: Path) -> None:
    """Host n2 may not send anything to n1, though this machine reaches both."""
    lab, sshd = ssh
    (tmp_path / "script.py").touch()
    shut = ["ip", "-n", lab.namespace(2), "route", "add", "prohibit", f"{lab.address(1)}/32"]
    subprocess.run(shut, check=True)
    try:
        run = launched(
            lab, "run", "--ssh", sshd.command, "--hosts", "n1,n2", "--port", "29555", str(tmp_path / "script.py")
        )  # fmt: skip
    finally:
        subprocess.run([word.replace("add", "del") for word in shut], check=True)
    assert run.returncode == 2
    assert re.search(r"n\d cannot reach n\d \(10\.77\.0\.\d\) at port 29555: ", run.stderr), run.stderr
    assert "and 3 more such connections" in run.stderr, "either way, and where each listens"
    assert "Hosts must accept each other's connections at port 29555" in run.stderr
    assert "ip_local_port_range" in run.stderr


@over_ssh
def test_a_port_that_is_taken(ssh: tuple[Lab, Sshd], tmp_path: Path) -> None:
    lab, sshd = ssh
    (tmp_path / "script.py").touch()
    run = launched(lab, "run", "--ssh", sshd.command, "--hosts", "n1,n2", "--port", "22", str(tmp_path / "script.py"))
    assert run.returncode == 2
    assert "n1: cannot listen at port 22: address already in use; choose another with --port" in run.stderr


def test_what_does_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    both = codedreduce("run", "--lab", "--hosts", "a", str(tmp_path / "script.py"))
    assert both.returncode == 2
    assert "specify only one" in both.stderr
    neither = codedreduce("run", "--python", "python3", str(tmp_path / "script.py"))
    assert neither.returncode == 2
    assert "--python and --ssh need --hosts" in neither.stderr


def test_hosts_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\nann@a:2\n\nb slots=3 # a fast one\n")
    assert parse_hosts(str(path)) == (SshHost("ann@a", 2), SshHost("b", 3))
    assert laid_out(parse_hosts(str(path)), 4) == (0, 0, 1, 1)


@pytest.mark.parametrize("text", ["", "a,,b", "a:x", "-oProxyCommand=x", "a b", "a:0", "a;reboot", "a:-1"])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (255, "Host key verification failed.", "connect once by hand"),
        (255, "ssh: connect to host b port 22: Connection timed out", "can this host reach its port 22"),
        (255, "", "ssh ended without a message"),
        (127, "sh: 1: exec: python9: not found", "there is no python9"),
        (1, "Error while finding module: No module named 'codedreduce'", "has no codedreduce"),
        (3, "", "it ended with exit code 3"),
    ],
)
def test_why_a_host_cannot_be_used(code: int, said: str, words: str) -> None:
    line = why_not("b", "python9", "0.1.0", code, said)
    assert line.startswith("cannot use b: ")
    assert words in line
    assert "\n" not in line
