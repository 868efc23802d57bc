"""What a worker can say of the sums that it made in a round that was audited: digests of all that went into them.

Digests are taken of numbers as they would be sent. They are of the last round that was audited, and can still be asked
for when others are on.
"""

from __future__ import annotations

from collections.abc import Iterable

from codedreduce.digests import digest_of_all
from codedreduce.packed import Packed
from codedreduce.protocol.messages import Account
from codedreduce.protocol.settings import Settings
from codedreduce.protocol.shares import Shares
from codedreduce.vectors import Vector


def digest_as_sent(chunks: Iterable[Vector | None], settings: Settings) -> bytes:
    """Of a vector, in one piece or in chunks, as it would be on its way."""
    if settings.wire is None:
        return digest_of_all(chunk for chunk in chunks if chunk is not None)
    wire = settings.wire

    def as_sent(chunk: Vector, index: int) -> Vector:
        exact = settings.exact if len(chunk) == settings.length else settings.exact_in(index)
        return Packed.of(chunk, wire, exact).raw

    return digest_of_all(as_sent(chunk, index) for index, chunk in enumerate(chunks) if chunk is not None)


def is_audited(round_: int, settings: Settings) -> bool:
    """Whether what is computed in a round is compared."""
    return settings.audit is not None and settings.audit.is_drawn(round_)


class Accounts:
    """A part of what a worker delivers: it is told of each unit and each sum that is made."""

    def __init__(self, node: int, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._of = (settings.generation, 0)  # the generation and round that was audited last
        self._is_on = False  # whether that is the one that is on
        self._own: tuple[bytes, tuple[int, ...]] = (b"", (node,))
        self._made: dict[int, Account] = {}

    def begin(self, generation: int, round_: int) -> None:
        """A task begins, in a round."""
        if self._settings.audit is None or (self._is_on and self._of == (generation, round_)):
            return
        self._is_on = is_audited(round_, self._settings)
        if self._is_on and self._of != (generation, round_):
            self._of = (generation, round_)
            self._made = {}

    def own(self, vector: Vector, by: tuple[int, ...]) -> None:
        """The unit that the worker computes itself is here, from whom it is; nothing is added to it yet."""
        if self._is_on:
            self._own = digest_as_sent([vector], self._settings), by

    def sum(self, task: int, total: Vector, shares: Shares | None) -> None:
        """A sum is made; of these shares, if it is not of the worker's own unit alone."""
        if self._is_on:
            generation, round_ = self._of
            own, own_by = self._own
            parts = ((share.task, share.by, digest_as_sent(share.chunks, self._settings)) for share in shares or ())
            self._made[task] = Account(
                generation=generation, round=round_, node=self._node, task=task, own=own, own_by=own_by,
                digest=digest_as_sent([total], self._settings), shares=tuple(parts),
            )  # fmt: skip

    def digest(self, task: int) -> bytes:
        """Of the sum of a task, if it was made in this round, and that is audited."""
        made = self._made.get(task) if self._is_on else None
        return made.digest if made is not None else b""

    def of(self, round_: int, task: int) -> Account | None:
        """What a sum was made of, if it is still known."""
        return self._made.get(task) if round_ == self._of[1] else None
