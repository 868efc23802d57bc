"""The keys of a process, and which peers it admits: CURVE, ZeroMQ's own encryption, on every TCP connection.

A process makes a key pair when it starts, and sends the public key when it registers. Directories have a pair that is
derived from the secret: without the secret, a process can neither talk to a directory nor pose as one. A directory
distributes the members' keys by rank. A node admits only those keys, each as the rank that the directory gave for it.

    a stranger        cannot make a first message that a directory or a node can read: the connection is closed
    at a directory    a registration must also prove the secret, for its key (`rendezvous.directory`)
    at a node         a key that a directory has named is admitted as that rank; another key waits a moment to be named,
                      and is then put off
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import zmq
from zmq.utils import z85

from codedreduce.net.sockets import DOMAIN, Context, Socket
from codedreduce.process.secrets import Secret
from codedreduce.timing import Timing, milliseconds

#: Length of a key, as ZeroMQ writes it.
KEY_CHARACTERS = 40

#: Where ZeroMQ sends its authentication (ZAP) requests.
ASKED_AT = "inproc://zeromq.zap.01"

#: What a request is for: a connection to a directory, or to a node's sockets.
BOOK, NODE = b"book", b"node"

#: The number of requests that may wait for their keys to be named.
MOST_WAITING = 1000

#: The purpose of the proof in a registration.
REGISTERING = "registering"


class Pair(NamedTuple):
    """A public key and its private key, as ZeroMQ writes them."""

    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return f"Pair({self.public.decode()}, hidden)"


def pair_of_books(secret: Secret) -> Pair:
    """The key pair of every directory of a run."""
    private = z85.encode(secret.derived("books of addresses"))
    return Pair(zmq.curve_public(private), private)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request with a key that no directory has named yet."""

    to: list[bytes]
    request: bytes
    key: str
    until: float


class Guard:
    """A process's own keys, and the keys that it admits; answers ZAP requests in its own thread."""

    def __init__(self, context: Context, secret: Secret, timing: Timing) -> None:
        self._secret = secret
        self._timing = timing
        self._own = Pair(*zmq.curve_keypair())
        self._books = pair_of_books(secret)
        self._named: dict[str, int] = {}  # by key
        self._keys: dict[int, str] = {}  # by rank
        self._lock = threading.Lock()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        self._is_over = False
        self._door: Socket = context.socket(zmq.ROUTER)
        self._door.setsockopt(zmq.LINGER, 0)
        self._door.bind(ASKED_AT)
        self._thread = threading.Thread(target=self._answer, daemon=True, name="codedreduce-guard")
        self._thread.start()

    # -- this process's own keys

    @property
    def key(self) -> str:
        """The public key of this process."""
        return self._own.public.decode()

    def proof(self, run: str, node: int) -> bytes:
        """Proof that this process knows the secret, for its key and this node number."""
        return self._secret.derived(REGISTERING, run.encode(), str(node).encode(), self._own.public)

    def is_proven(self, proof: bytes, run: str, node: int, key: str) -> bool:
        """Whether a process with this key knows the secret."""
        return self._secret.proves(proof, REGISTERING, run.encode(), str(node).encode(), key.encode())

    def listens(self, socket: Socket, *, as_book: bool = False) -> None:
        """The next bind of this socket is a directory's, or a node's."""
        socket.setsockopt(zmq.ZAP_DOMAIN, BOOK if as_book else NODE)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, (self._books if as_book else self._own).private)
        socket.setsockopt(zmq.CURVE_SERVER, 1)

    def connects(self, socket: Socket, key: str | None = None) -> None:
        """The next connection leads to the owner of this key, or to a directory."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._own.private)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._books.public if key is None else key.encode())

    # -- admission

    def name(self, node: int, key: str) -> None:
        """A directory reports this node's key, which replaces the one before."""
        with self._lock:
            before = self._keys.get(node)
            if before == key or self._is_over:
                return
            if before is not None:
                self._named.pop(before, None)
            self._keys[node] = key
            self._named[key] = node
            os.write(self._waker, b"\0")

    def _answer(self) -> None:
        """Answer ZeroMQ until the guard is closed."""
        poller = zmq.Poller()
        poller.register(self._door, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        waiting: deque[_Asked] = deque()
        while not self._is_over:
            poller.poll(milliseconds(self._timing.poll_interval) if waiting else None)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            waiting.extend(self._new_ones())
            now = time.monotonic()
            for _ in range(len(waiting)):
                asked = waiting.popleft()
                node = self._named.get(asked.key)
                if node is not None:
                    self._reply(asked, b"200", str(node).encode())
                elif now > asked.until or len(waiting) >= MOST_WAITING:
                    self._reply(asked, b"300", b"")  # ZeroMQ tries again by itself
                else:
                    waiting.append(asked)
        self._door.unbind(ASKED_AT)  # closing takes a while, and the context may get another guard
        self._door.close(linger=0)

    def _new_ones(self) -> list[_Asked]:
        """New requests for a node's sockets; requests for a directory are answered here."""
        found = []
        while self._door.poll(0):
            frames = self._door.recv_multipart(zmq.DONTWAIT)
            cut = frames.index(b"") + 1
            _, request, domain, _, _, mechanism, *shown = frames[cut:]
            key = z85.encode(shown[0]).decode() if mechanism == b"CURVE" and shown else ""
            asked = _Asked(frames[:cut], request, key, time.monotonic() + self._timing.key_timeout)
            if domain == DOMAIN and mechanism == b"NULL":  # through a file
                self._reply(asked, b"200", b"")
            elif not key:
                self._reply(asked, b"400", b"")
            elif domain == BOOK:
                self._reply(asked, b"200", key.encode())
            else:
                found.append(asked)
        return found

    def _reply(self, asked: _Asked, status: bytes, user: bytes) -> None:
        self._door.send_multipart([*asked.to, b"1.0", asked.request, status, b"", user, b""])

    def close(self) -> None:
        """Admit no further peer. Call this before the context is closed."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            os.write(self._waker, b"\0")
        self._thread.join(timeout=self._timing.exit_timeout)
        os.close(self._waker)
        os.close(self._woken)


def user_of(frame: zmq.Frame) -> str | None:
    """The user name under which the sender of a frame was admitted; None if it was not authenticated."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None
