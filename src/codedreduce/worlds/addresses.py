"""Addresses and ports of this machine."""

from __future__ import annotations

import ipaddress
import socket


def free_port() -> int:
    """A port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_address(host: str, port: int) -> str:
    """The address this machine has on the way to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port or 1))
        return str(probe.getsockname()[0])


def numeric(host: str) -> str:
    """ZeroMQ wants numbers where it can have them."""
    return "127.0.0.1" if host == "localhost" else host


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine has."""
    try:
        return ipaddress.ip_address(numeric(host)).is_loopback
    except ValueError:
        return False
