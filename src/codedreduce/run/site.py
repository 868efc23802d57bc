"""Where the processes of a run are placed, if not all on this host: for example the nodes of a lab."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Protocol

from codedreduce.process.addresses import free_port
from codedreduce.process.secrets import Secret, find_secret, is_insecure
from codedreduce.run.agreement import Meeting


class Site(Protocol):
    """Nodes with their own addresses, to which a process of this host can move."""

    def address(self, node: int) -> str:
        """A node's address; the root is node 0."""

    def enter(self, node: int) -> None:
        """Move the calling thread, and all that it starts, to a node."""

    def at(self, node: int) -> AbstractContextManager[None]:
        """Move the calling thread to a node and back; sockets that it opens stay there."""


def port_at(site: Site) -> int:
    """A port that is free at the root of a site."""
    with site.at(0):
        return free_port()


def meeting_at(site: Site, run: str) -> Meeting:
    """The rendezvous of a run on a site: by TCP."""
    insecure = is_insecure(os.environ)
    return Meeting(
        run=run, host=site.address(0), port=port_at(site), same_machine=False, shared_memory=False, insecure=insecure,
        secret=None if insecure else find_secret(os.environ) or Secret.fresh(),
    )  # fmt: skip
