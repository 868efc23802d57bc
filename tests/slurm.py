"""A cluster of Slurm's on one machine: slurmctld at node 0 of a lab, a slurmd at each other, and a munged of its own.

Each has names and mounts of its own, too, so that a node is called as it would be on a machine by itself. Everything
lies in one folder, and all of it ends with this.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from codedreduce.lab import Lab

from .clusters import Names, found

CONFIGURATION = """
ClusterName=test
SlurmctldHost=c0({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SchedulerParameters=sched_interval=1,bf_interval=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
JobRequeue=1
NodeName=c[1-{last}] CPUs=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=c[1-{last}] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """It is up when `is_up`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self.folder = lab, folder
        self._running: list[subprocess.Popen[str]] = []
        (folder / "state").mkdir(parents=True)
        folder.chmod(0o755)
        self._names = Names(lab, folder / "hosts")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(controller=lab.address(0), folder=folder, last=lab.nodes - 1)
        )
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        said = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        self._begin(0, [found("munged"), "-F", "--force", f"--socket={folder}/munge.socket", *said])
        self._begin(0, [found("slurmctld"), "-D", "-i"])
        for node in range(1, lab.nodes):
            self._begin(node, [found("slurmd"), "-D"])

    def _begin(self, node: int, command: list[str]) -> None:
        with (self.folder / "daemons.log").open("a") as log:
            self._running.append(self.at(node, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def at(self, node: int, command: list[str], **options: object) -> subprocess.Popen[str]:
        """Run a program at a node."""
        return self._names.start(node, command, **{"env": self.environment, **options})

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands where the controller is, to its end."""
        process = self.at(0, list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, errors = process.communicate(timeout=120)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def is_up(self) -> bool:
        """Whether all nodes wait for jobs."""
        return self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split() == [
            f"c{node}" for node in range(1, self._lab.nodes)
        ]

    def submit(self, *options: str, script: str) -> str:
        """Hand in a batch script; the number of the job."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        handed_in = self.ask("sbatch", "--parsable", *options, str(path))
        assert handed_in.returncode == 0, handed_in.stderr
        return handed_in.stdout.strip()

    def state(self, job: str) -> str:
        """How Slurm says that a job is: RUNNING, COMPLETED, ..."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).stdout.split()
        return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")

    def close(self) -> None:
        """End all jobs, and then itself: who controls last, since the others tell it."""
        self.ask("scancel", "--state=RUNNING", "--full", "--signal=KILL", "--user=root")
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
