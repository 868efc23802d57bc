"""What strangers cost a run: rounds while nobody disturbs it, and while somebody does, in turns.

python -m bench.strangers [--out bench/results/strangers.json] [--windows 5] [--seconds 4]

Nodes on one machine, with 5 ms of computing a round and every sum compared: over local sockets, and with keys over TCP.
The strangers, who have none, are a process of their own with the least priority: 1,000 connections that say nothing and
are made again when they are cut; a connection to every socket that sends a byte a second; hellos and registrations as
fast as they are taken. Beside it, what it costs to look at a frame, without the socket.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import zmq
from tests.fuzz.runs import PLANS, Checked
from tests.fuzz.strangers import BOOK, CONTROL, Context, Stranger, doors, plain_connection

from bench.measure import save
from codedreduce.net.buffers import Buffers
from codedreduce.net.carrier import Arrived, Carrier
from codedreduce.net.connections import name_of
from codedreduce.net.frames import OPEN_ASKING, PLAIN
from codedreduce.net.rendezvous.registration import Registration
from codedreduce.node.local import LocalCluster
from codedreduce.protocol.core.messages import Hello, ShareChunk
from codedreduce.protocol.core.wire import encode
from codedreduce.protocol.rights import rights_at
from codedreduce.schemes import Piece

IDLE, SLOW, HELLOS = "1,000 idle connections", "a byte a second", "a flood of hellos"
HOW = (IDLE, SLOW, HELLOS)

COMPUTES = 0.005
CONNECTIONS = 1000


class Busy(Checked):
    """A run whose gradients take a while, as on a device of their own."""

    def _gradient(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        super()._gradient(piece, model, round_, out, node)
        time.sleep(COMPUTES / 4)  # a unit is up to four pieces


# -- the strangers


def disturb(how: str, run: str, addresses: list[tuple[str, str]]) -> None:
    """Disturb a run until this process is ended."""
    os.nice(19)
    {IDLE: idle, SLOW: slow, HELLOS: hellos}[how](run, addresses)


def idle(run: str, addresses: list[tuple[str, str]]) -> None:
    """Connections that say nothing; one that is cut is made again, after a moment."""
    kept = [plain_connection(addresses[i % len(addresses)][1]) for i in range(CONNECTIONS)]
    while True:
        time.sleep(1.0)
        for number, one in enumerate(kept):
            one.setblocking(False)
            try:
                while data := one.recv(4096):
                    del data
                one.close()
                kept[number] = plain_connection(addresses[number % len(addresses)][1])
            except BlockingIOError:
                continue
            except OSError:
                one.close()
                kept[number] = plain_connection(addresses[number % len(addresses)][1])


def slow(run: str, addresses: list[tuple[str, str]]) -> None:
    """A byte of ZeroMQ's greeting every second, at every socket."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    kept = {address: plain_connection(address) for _, address in addresses}
    for turn in range(10**9):
        time.sleep(1.0)
        for address, one in kept.items():
            try:
                one.send(greeting[turn % len(greeting) :][:1])
            except OSError:
                one.close()
                kept[address] = plain_connection(address)


def hellos(run: str, addresses: list[tuple[str, str]]) -> None:
    """As many as are taken; who is cut comes again."""
    context: Context = zmq.Context()
    strangers = [(plane, Stranger(context, address, name_of(0x7F000001))) for plane, address in addresses]
    opening = OPEN_ASKING + os.urandom(8) + bytes(8)
    said = PLAIN + os.urandom(16) + encode(Hello(plan="the same"))
    registration = msgspec.msgpack.encode(Registration(run, 1, (0,), None, "the same"))
    while True:
        sent = 0
        for plane, one in strangers:
            for frame in (registration,) if plane == BOOK else (opening, said):
                sent += one.send(frame)
            while one.hear() is not None:
                pass
        if not sent:
            time.sleep(0.0005)


# -- the run


def places(run: Busy, cluster: LocalCluster) -> list[tuple[str, str]]:
    """Where a run can be reached, and what is there."""
    if not run.has_keys:
        return [(plane, at) for (_, plane), at in doors(run.run).items()]
    meets_at, found = run.run.meeting.address, []
    for pid in (os.getpid(), *cluster.processes.values()):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                at = f"tcp://127.0.0.1:{connection.laddr.port}"
                found.append((BOOK if meets_at.endswith(f":{connection.laddr.port}") else CONTROL, at))
    return found


def windows(kind: str, how: str, count: int, seconds: float, *, has_keys: bool) -> dict[str, Any]:
    """Rounds a second, calm and disturbed in turns."""
    run = Busy(kind, has_keys=has_keys)
    rates: tuple[list[float], list[float]] = ([], [])
    with run.cluster() as cluster:
        for _ in range(20):
            run.round(cluster)
        order = msgspec.json.encode([how, run.run.meeting.run, places(run, cluster)])
        for _ in range(count):
            for disturbed in (False, True):
                command = [sys.executable, "-m", "bench.strangers", "--disturb", order.decode()]
                other = subprocess.Popen(command) if disturbed else None
                time.sleep(1.5 if disturbed else 0.2)
                begin, before = time.monotonic(), run.done
                while time.monotonic() < begin + seconds:
                    run.round(cluster)
                rates[disturbed].append((run.done - before) / (time.monotonic() - begin))
                if other is not None:
                    assert other.poll() is None, "the strangers have gone"
                    other.send_signal(signal.SIGKILL)
                    other.wait()
    ratios = [one / calm for calm, one in zip(*rates, strict=True)]
    return {
        "kind": kind, "keys": has_keys, "how": how,
        "calm": statistics.median(rates[0]), "disturbed": statistics.median(rates[1]),
        "ratio": statistics.median(ratios), "worst": min(ratios),
    }  # fmt: skip


def checks(repeats: int = 20_000) -> dict[str, float]:
    """Seconds that it takes to look at a chunk's frames and at a small message's, and at its right alone."""
    run = Checked("tree").run
    context: Context = zmq.Context()
    parent = Carrier(context, 0, run.settings, Buffers(run, 0), rights_at(0, run.plan))
    parent.listen(run.meeting.listen_at())
    link = parent._links[1]
    body = encode(ShareChunk(round=1, task=1, index=0))
    frames = [zmq.Frame(PLAIN + link.session.incoming + body), zmq.Frame(bytes(run.settings.chunk_bytes(0)))]
    small = [zmq.Frame(PLAIN + link.session.incoming + encode(Hello(plan="x")))]
    link.session._is_up = True
    found = {}
    for name, plane, said in (("chunk", 1, frames), ("small", 0, small)):
        begin = time.perf_counter()
        for _ in range(repeats):
            arrived = parent._read(link.planes[plane], said)
        found[name] = (time.perf_counter() - begin) / repeats
        assert isinstance(arrived, Arrived)
        message = arrived.message
        assert message is not None
        begin = time.perf_counter()
        for _ in range(repeats):
            parent._check(link, plane, message)
        found[f"{name}: its right"] = (time.perf_counter() - begin) / repeats
    context.destroy(linger=0)
    return found


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--kinds", default=",".join(PLANS))
    parser.add_argument("--disturb", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.disturb:
        disturb(*msgspec.json.decode(options.disturb, type=tuple[str, str, list[tuple[str, str]]]))
        return
    costs = checks()
    print("microseconds a frame: " + ", ".join(f"{name} {1e6 * took:.2f}" for name, took in costs.items()), flush=True)
    rows = []
    for kind, has_keys, how in product(options.kinds.split(","), (False, True), HOW):
        row = windows(kind, how, options.windows, options.seconds, has_keys=has_keys)
        rows.append(row)
        rates = f"{row['calm']:.0f} rounds/s calm, {row['disturbed']:.0f} disturbed"
        what = f"{kind}{' with keys' if has_keys else ''}, {how}"
        print(f"{what}: {rates}: {row['ratio']:.2f} of it, at worst {row['worst']:.2f}", flush=True)
    save(options.out, {"checks": costs, "rows": rows})


if __name__ == "__main__":
    main()
