"""What encryption costs: chunks between two processes by TCP, in the clear and with CURVE, in turns.

python -m bench.wire [--out bench/results/wire.json] [--repeats 5] [--megabytes 512]

Seconds of both processes' cores count, too: on a machine whose cores compute that is what is taken from them. Beside
it, what a connection costs until its first message is there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import zmq

from bench.measure import save

CHUNK = 1 << 20
WAYS = ("in the clear", "CURVE")
CONNECTIONS = 100


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
    socket = socket_of(context, zmq.DEALER, zmq.curve_keypair() if way == "CURVE" else None, server)
    socket.connect(f"tcp://127.0.0.1:{port}")
    chunk = bytes(CHUNK)
    socket.send(b"")
    socket.recv()
    began = time.process_time()
    for _ in range(chunks):
        socket.send(chunk, copy=False)
    socket.recv()
    said.send(time.process_time() - began)
    context.destroy()


def carry(way: str, megabytes: int) -> dict[str, float]:
    """Megabytes a second, and what a gigabyte takes of the cores of both ends."""
    context = zmq.Context()
    keys = zmq.curve_keypair() if way == "CURVE" else None
    socket = socket_of(context, zmq.ROUTER, keys)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    here, there = multiprocessing.Pipe()
    chunks = megabytes * 10**6 // CHUNK
    process = multiprocessing.Process(target=send, args=(port, way, keys[0] if keys else b"", chunks, there))
    process.start()
    name, _ = socket.recv_multipart()
    began, used = time.monotonic(), time.process_time()
    socket.send_multipart([name, b""])
    for _ in range(chunks):
        socket.recv_multipart(copy=False)
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
    keys = zmq.curve_keypair() if way == "CURVE" else None
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


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            found[way].append({**carry(way, options.megabytes), "milliseconds a connection": connect(way)})
    table = {
        way: {what: statistics.median(one[what] for one in rows) for what in rows[0]} for way, rows in found.items()
    }
    for way, row in table.items():
        print(f"{way}: " + ", ".join(f"{value:.3g} {what}" for what, value in row.items()))
    if options.out is not None:
        save(options.out, {"medians": table, "runs": found})


if __name__ == "__main__":
    main()
