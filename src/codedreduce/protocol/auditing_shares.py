"""Shares that are computed twice: the root has each of its shares computed by another of those that can do it, compares
digests, and if they differ finds out which is right before the sum is used.

The policy, in words:

- When the sum of an audited round is here, everybody is idle. Of every share another provider is asked, and offers a
  digest of what it has. What was received is digested here. Two that were computed by different nodes and are the same
  are right: the share has passed.
- Whoever is asked has as long as the round took, and that again with a head start. If it fails, leaves or is late, and
  nobody else can be asked within that time, the audit of that share lapses, and that is said. So stragglers hold a
  round up by one more task at most.
- If digests differ, those who computed are asked what their sums were made of. If the one that delivered has the digest
  of the other, what it sent was damaged on its way; so it was below if all that went into both sums was made alike.
  Else a third decides: another provider, or if there is none the root itself. If neither can, the run ends.
- What is right takes the place of what is wrong, and is digested again when it is here.
- A round in which something was wrong is over when it is known who it was: what sums were made of is forgotten with the
  next audit. Who could show it has as long for that as anybody has who is asked.
"""

from __future__ import annotations

from typing import NamedTuple

from codedreduce.protocol.accounts import digest_as_sent, is_audited
from codedreduce.protocol.collecting import Collecting
from codedreduce.protocol.events import AnyAction, Computed, Note, SetTimer
from codedreduce.protocol.findings import Findings
from codedreduce.protocol.judging import Judging
from codedreduce.protocol.messages import Account, Offer, ShareChunk, Trouble
from codedreduce.protocol.opinions import Looked
from codedreduce.protocol.settings import Settings
from codedreduce.schemes import TreePlan
from codedreduce.vectors import Vector

#: The timer that looks after audits, and the one after which nobody is named any more.
AUDIT, NAMING = "audit", "naming"

#: How often a node is asked to send what is right, which arrives damaged.
TRIES = 3


class Asked(NamedTuple):
    """What a child was asked for: what it has of a task, or the whole of it; and until when."""

    task: int
    whole: bool
    until: float


class AuditingShares:
    """A part of the root: the audit of a round, from when its sum is here until it can be used."""

    def __init__(self, plan: TreePlan, settings: Settings, below: Collecting, *, computes: bool) -> None:
        self._plan = plan
        self._settings = settings
        self._below = below
        self._judging = Judging(plan, settings, computes=computes)
        self._findings = Findings(plan, settings, below)
        self._shares: dict[int, Looked] = {}
        self._asked: dict[int, Asked] = {}
        self._gone: set[int] = set()  # who is not, or not any more, in the round
        self._explained: set[tuple[int, int]] = set()
        self._patience = 0.0
        self._deadline = 0.0
        self._has_changed = False
        self._is_calm = True  # nothing was wrong, and nothing lapsed

    # -- a round that is audited

    def is_due(self, round_: int) -> bool:
        """Whether a round is audited."""
        return is_audited(round_, self._settings)

    def begin(self, model: Vector, now: float, actions: list[AnyAction]) -> None:
        """The sum of a round that is audited is here."""
        round_ = self._below.round
        self._findings.begin(round_, actions)
        self._judging.begin(round_, model)
        took = now - self._below.ledger.since
        self._patience = took + self._below.ledger.allowed(took)
        self._deadline = now + self._patience
        self._asked, self._gone, self._explained = {}, set(), set()
        self._has_changed, self._is_calm = False, True
        self._shares = {
            share.task: Looked(share, digest_as_sent(share.chunks, self._settings))
            for share in self._below.ledger.shares
        }
        self._go_on(now, actions)

    @property
    def is_over(self) -> bool:
        """Whether the sum can be used, and it is known who was wrong, or will not be."""
        return not self._findings.are_open and all(share.is_over for share in self._shares.values())

    def end(self) -> bool:
        """The audit is over; whether the sum must be made again."""
        if self._is_calm:
            away = self._below.late | self._below.shunned
            self._findings.passed(node for node in self._plan.computing if node not in away)
        self.drop()
        return self._has_changed

    def drop(self) -> None:
        """The round is over, or begins again."""
        self._shares, self._asked = {}, {}
        self._judging.end()

    # -- what children say

    def offer(self, offer: Offer, child: int, now: float, actions: list[AnyAction]) -> bool:
        """A child has something; whether it was asked for."""
        asked = self._asked.get(child)
        if offer.round != self._below.round or asked is None or asked.task != offer.task:
            return False
        if offer.digest and not asked.whole:
            del self._asked[child]
            self._shares[offer.task].said[child] = offer.digest
            self._go_on(now, actions)
        return True

    def share_chunk(self, chunk: ShareChunk, child: int, data: Vector, now: float, actions: list[AnyAction]) -> bool:
        """A chunk has come; whether it was asked for in the place of one that is wrong."""
        asked = self._asked.get(child)
        if chunk.round != self._below.round or asked is None or not asked.whole or asked.task != chunk.task:
            return False
        share = self._shares[chunk.task]
        share.whole[chunk.index] = data
        vectors = [one for one in share.whole if one is not None]
        if len(vectors) == self._settings.chunks:
            del self._asked[child]
            share.whole = [None] * self._settings.chunks
            if digest_as_sent(vectors, self._settings) == share.right:
                self._put_right(share, vectors, child)
            self._go_on(now, actions)
        return True

    def account(self, account: Account, child: int, now: float, actions: list[AnyAction]) -> None:
        """A node says what its sum was made of."""
        if self._plan.is_worker(account.node) and child in self._plan.tree.ancestors(account.node):
            self._findings.heard(account, actions)
            share = self._shares.get(account.task)
            if share is not None and account.round == self._below.round and account.node in share.by:
                share.said.setdefault(account.node, account.digest)
                self._go_on(now, actions)

    def unable(self, child: int, now: float, actions: list[AnyAction]) -> None:
        """A child cannot do what it was asked for, or somebody below it cannot."""
        asked = self._asked.pop(child, None)
        if asked is not None:
            self._shares[asked.task].out.add(child)
            self._go_on(now, actions)

    def lost(self, child: int, now: float, actions: list[AnyAction]) -> None:
        """A child is gone, or has come anew: it has nothing of this round."""
        if self._shares:
            self._gone.add(child)
            self._asked.pop(child, None)
            self._go_on(now, actions)

    # -- the root decides

    def computed(self, event: Computed, now: float, actions: list[AnyAction]) -> None:
        """The root has computed a unit of what it is to decide."""
        judgement = self._judging.computed(event, actions)
        share = self._shares.get(judgement.task) if judgement is not None else None
        if judgement is None or share is None or share.is_over:
            return
        self._findings.are_right(judgement.sums, judgement.own)
        if share.right is None:
            share.right = judgement.digest
            self._is_known(share, now, actions)
        if share.lacks_vector and share.right == judgement.digest:
            slices = map(self._settings.chunk_slice, range(self._settings.chunks))
            self._put_right(share, [judgement.vector[where] for where in slices], 0)
        self._go_on(now, actions)

    def failed(self, now: float, actions: list[AnyAction]) -> None:
        """The root cannot compute."""
        self._judging.failed()
        self._go_on(now, actions)

    def _put_right(self, share: Looked, chunks: list[Vector], by: int) -> None:
        assert share.right is not None
        self._below.ledger.replace(share.task, chunks, by)
        share.received = share.right
        self._has_changed = True

    # -- what follows

    def _go_on(self, now: float, actions: list[AnyAction]) -> None:
        """See what is decided by now, and ask whoever can help."""
        for share in self._shares.values():
            if share.decide() or self._was_damaged(share):
                self._is_known(share, now, actions)
            if share.is_disputed:
                self._have_explained(share, actions)
        for share in self._shares.values():
            if not share.is_over and not self._is_asked_for(share):
                self._ask(share, now, actions)
        self._wake(now, actions)

    def _was_damaged(self, share: Looked) -> bool:
        """Whether it is known by now what is right, since all who computed agree, and something changed on its way."""
        if not share.is_disputed or len(share.said) != 2:
            return False
        one, other = share.said
        better = self._findings.better_of(one, other, share.task)
        share.right = share.said[better] if better is not None else None
        return better is not None

    def _is_known(self, share: Looked, now: float, actions: list[AnyAction]) -> None:
        assert share.right is not None
        for child, asked in list(self._asked.items()):  # a third may be at work on it
            if asked.task == share.task:
                self._leave(child, actions)
        wrong = share.who_was_wrong()
        if not wrong and not share.lacks_vector:
            return
        self._is_calm = False
        self._have_explained(share, actions)
        self._findings.are_wrong(share.task, share.right, sorted(wrong), actions)
        if share.lacks_vector and not wrong:
            self._say("damaged", f"what came of task {share.task} was damaged on its way from {share.by}", (), actions)
        actions.append(SetTimer(name=NAMING, at=now + self._patience))

    def _have_explained(self, share: Looked, actions: list[AnyAction]) -> None:
        """Ask those who have computed a share what it was made of."""
        for child in sorted({*share.by, *share.said}):
            if (child, share.task) not in self._explained:
                self._explained.add((child, share.task))
                self._below.explain(child, self._below.round, share.task, actions)

    def _is_asked_for(self, share: Looked) -> bool:
        return any(asked.task == share.task for asked in self._asked.values())

    def _candidates(self, share: Looked) -> list[int]:
        """Who can be asked about a share, the best first: those from whom nothing of it is, the next one in turn."""
        if share.lacks_vector:
            assert share.right is not None
            able = [one for one in sorted(share.saying(share.right)) if share.tries[one] < TRIES]
        else:
            first = share.providers.index(share.by[0]) if share.by[0] in share.providers else 0
            turn = (*share.providers[first:], *share.providers[:first])
            able = [one for one in turn if one not in share.said and one not in share.out and share.by != (one,)]
            able.sort(key=lambda one: one in share.by)
        return [one for one in able if self._below.uses(one) and one not in self._gone]

    def _ask(self, share: Looked, now: float, actions: list[AnyAction]) -> None:
        candidates = self._candidates(share)
        free = [one for one in candidates if one not in self._asked]
        if free:
            whole = share.lacks_vector
            is_urgent = whole or share.is_disputed
            share.tries[free[0]] += whole
            share.whole = [None] * self._settings.chunks
            self._asked[free[0]] = Asked(share.task, whole, now + self._patience if is_urgent else self._deadline)
            self._below.ask(free[0], share.task, push=whole, actions=actions)
        elif not candidates and (share.lacks_vector or share.is_disputed):
            self._judge(share, now, actions)

    def _judge(self, share: Looked, now: float, actions: list[AnyAction]) -> None:
        """Nobody else is left: the root decides, if it can; else it may still turn out what was damaged on its way."""
        if self._judging.is_able and not share.is_judged:
            share.is_judged = True
            inner = [one for one in share.providers if self._plan.tree.children(one)]
            self._judging.decide(share.task, (inner or share.providers)[0], actions)
        if not share.until:
            share.until = now + self._patience

    # -- time goes by

    def look(self, now: float, actions: list[AnyAction]) -> tuple[Trouble, ...]:
        """See who is too late; between whom nobody can decide, if it comes to that."""
        for child, asked in list(self._asked.items()):
            if asked.until <= now:
                self._shares[asked.task].out.add(child)
                self._leave(child, actions)
        self._go_on(now, actions)
        lapsed: set[int] = set()
        for share in self._shares.values():
            is_stuck = not share.is_over and not self._is_asked_for(share) and not self._candidates(share)
            if share.is_disputed or share.lacks_vector:
                if is_stuck and share.until <= now and not (share.is_judged and self._judging.is_able):
                    return self._undecided(share)
            elif not share.is_over and (is_stuck or self._deadline <= now):
                self._lapse(share, actions)
                lapsed |= set(share.by) - {0}
        if lapsed:
            reason = f"round {self._below.round}: nobody was in time to compute again what {sorted(lapsed)} delivered"
            self._say("unaudited", reason, tuple(sorted(lapsed)), actions)
        return ()

    def _leave(self, child: int, actions: list[AnyAction]) -> None:
        self._below.enough(child, self._asked.pop(child).task, actions)

    def _lapse(self, share: Looked, actions: list[AnyAction]) -> None:
        share.has_lapsed = True
        self._is_calm = False
        for child, asked in list(self._asked.items()):
            if asked.task == share.task:
                self._leave(child, actions)

    def _undecided(self, share: Looked) -> tuple[Trouble, ...]:
        said = {**dict.fromkeys((one for one in share.by if one), share.received), **share.said}
        why = "of the same samples it has another sum than others have, and nobody can decide who is right"
        return tuple((node, why) for node in sorted(said))

    def _wake(self, now: float, actions: list[AnyAction]) -> None:
        """Look again when somebody is late; at once, if nobody is left who could say more."""
        moments = [asked.until for asked in self._asked.values()]
        for share in self._shares.values():
            if not share.is_over and not self._is_asked_for(share):
                if share.until and share.is_judged and self._judging.is_able:
                    continue  # the root is at it
                if share.until:
                    moments.append(share.until)
                elif not self._candidates(share):
                    moments.append(now)
        if moments:
            actions.append(SetTimer(name=AUDIT, at=max(now, min(moments))))

    def stop_naming(self, actions: list[AnyAction]) -> None:
        """Those who could show who was wrong have had their time."""
        self._findings.give_up(actions)

    def _say(self, kind: str, reason: str, nodes: tuple[int, ...], actions: list[AnyAction]) -> None:
        actions.append(Note(kind=kind, reason=reason, round=self._below.round, nodes=nodes))

    def check(self) -> None:
        """Raise if the books contradict each other."""
        for child, asked in self._asked.items():
            if asked.task not in self._shares or child not in self._shares[asked.task].providers:
                raise AssertionError(f"child {child} was asked for task {asked.task}, which is not its to do")
