"""What audits ask of a rank: to say the digests of some blocks, and to send what they are in when they have passed.

Of a block that is audited whoever computes it says the digest, and so does somebody who computes it beside. While one
that this rank computed has not passed, it sends nothing: what it does may be wrong. In an audited round it sends
nothing before one has passed, either: if it has computed none, since what it was given, or what was left of it, has
none in it, it computes one that others do as well. So nothing that is found to be wrong has ever left the rank that
computed it, and a rank that is always wrong sends nothing in such a round.
"""

from __future__ import annotations

from msgspec.structs import replace

from codedreduce.protocol.core.blocks import Block
from codedreduce.protocol.core.messages import Checked
from codedreduce.protocol.core.mistakes import Mistakes
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import Part, StripedPlan


class AuditChecks:
    """A rank's side of the audits of the round that is on."""

    def __init__(self, position: RankPosition, plan: StripedPlan, settings: Settings) -> None:
        self._position = position
        self._plan = plan
        self._audit = settings.audit
        self.mistakes = Mistakes(settings)
        self._said: dict[Block, Checked] = {}
        self._pending: dict[Block, bytes] = {}
        self._passed: dict[Block, set[bytes]] = {}  # a rank may compute a block twice, and be wrong once
        self.held: list[Part] = []  # what is computed and not sent
        self.is_out = False  # whether this rank was wrong, and does nothing more in this round

    def begin(self) -> None:
        """A new round."""
        self._said = {}
        self._pending = {}
        self._passed = {}
        self.held = []
        self.is_out = False

    def drawn(self, unit: int) -> tuple[int, ...]:
        """Which blocks of a unit are audited."""
        return self._audit.blocks(self._position.round, unit, self._plan.blocks) if self._audit is not None else ()

    def in_part(self, part: Part) -> tuple[int, ...]:
        """Which blocks of a part are audited, counted from its first."""
        return tuple(block - part.first for block in self.drawn(part.unit) if part.first <= block < part.last)

    def say(self, block: Block, digest: bytes, *, is_own: bool) -> Checked | None:
        """A block was computed: what to say of it. `is_own`: and is a part of what this rank is to send."""
        if is_own and digest not in self._passed.get(block, ()):
            self._pending[block] = digest
        if is_own and block in self._said and self._said[block].digest == digest:
            return None
        said = self._said[block] = Checked(
            generation=self._position.generation,
            round=self._position.round,
            unit=block[0],
            block=block[1],
            digest=digest,
        )
        return said

    def said(self) -> list[Checked]:
        """What was said in this round, perhaps to another coordinator."""
        return [replace(checked, generation=self._position.generation) for checked in self._said.values()]

    @property
    def is_waiting(self) -> bool:
        """Whether a block that is a part of what this rank sends has not passed."""
        return bool(self._pending)

    @property
    def has_said(self) -> bool:
        """Whether a block of this rank may pass."""
        return bool(self._said)

    def lacks_proof(self, part: Part) -> bool:
        """Whether the round is audited, and nothing that this rank computed in it has passed."""
        return not self._passed and bool(self.drawn(part.unit))

    def hold(self, part: Part) -> None:
        """A part is computed, and waits."""
        self.held.append(part)

    def passed(self, block: Block, digest: bytes) -> list[Part]:
        """Others have computed the same; what may be sent now."""
        self._passed.setdefault(block, set()).add(digest)
        if self._pending.get(block) == digest:
            del self._pending[block]
        if self._pending:
            return []
        released, self.held = self.held, []
        return released

    def drop(self) -> None:
        """What this rank computed in this round is of no use."""
        self.is_out = True
        self._pending = {}
        self.held = []
