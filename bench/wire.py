"""What protecting chunks costs: between two processes by TCP, bare, with a seal (a digest), and with CURVE, in turns.

python -m bench.wire [--out bench/results/wire.json] [--repeats 5] [--megabytes 512] [--numbers 4000000]

Seconds of both processes' cores count, too: on a machine whose cores compute that is what is taken from them. Beside
it, what a connection for chunks costs until its first message is there; and rounds of a striped run of real processes
that compute nothing, by TCP on this machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zmq

from bench.measure import save
from codedreduce import Striped
from codedreduce.net.frames import Seal
from codedreduce.node.local import LocalCluster
from codedreduce.process.addresses import free_port
from codedreduce.process.secrets import Secret
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.world import World
from codedreduce.schemes import Piece

CHUNK = 1 << 20
BARE, DIGEST, CURVE = "bare", "in the clear, with a digest", "encrypted (CURVE)"
WAYS = (BARE, DIGEST, CURVE)
CONNECTIONS = 100

#: A run: how many ranks, and how many rounds of it are measured, after some that are not.
RANKS, ROUNDS, BEFORE = 2, 15, 3

#: A header, as nodes have it.
FIRST = b"\x00" + bytes(range(16)) + bytes(24)


def seal_of(way: str) -> Seal | None:
    """What chunks are sealed with."""
    return Seal(0, 1, 1) if way == DIGEST else None


def socket_of(context: zmq.Context[Any], kind: int, keys: tuple[bytes, bytes] | None, server: bytes = b"") -> Any:
    """A socket, which has keys if links are encrypted; the one that listens is known by its key."""
    socket = context.socket(kind)
    socket.linger = 0
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = keys
        if server:
            socket.curve_serverkey = server
        else:
            socket.curve_server = True
    return socket


def send(port: int, way: str, server: bytes, chunks: int, said: Any) -> None:
    """In another process: connect, send all, and tell what that took of a core."""
    context = zmq.Context()
    socket = socket_of(context, zmq.DEALER, zmq.curve_keypair() if way == CURVE else None, server)
    socket.connect(f"tcp://127.0.0.1:{port}")
    chunk, seal = bytes(CHUNK), seal_of(way)
    socket.send(b"")
    socket.recv()
    began = time.process_time()
    for _ in range(chunks):
        socket.send(FIRST if seal is None else seal.put(FIRST, chunk, counts=True), zmq.SNDMORE)
        socket.send(chunk, copy=False)
    socket.recv()
    said.send(time.process_time() - began)
    context.destroy()


def carry(way: str, megabytes: int) -> dict[str, float]:
    """Megabytes a second, and what a gigabyte takes of the cores of both ends."""
    context = zmq.Context()
    keys = zmq.curve_keypair() if way == CURVE else None
    socket = socket_of(context, zmq.ROUTER, keys)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    here, there = multiprocessing.Pipe()
    chunks = megabytes * 10**6 // CHUNK
    process = multiprocessing.Process(target=send, args=(port, way, keys[0] if keys else b"", chunks, there))
    process.start()
    name, _ = socket.recv_multipart()
    began, used = time.monotonic(), time.process_time()
    seal = seal_of(way)
    socket.send_multipart([name, b""])
    for _ in range(chunks):
        _, first, chunk = socket.recv_multipart(copy=False)
        if seal is not None:
            seal.check_place(*seal.take_off(first.bytes, chunk.buffer))
    seconds, used = time.monotonic() - began, time.process_time() - used
    socket.send_multipart([name, b""])
    used += here.recv()
    process.join()
    context.destroy()
    sent = chunks * CHUNK
    return {"megabytes a second": sent / seconds / 1e6, "core seconds a gigabyte": used / sent * 1e9}


def connect(way: str) -> float:
    """Milliseconds of a core that a connection costs, both ends, until its first message is there."""
    context = zmq.Context()
    keys = zmq.curve_keypair() if way == CURVE else None
    server = socket_of(context, zmq.ROUTER, keys)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    began = time.process_time()
    for _ in range(CONNECTIONS):
        client = socket_of(context, zmq.DEALER, zmq.curve_keypair() if keys else None, keys[0] if keys else b"")
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"")
        server.recv_multipart()
        client.close()
    used = time.process_time() - began
    context.destroy(linger=0)
    return 1000 * used / CONNECTIONS


def nothing(piece: Piece, model: Any, round_: int, out: Any, node: int) -> None:
    """A gradient that takes no time."""
    out[:] = 1


def run(way: str, numbers: int) -> dict[str, float]:
    """Milliseconds of a round, and of all cores for it, of a run whose vectors have so many numbers."""
    at = Meeting(
        run=f"codedreduce-wire-{time.monotonic_ns()}", port=free_port(), same_machine=False, shared_memory=False,
        insecure=way == DIGEST, secret=None if way == DIGEST else Secret.fresh(),
    )  # fmt: skip
    made = Run.of(at, Striped(RANKS).plan(samples=RANKS), numbers)
    model, taken, used = np.zeros(numbers, np.float32), [], 0.0
    with LocalCluster(made, nothing, member=lambda world: _begin(world, numbers)) as cluster:
        processes = [psutil.Process(pid) for pid in (os.getpid(), *cluster.processes.values())]
        for number in range(BEFORE + ROUNDS):
            if number == BEFORE:
                used = sum(sum(one.cpu_times()[:2]) for one in processes)
            began = time.monotonic()
            cluster.aggregate(model)
            taken.append(time.monotonic() - began)
        used = sum(sum(one.cpu_times()[:2]) for one in processes) - used
    return {
        "milliseconds a round": 1000 * statistics.median(taken[BEFORE:]),
        "core milliseconds a round": 1000 * used / ROUNDS,
    }


def _begin(world: World, numbers: int) -> None:
    """What the other ranks do."""
    model = np.zeros(numbers, np.float32)
    for _ in range(BEFORE + ROUNDS):
        world.aggregate(model)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--numbers", type=int, default=4_000_000)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            row = {**carry(way, options.megabytes), "milliseconds a connection": connect(way)}
            found[way].append(row | (run(way, options.numbers) if way != BARE else {}))
    table = {
        way: {what: statistics.median(one[what] for one in rows) for what in rows[0]} for way, rows in found.items()
    }
    for way, row in table.items():
        print(f"{way}: " + ", ".join(f"{value:.3g} {what}" for what, value in row.items()))
    if options.out is not None:
        save(options.out, {"medians": table, "runs": found})


if __name__ == "__main__":
    main()
