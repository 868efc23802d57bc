"""Frames that are none: random, mutated, truncated, replayed; and messages that can be read and should not be said."""

from __future__ import annotations

import zlib
from collections import deque
from random import Random
from typing import Any

import msgspec

from codedreduce.net.connections import Endpoints
from codedreduce.net.frames import ACKNOWLEDGEMENT, MARKED, OPEN, OPEN_ASKING, PLAIN
from codedreduce.net.keys import Guard
from codedreduce.net.rendezvous.registration import Registration, Standing
from codedreduce.protocol.core.messages import DATA, AnyMessage
from codedreduce.protocol.core.wire import encode
from codedreduce.run.agreement import Meeting
from tests.unit.peers import MESSAGES

#: Numbers at which something may be one off.
ODD = (0, 1, 2, 3, 4, 7, 8, 99, 255, 256, 4096, 2**16, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, -1)

#: Frames that are kept to be sent again.
REPLAYED = 256

Frames = tuple[bytes, ...]


class Mutations:
    """An endless supply, drawn by a seed: the same seed gives the same frames, if it is told the same."""

    def __init__(self, seed: int, chunk_bytes: int) -> None:
        self.random = Random(seed)
        self._chunk_bytes = chunk_bytes
        self._past: deque[Frames] = deque(maxlen=REPLAYED)

    def frames(self, tag: bytes | None = None) -> Frames:
        """A message as it is on a socket, of this session if one is named."""
        random = self.random
        if self._past and random.random() < 0.1:
            return random.choice(self._past)
        made = random.choice((self._random, self._message, self._message, self._odd_message, self._session))(tag)
        if random.random() < 0.5:
            made = self._mutated(made)
        self._past.append(made)
        return made

    def registration(self, meeting: Meeting, nodes: int, guard: Guard | None = None) -> Frames:
        """What somebody may say where the run meets; never what a node of this run would.

        Who has the secret (`guard`) mostly shows a key, and proves it, and says that it came to train the same.
        """
        random = self.random
        if random.random() < 0.2:
            return self._random(None)
        places = ["tcp://127.0.0.1:1", "ipc://@nobody", "tcp://", "x" * 300, "tcp://127.0.0.1:*", "\0"]
        said = Registration(
            run=random.choice((meeting.run, "another", "")), node=random.choice((*ODD, *range(nodes))),
            seeks=tuple(random.choice(ODD) for _ in range(random.randrange(4))),
            listens=random.choice((None, Endpoints(random.choice(places), random.choice(places)))),
            subject="another plan", process=random.choice(ODD),
            standing=Standing(random.choice(ODD), random.choice(ODD), random.choice(ODD), random.random() < 0.5),
        )  # fmt: skip
        if guard is not None and random.random() < 0.9:
            proof = random.choice((guard.proof(said.run, said.node), guard.proof("", 0), random.randbytes(32)))
            subject = random.choice((meeting.subject, "another plan"))
            said = msgspec.structs.replace(said, key=guard.key, proof=proof, subject=subject)
        made = (msgspec.msgpack.encode(said),)
        return self._mutated(made) if random.random() < 0.3 else made

    # -- what is sent

    def _random(self, tag: bytes | None) -> Frames:
        sizes = (0, 1, 16, 17, 18, 40, 300, 5000)
        return tuple(self.random.randbytes(self.random.choice(sizes)) for _ in range(self.random.randrange(1, 5)))

    def _session(self, tag: bytes | None) -> Frames:
        kind = self.random.choice((OPEN, OPEN_ASKING, ACKNOWLEDGEMENT))
        counts = (b"", self.random.randbytes(8), bytes(8), b"\xff" * 8)
        return (kind + self._tag(tag) + (self.random.choice(counts) if kind == ACKNOWLEDGEMENT else b""),)

    def _message(self, tag: bytes | None) -> Frames:
        return self._framed(encode(self.random.choice(MESSAGES)), self.random.choice(MESSAGES), tag)

    def _odd_message(self, tag: bytes | None) -> Frames:
        """Well-formed, with a checksum that is right, and numbers that may not be."""
        message = self.random.choice(MESSAGES)
        fields: list[Any] = list(msgspec.to_builtins(message))
        for place, value in enumerate(fields[1:], start=1):
            if self.random.random() < 0.4:
                fields[place] = self._odd(value)
        body = msgspec.msgpack.encode(fields)
        return self._framed(b"\x01" + zlib.crc32(body).to_bytes(4, "big") + body, message, tag)

    def _odd(self, value: object) -> object:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self.random.choice(ODD)
        if isinstance(value, float):
            return self.random.choice((0.0, -1.0, 1e300, 5e-324, float("inf"), float("nan")))
        if isinstance(value, str):
            return self.random.choice(("", "x" * 1001, "\0"))
        if isinstance(value, list | tuple):
            odd = [one if isinstance(one, list | tuple) else self._odd(one) for one in value]
            return odd * self.random.choice((0, 1, 2, 50))
        return None

    def _framed(self, header: bytes, message: AnyMessage, tag: bytes | None) -> Frames:
        first = (
            self.random.choice((PLAIN, PLAIN, MARKED, bytes([self.random.randrange(256)]))) + self._tag(tag) + header
        )
        if not isinstance(message, DATA):
            return (first,)
        size = self.random.choice((self._chunk_bytes, self._chunk_bytes, 0, 4, 7, 40, 2 * self._chunk_bytes))
        return (first, self.random.randbytes(size))

    def _tag(self, tag: bytes | None) -> bytes:
        if tag is not None and self.random.random() < 0.9:
            return tag
        return self.random.choice((bytes(16), self.random.randbytes(16), self.random.randbytes(8) + bytes(8)))

    # -- what is done to it

    def _mutated(self, frames: Frames) -> Frames:
        made = list(frames)
        for _ in range(self.random.randrange(1, 4)):
            where = self.random.randrange(len(made))
            change = self.random.choice((self._flipped, self._cut, self._longer, self._twice))
            made[where : where + 1] = change(made[where])
        return tuple(made)

    def _flipped(self, frame: bytes) -> list[bytes]:
        if not frame:
            return [frame]
        changed = bytearray(frame)
        changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
        return [bytes(changed)]

    def _cut(self, frame: bytes) -> list[bytes]:
        return [frame[: self.random.randrange(len(frame) + 1)]]

    def _longer(self, frame: bytes) -> list[bytes]:
        more = 70_000 if self.random.random() < 0.02 else self.random.choice((1, 4, 100))
        return [frame + self.random.randbytes(more)]

    def _twice(self, frame: bytes) -> list[bytes]:
        return [frame, frame]
