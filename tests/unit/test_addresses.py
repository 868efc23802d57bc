"""Ports that are drawn for a run before anybody listens at them."""

from __future__ import annotations

import socket

import pytest

from codedreduce.errors import UsageError
from codedreduce.process import addresses
from codedreduce.process.addresses import FIRST_PORT, PORTS, free_port


def test_ports_are_drawn_below_those_that_systems_hand_out() -> None:
    drawn = {free_port() for _ in range(50)}
    assert len(drawn) > 40
    assert all(FIRST_PORT <= port < FIRST_PORT + PORTS for port in drawn)


def test_a_port_at_which_somebody_listens_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        numbers = iter([taken.getsockname()[1] - FIRST_PORT, free - FIRST_PORT])
        monkeypatch.setattr(addresses.secrets, "randbelow", lambda count: next(numbers))
        assert free_port() == free


def test_that_none_is_free_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        number = taken.getsockname()[1] - FIRST_PORT
        monkeypatch.setattr(addresses.secrets, "randbelow", lambda count: number)
        with pytest.raises(UsageError, match="no port from 20000 to 31999 is free; set MASTER_PORT"):
            free_port()
