"""The Ray cluster: connect to it, and list its nodes and their resources."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from codedreduce._extras import require
from codedreduce.errors import UsageError
from codedreduce.ray.spots import in_words

#: Ray's variable with the address of a cluster; used if no address is given.
VARIABLE = "RAY_ADDRESS"

#: Timeout in seconds of a connection to an address.
ANSWERS_WITHIN = 5.0

#: The start of an HTTP/2 connection, with empty settings; and the type of settings frames (RFC 9113, 3.4, 6.5).
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = 4

#: Resources that Ray lists for every node, but that ranks do not request by default.
NOT_ASKED_FOR = ("object_store_memory", "memory")


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node of the cluster: its name, address and labels, and its total and free resources."""

    name: str
    address: str
    labels: dict[str, str] = field(default_factory=dict)
    has: dict[str, float] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"node {self.address} ({self.name[:8]})"

    def domain(self, label: str | None) -> str:
        """The domain with which it fails: the value of its label, or the node itself."""
        return str(self) if label is None else f"{label} {self.labels.get(label, '(none)')}"

    def in_words(self) -> str:
        """Its free resources as text."""
        kinds = [name for name in self.has if name not in NOT_ASKED_FOR and not name.startswith("node:")]
        return f"{self}: {in_words((name, self.free.get(name, 0.0)) for name in kinds)} free"


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster: the current one of this process, or the one at an address, until the end."""
    ray = require("ray", extra="ray")
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get(VARIABLE) or "auto"
    _check_answers(where)
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(_why_not(where, error)) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(where: str) -> None:
    """Check early that a cluster answers there: Ray itself would try for a minute."""
    if where == "auto":
        return
    if where.startswith("ray://"):
        raise UsageError(
            f"--address must be the address of the cluster's head (HOST:6379), not a client's {where}; from outside "
            "the cluster, run: ray job submit -- codedreduce run --on ray SCRIPT"
        )
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"the address of a Ray cluster must be HOST:PORT, got {where!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWERS_WITHIN) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _check_speaks(connection)
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).lower()
        raise UsageError(
            f"there is no Ray cluster at {where} ({why}); start one with: ray start --head --port={port}"
        ) from None


def _check_speaks(connection: socket.socket) -> None:
    """Raise `OSError` unless the peer answers as HTTP/2, as Ray's head does: with its settings."""
    connection.sendall(GREETING)
    answer = connection.recv(9, socket.MSG_WAITALL)
    if len(answer) < 9 or answer[3] != SETTINGS:
        raise OSError("the process there is not Ray")


def _why_not(where: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the Ray cluster at {where} has another version: {text}"
    if where == "auto":
        return f"no Ray cluster was found here ({text}); start one with `ray start --head`, or set --address"
    return f"cannot connect to the Ray cluster at {where}: {text}"


def nodes_of(ray: Any) -> dict[str, RayNode]:
    """The nodes that are up, by name."""
    free = ray._private.state.available_resources_per_node()
    return {
        one["NodeID"]: RayNode(
            name=one["NodeID"], address=one["NodeManagerAddress"], labels=dict(one.get("Labels") or {}),
            has=dict(one["Resources"]), free=dict(free.get(one["NodeID"], {})),
        )
        for one in ray.nodes()
        if one["Alive"]
    }  # fmt: skip
