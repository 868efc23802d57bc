"""Who speaks something else at a node's port, at any time, ends nothing."""

import socket
import subprocess
import sys
import threading
import time

import pytest

from codedreduce.process.addresses import free_port
from tests.waiting import PATIENCE

#: Opens and closes the sockets of a node, one after the other, at one port: strangers come at every moment of that.
OPENS_AND_CLOSES = """
import sys, time
import zmq
from codedreduce.net import sockets
from codedreduce.net.limits import of_books, of_control
from codedreduce.timing import TIMING

kind, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
address = f"tcp://127.0.0.1:{port}"
end = time.monotonic() + seconds
while time.monotonic() < end:
    context = zmq.Context()
    if kind == "bound":
        sockets.bound(context, address, "node 1", of_control(TIMING))
    elif kind == "mutual":
        sockets.bound(context, address, "node 1", of_control(TIMING), name=b"1")
    else:
        socket, _ = sockets.answering(context, of_books(3, TIMING))
        assert not sockets.listen_at_too(socket, address)
    time.sleep(0.003)
    context.destroy(linger=0)
"""

#: What ZMTP 3 begins with, up to its version.
SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"

SAID = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(200),
    "ZMTP 1": b"\x05\x00abcd\x00\x03\x00hi",
    "ZMTP 2": SIGNATURE + b"\x01\x05\x00\x00\x00\x01\x00hi",
    "half a greeting": SIGNATURE + b"\x03\x01NU",
}


@pytest.mark.parametrize("kind", ["bound", "mutual", "answering"])
@pytest.mark.parametrize("what", SAID)
def test_what_is_no_greeting_is_turned_away(kind: str, what: str) -> None:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", OPENS_AND_CLOSES, kind, str(port), "2.5"])
    came = 0

    def keep_coming() -> None:
        nonlocal came
        while process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=0.2) as stranger:
                    stranger.sendall(SAID[what])
                    came += 1
            except OSError:
                time.sleep(0.0005)

    strangers = [threading.Thread(target=keep_coming) for _ in range(3)]
    for stranger in strangers:
        stranger.start()
    try:
        assert process.wait(timeout=PATIENCE) == 0, "the process was ended"
    finally:
        process.kill()
        for stranger in strangers:
            stranger.join()
    assert came > 20
