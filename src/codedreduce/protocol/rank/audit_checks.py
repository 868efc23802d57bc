"""A rank's duties in audits: it reports digests of audited blocks, and sends their parts once the blocks have passed.

Every rank that computes an audited block reports its digest: the rank that sends the block, and a rank that checks it.
A rank sends nothing while an audited block that it computed has not passed: its results may be wrong. In an audited
round it sends nothing before at least one block has passed. If its parts contain no audited block, it computes one that
other ranks compute as well. So a result that is found wrong has never left its rank, and a rank that is always wrong
sends nothing in such a round.
"""

from __future__ import annotations

from msgspec.structs import replace

from codedreduce.protocol.core.audits import Mistakes
from codedreduce.protocol.core.blocks import Block
from codedreduce.protocol.core.messages import Checked
from codedreduce.protocol.core.rank_position import RankPosition
from codedreduce.protocol.core.settings import Settings
from codedreduce.schemes import Part, StripedPlan


class AuditChecks:
    """A rank's side of the audits in the current round."""

    def __init__(self, position: RankPosition, plan: StripedPlan, settings: Settings) -> None:
        self._position = position
        self._plan = plan
        self._audit = settings.audit
        self.mistakes = Mistakes(settings.audit)
        self._said: dict[Block, Checked] = {}
        self._pending: dict[Block, bytes] = {}
        self._passed: dict[Block, set[bytes]] = {}  # by block: a rank may compute a block twice, and be wrong once
        self.held: list[Part] = []  # parts that are computed and not sent
        self.is_out = False  # whether this rank was wrong, and does no more work in this round

    def begin(self) -> None:
        """A new round."""
        self._said = {}
        self._pending = {}
        self._passed = {}
        self.held = []
        self.is_out = False

    def drawn(self, unit: int) -> tuple[int, ...]:
        """The blocks of a unit that are audited."""
        return self._audit.blocks(self._position.round, unit, self._plan.blocks) if self._audit is not None else ()

    def in_part(self, part: Part) -> tuple[int, ...]:
        """The blocks of a part that are audited, counted from its first block."""
        return tuple(block - part.first for block in self.drawn(part.unit) if part.first <= block < part.last)

    def say(self, block: Block, digest: bytes, *, is_own: bool) -> Checked | None:
        """Return the report for a computed block; None if it was sent before. `is_own`: the block is in an own part."""
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
        """The reports of this round; some may have gone to another leader."""
        return [replace(checked, generation=self._position.generation) for checked in self._said.values()]

    @property
    def is_waiting(self) -> bool:
        """True if a block in this rank's own parts has not passed."""
        return bool(self._pending)

    @property
    def has_said(self) -> bool:
        """True if this rank has reported a block, so that one may pass."""
        return bool(self._said)

    def lacks_proof(self, part: Part) -> bool:
        """True if the round is audited, and no block that this rank computed in it has passed."""
        return not self._passed and bool(self.drawn(part.unit))

    def hold(self, part: Part) -> None:
        """Hold back a part that is computed."""
        self.held.append(part)

    def passed(self, block: Block, digest: bytes) -> list[Part]:
        """Other ranks computed the same result; return the parts that may be sent now."""
        self._passed.setdefault(block, set()).add(digest)
        if self._pending.get(block) == digest:
            del self._pending[block]
        if self._pending:
            return []
        released, self.held = self.held, []
        return released

    def drop(self) -> None:
        """Discard all results of this rank in this round: it was wrong."""
        self.is_out = True
        self._pending = {}
        self.held = []
