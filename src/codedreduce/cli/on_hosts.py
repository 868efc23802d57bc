"""`--hosts`: the processes of `codedreduce run` on other hosts, over ssh."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from codedreduce.errors import UsageError
from codedreduce.launch.launcher import Launch, launch
from codedreduce.launch.showing import Show
from codedreduce.launch.ssh import SshHost, Way, open_hosts, parse_hosts

#: Environment variable with the ssh command, used without --ssh.
VARIABLE = "CODEDREDUCE_SSH"

Hosts = Annotated[
    str | None,
    typer.Option("--hosts", help="Start processes on other hosts over ssh: a:4,b:4 (four on each), or a FILE."),
]
Python = Annotated[
    str | None, typer.Option("--python", help="With --hosts: path of Python on the hosts; default the local path.")
]
Ssh = Annotated[
    str | None,
    typer.Option("--ssh", help="With --hosts: ssh command, as 'ssh -F FILE'; default CODEDREDUCE_SSH, or ssh."),
]


@dataclass(frozen=True, kw_only=True)
class OnHosts:
    """The values of --hosts, --python and --ssh."""

    hosts: tuple[SshHost, ...]
    way: Way

    @classmethod
    def chosen(cls, hosts: str | None, python: str | None, ssh: str | None, *, in_lab: bool) -> OnHosts | None:
        """The chosen hosts; None without --hosts."""
        if hosts is None:
            if python is not None or ssh is not None:
                raise UsageError("--python and --ssh need --hosts: specify hosts, or leave the two out")
            return None
        if in_lab:
            raise UsageError("--hosts (other hosts) and --lab (this host) exclude each other: specify only one")
        command = ssh or os.environ.get(VARIABLE) or "ssh"
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise UsageError(f"cannot parse the ssh command {command!r}: {error}") from None
        way = Way(ssh=words or ("ssh",), python=python or sys.executable, folder=os.getcwd())
        return cls(hosts=parse_hosts(hosts), way=way)

    @property
    def slots(self) -> int:
        """The number of processes that fit on the hosts."""
        return sum(host.slots for host in self.hosts)

    def launch(self, what: Launch, show: Show) -> None:
        """Run on these hosts, with their Python."""
        with open_hosts(self.hosts, what.count, self.way, what.port) as placement:
            command = [self.way.python, *what.command[1:]]
            launch(replace(what, command=command, placement=placement, port=placement.port), show)
