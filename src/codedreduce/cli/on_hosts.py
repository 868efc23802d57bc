"""`--hosts`: the processes of `codedreduce run` on other machines, over ssh."""

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

#: How hosts are come to, if --ssh does not say.
VARIABLE = "CODEDREDUCE_SSH"

Hosts = Annotated[
    str | None, typer.Option("--hosts", help="Over ssh on other machines: a:4,b:4 (four on each), or a FILE of hosts.")
]
Python = Annotated[
    str | None, typer.Option("--python", help="With --hosts: the Python there; this one's path, without.")
]
Ssh = Annotated[
    str | None,
    typer.Option("--ssh", help="With --hosts: the ssh command, as 'ssh -F FILE'; else CODEDREDUCE_SSH, or ssh."),
]


@dataclass(frozen=True, kw_only=True)
class OnHosts:
    """What --hosts, --python and --ssh say."""

    hosts: tuple[SshHost, ...]
    way: Way

    @classmethod
    def chosen(cls, hosts: str | None, python: str | None, ssh: str | None, *, in_lab: bool) -> OnHosts | None:
        """None if nothing is said."""
        if hosts is None:
            if python is not None or ssh is not None:
                raise UsageError("--python and --ssh say how --hosts are come to: name some, or leave them out")
            return None
        if in_lab:
            raise UsageError("--hosts are other machines, and --lab plays some on this one: say one of them")
        command = ssh or os.environ.get(VARIABLE) or "ssh"
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise UsageError(f"the ssh command {command!r} cannot be read: {error}") from None
        way = Way(ssh=words or ("ssh",), python=python or sys.executable, folder=os.getcwd())
        return cls(hosts=parse_hosts(hosts), way=way)

    @property
    def slots(self) -> int:
        """How many processes they take."""
        return sum(host.slots for host in self.hosts)

    def launch(self, what: Launch, show: Show) -> None:
        """Run it on these hosts, by the Python that is there."""
        with open_hosts(self.hosts, what.count, self.way, what.port) as placement:
            command = [self.way.python, *what.command[1:]]
            launch(replace(what, command=command, placement=placement, port=placement.port), show)
