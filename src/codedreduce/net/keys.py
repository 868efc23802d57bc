"""The keys of a process, and whom it lets in: CURVE, ZeroMQ's own encryption, on every connection by TCP.

A process makes a key pair when it begins, and shows the public key when it registers. Books of addresses have a pair
that is derived from the secret: who does not know it can neither talk to one nor pose as one. A book names the keys of
those who are in, by rank, and a node lets in only those, each as the rank that it was named as.

    a stranger    cannot make a first message that a book or a node can read: the connection is closed
    at a book     whoever can is asked for a proof of the secret beside its key (`rendezvous.directory`)
    at a node     a key that was named is let in as that rank; another waits a moment to be named, and is put off
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

#: Of a key, as ZeroMQ writes it.
KEY_CHARACTERS = 40

#: Where ZeroMQ asks who may come in.
ASKED_AT = "inproc://zeromq.zap.01"

#: What is asked about: somebody who comes to a book of addresses, or to a node's sockets.
BOOK, NODE = b"book", b"node"

#: Seconds that a key has to be named when its owner is there already; and how many may wait for that.
NAMED_WITHIN = 5.0
MOST_WAITING = 1000

#: In a registration, what is said with the secret.
REGISTERING = "registering"


class Pair(NamedTuple):
    """A key that is shown, and the one that belongs to it, as ZeroMQ writes them."""

    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return f"Pair({self.public.decode()}, hidden)"


def pair_of_books(secret: Secret) -> Pair:
    """The key pair of whoever answers where a run meets."""
    private = z85.encode(secret.derived("books of addresses"))
    return Pair(zmq.curve_public(private), private)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Somebody who is there and was not named yet."""

    to: list[bytes]
    request: bytes
    key: str
    until: float


class Guard:
    """What a process shows, and whom it lets in; it is asked in a thread of its own."""

    def __init__(self, context: Context, secret: Secret) -> None:
        self._secret = secret
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

    # -- what is shown

    @property
    def key(self) -> str:
        """What this process is known by."""
        return self._own.public.decode()

    def proof(self, run: str, node: int) -> bytes:
        """That this process knows the secret, for its key and as this node."""
        return self._secret.derived(REGISTERING, run.encode(), str(node).encode(), self._own.public)

    def is_proven(self, proof: bytes, run: str, node: int, key: str) -> bool:
        """Whether a process with this key knows the secret."""
        return self._secret.proves(proof, REGISTERING, run.encode(), str(node).encode(), key.encode())

    def listens(self, socket: Socket, *, as_book: bool = False) -> None:
        """What is bound from now on is a book's, or a node's."""
        socket.setsockopt(zmq.ZAP_DOMAIN, BOOK if as_book else NODE)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, (self._books if as_book else self._own).private)
        socket.setsockopt(zmq.CURVE_SERVER, 1)

    def connects(self, socket: Socket, key: str | None = None) -> None:
        """What is connected from now on leads to whoever has this key, or to a book."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._own.private)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._books.public if key is None else key.encode())

    # -- who is let in

    def name(self, node: int, key: str) -> None:
        """A book says that a node has this key now, and none that it had before."""
        with self._lock:
            before = self._keys.get(node)
            if before == key or self._is_over:
                return
            if before is not None:
                self._named.pop(before, None)
            self._keys[node] = key
            self._named[key] = node
            os.write(self._waker, b"\0")

    def key_of(self, node: int) -> str | None:
        """The key that a node was named with."""
        return self._keys.get(node)

    def _answer(self) -> None:
        """Answer ZeroMQ until it is over."""
        poller = zmq.Poller()
        poller.register(self._door, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        waiting: deque[_Asked] = deque()
        while not self._is_over:
            poller.poll(250 if waiting else None)
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
                    self._reply(asked, b"300", b"")  # it tries again by itself
                else:
                    waiting.append(asked)
        self._door.unbind(ASKED_AT)  # closing takes a while, and another guard of the context may come
        self._door.close(linger=0)

    def _new_ones(self) -> list[_Asked]:
        """Who has come since, and is to be named; who comes to a book is answered here."""
        found = []
        while self._door.poll(0):
            frames = self._door.recv_multipart(zmq.DONTWAIT)
            cut = frames.index(b"") + 1
            _, request, domain, _, _, mechanism, *shown = frames[cut:]
            key = z85.encode(shown[0]).decode() if mechanism == b"CURVE" and shown else ""
            asked = _Asked(frames[:cut], request, key, time.monotonic() + NAMED_WITHIN)
            if domain == DOMAIN and mechanism == b"NULL":  # by a file
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
        """Let nobody in any more; before the context is closed."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            os.write(self._waker, b"\0")
        self._thread.join(timeout=5)
        os.close(self._waker)
        os.close(self._woken)


def user_of(frame: zmq.Frame) -> str | None:
    """As whom the sender of a frame was let in, if it was asked."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None
