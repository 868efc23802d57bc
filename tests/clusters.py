"""What tests of clusters are played with on one machine: programs of the system, each at a node of a lab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from codedreduce.errors import LabUnavailable
from codedreduce.lab import Lab, check_available
from codedreduce.lab.laboratory import labs
from codedreduce.lab.namespaces import processes_in

RATE = 1e9 / 8

#: Which Debian package has a program.
PACKAGES = {
    "sshd": "openssh-server", "ssh": "openssh-client", "slurmctld": "slurmctld", "slurmd": "slurmd",
    "munged": "munge", "mpiexec.openmpi": "openmpi-bin", "mpiexec.hydra": "mpich",
}  # fmt: skip


def found(program: str) -> str:
    """Where a program is; nothing if it is not here."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") or ""


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where a lab cannot be made or a program is missing; in CI all of them must be there."""
    why = [f"{program} is missing (apt-get install {PACKAGES[program]})" for program in programs if not found(program)]
    try:
        check_available()
    except LabUnavailable as error:
        return pytest.mark.skipif(True, reason=str(error))
    if why and os.environ.get("CI") == "true":
        raise RuntimeError(f"tests of clusters cannot be run in CI: {'; '.join(why)}")
    return pytest.mark.skipif(bool(why), reason="; ".join(why))


@contextmanager
def a_lab(letter: str, nodes: int) -> Iterator[Lab]:
    """A lab of this test process's own."""
    name = f"{letter}{os.getpid() % 1000000}"
    lab = Lab.up(nodes=nodes, rate=RATE, name=name)
    try:
        yield lab
    finally:
        lab.down()
    assert name not in labs()


def start(lab: Lab, node: int, command: list[str], **options: object) -> subprocess.Popen[str]:
    """Run a program at a node."""
    return subprocess.Popen(command, text=True, preexec_fn=lambda: lab.enter(node), **options)  # type: ignore[call-overload,no-any-return]


def commands_in(lab: Lab, node: int) -> list[str]:
    """What runs at a node, in words."""
    lines = []
    for process in processes_in(lab.namespace(node)):
        try:
            lines.append(" ".join(psutil.Process(process).cmdline()))
        except psutil.Error:
            continue
    return lines


#: Be at a node in name, too, and know the others' names.
AT_NODE = 'mount --make-rprivate / && mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class Names:
    """Nodes of a lab that are called c0, c1, ..., as machines are, by whatever is started there."""

    def __init__(self, lab: Lab, file: Path) -> None:
        self.lab = lab
        self._file = file
        names = "".join(f"{lab.address(node)} c{node}\n" for node in range(lab.nodes))
        file.write_text("127.0.0.1 localhost\n" + names)

    def start(self, node: int, command: list[str], **options: object) -> subprocess.Popen[str]:
        """Run a program at a node."""
        there = ["unshare", "--mount", "--uts", "sh", "-c", AT_NODE, "sh", str(self._file), f"c{node}"]
        return start(self.lab, node, [*there, *command], **options)


class Sshd:
    """sshd at some nodes of a lab, and an ssh that gets in: keys and configuration in a folder, nothing in ~/.ssh."""

    def __init__(self, lab: Lab, folder: Path, nodes: list[int]) -> None:
        self._lab = lab
        self.folder = folder
        folder.mkdir()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it would look for itself
        for name in ("host", "key", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        (folder / "authorized").write_text((folder / "key.pub").read_text())
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nPidFile none\nUsePAM no\n"
            "StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        )
        self.config = self._configure("key")
        self.strangers = self._configure("stranger")
        self.names = Names(lab, folder / "hosts")
        self.processes = {node: self._start(node) for node in nodes}

    def _configure(self, key: str) -> Path:
        path = self.folder / f"config-{key}"
        path.write_text(
            "".join(f"Host n{node}\n HostName {self._lab.address(node)}\n" for node in range(self._lab.nodes))
            + f"Host *\n IdentityFile {self.folder / key}\n IdentitiesOnly yes\n StrictHostKeyChecking no\n"
            " UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
        )
        return path

    def _start(self, node: int) -> subprocess.Popen[str]:
        command = [found("sshd"), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with (self.folder / f"sshd-{node}.log").open("w") as log:
            return self.names.start(node, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def command(self) -> str:
        """For --ssh."""
        return f"ssh -F {self.config}"

    def answers(self) -> bool:
        """Whether all are there."""
        tries = [["ssh", "-F", str(self.config), f"n{node}", "true"] for node in self.processes]
        begun = [start(self._lab, 0, one, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for one in tries]
        return not any([process.wait() for process in begun])  # noqa: C419

    def close(self) -> None:
        """End them."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def launched(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`codedreduce ...`, begun at node 0, to its end."""
    command = [sys.executable, "-m", "codedreduce", *arguments]
    process = start(lab, 0, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
