"""Where the processes of a run are placed, if not all on this host: for example the nodes of a lab."""

from __future__ import annotations

import os
import uuid
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


def meeting_at(site: Site, run: str = "") -> Meeting:
    """The rendezvous of a run on a site: by TCP, at a port that is free at its root."""
    with site.at(0):
        port = free_port()
    run = run or f"codedreduce-{uuid.uuid4().hex[:8]}"
    insecure = is_insecure(os.environ)
    return Meeting(
        run=run, host=site.address(0), port=port, same_machine=False, shared_memory=False, insecure=insecure,
        secret=None if insecure else find_secret(os.environ) or Secret.fresh(),
    )  # fmt: skip
