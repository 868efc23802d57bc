"""Chunks of vectors on the data plane: as bytes, or as references into shared memory.

A carrier sends what `pack` returns, and gets a chunk in two steps: `unpack` allocates no memory, so that the carrier
can check the message before `vector`.
"""

from __future__ import annotations

from codedreduce.errors import WireError
from codedreduce.memory.arena import Reference
from codedreduce.net.buffers import Buffers
from codedreduce.net.frames import REFERENCES, chunk_kind
from codedreduce.protocol import Settings
from codedreduce.protocol.core.messages import DATA, AnyMessage, RingChunk, StateChunk
from codedreduce.protocol.core.wire import decode
from codedreduce.vectors import Vector


class Chunks:
    """What vectors are on the wire between this node and its neighbours."""

    def __init__(self, settings: Settings, buffers: Buffers) -> None:
        self._settings = settings
        self._buffers = buffers

    def pack(self, message: AnyMessage, chunk: Vector, *, marked: bool) -> tuple[bytes, bytes | memoryview]:
        """The kind of a chunk's frames, and the second frame: a reference to its bytes, or the bytes."""
        reference = self._buffers.refer(chunk)
        if reference is not None:
            return chunk_kind(marked=marked, by_reference=True), reference
        return chunk_kind(marked=marked, by_reference=False), self._buffers.to_bytes(chunk, self._exact_in(message))

    def unpack(self, kind: bytes, header: bytes, payload: memoryview) -> tuple[AnyMessage, memoryview | Reference]:
        """A message and where its chunk is, after the size of that was checked."""
        reference = self._buffers.reference(payload) if kind in REFERENCES else None
        size = payload.nbytes if reference is None else reference.size
        return decode(header, size, self._settings.chunk_bytes), payload if reference is None else reference

    def vector(self, message: AnyMessage, chunk: memoryview | Reference) -> Vector:
        """The chunk of a message that its sender may send."""
        size = chunk.size if isinstance(chunk, Reference) else chunk.nbytes
        if isinstance(message, RingChunk) and size > self._settings.chunk_bytes(0):
            raise WireError(f"a ring chunk of {size} bytes; the largest has {self._settings.chunk_bytes(0)}")
        is_state = isinstance(message, StateChunk)
        if not isinstance(chunk, Reference):
            return self._buffers.from_bytes(chunk, self._exact_in(message), plain=is_state)
        if is_state:
            raise WireError("a piece of a state by reference")
        assert isinstance(message, DATA)
        return self._buffers.look_up(chunk, message.index)

    def _exact_in(self, message: AnyMessage) -> int:
        """The count of a message's numbers that travel unpacked."""
        if not isinstance(message, DATA) or isinstance(message, RingChunk | StateChunk):
            return 0
        return self._settings.exact_in(message.index)
