"""What rank 0 does for all: says who computes what, sees who is late, and has others do what is missing.

A part of rank 0's machine. It is told in small messages what ranks have done, and never holds a vector.

- Work is shared out by what ranks are known to take for a block (`pace`, `sharing`).
- A rank is late when it has had as long as is expected of it, as much longer as the others took in this round, and a
  head start. What it has not done then goes to those that are idle, last block first (`relieve`); it goes on from the
  front, and whatever is complete first counts.
- Asking is a bet, as under the parents of a tree: few are made where they do not pay (`Budget`).
- When all units are done and the sum does not come, keepers are asked what they lack. A unit that some lack is done
  again by another; a keeper that does not answer is replaced for the round.
- Who did not deliver, or did not keep, is left out for some rounds, for longer every time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median

from codedreduce.protocol.events import AnyAction, Note, SetTimer, Transmit
from codedreduce.protocol.keeping import Unit
from codedreduce.protocol.messages import Cut, Do, Done, Go, Keep, Message, Status, Tell, Want
from codedreduce.protocol.pace import Pace
from codedreduce.protocol.redundancy import UNKNOWN, Budget
from codedreduce.protocol.settings import Settings
from codedreduce.protocol.sharing import Load, Speed, relieve, share_out, stripe_weights
from codedreduce.schemes import Part, StripedPlan
from codedreduce.schemes.striped import FULL_WEIGHT

#: Timers: somebody may be late; the sum should be here; whom a round waits for is to be said.
LATE, TAIL, WAITING = "late", "tail", "waiting"

#: A rank that is known to be so slow that it is given nothing does one block in this many rounds, beside another.
TRY_EVERY = 16

#: Rounds that a rank is left out at first when it did not deliver or keep, and at most; each time twice as many.
LEFT_OUT, LEFT_OUT_AT_MOST = 4, 256

#: Tails of rounds that are remembered.
TAILS = 16

#: When a rank is asked how far it is, as a part of the time until it is late.
ASK_AT = 0.9

#: Seconds that a block takes at least, whatever a rank says.
SHORTEST = 1e-9

#: Chunks in a message that asks for some.
ASKED_AT_ONCE = 1024

#: Helpers that are so many times slower than usual are asked last.
TOO_SLOW = 3.0


class Order:
    """A part that a rank was given, and has not delivered."""

    __slots__ = ("ahead", "done", "given", "helps", "part", "rank", "relieved", "told")

    def __init__(self, rank: int, part: Part, given: float, ahead: int, helps: int | None = None) -> None:
        self.rank = rank
        self.part = part
        self.given = given
        self.ahead = ahead  # blocks that it does first
        self.helps = helps  # the rank in whose place it does this
        self.done = 0  # blocks of it that are known to be done
        self.told: float | None = None  # when the rank was asked how far it is
        self.relieved = False


class Coordinating:
    """The ranks of a run, as their coordinator sees them. `tell` is how rank 0 is told what others are sent."""

    def __init__(self, plan: StripedPlan, settings: Settings, tell: Callable[[Message, float, list[AnyAction]], None]):
        self._plan = plan
        self._settings = settings
        self._tell_self = tell
        self._keepers = plan.keepers(settings.length, settings.itemsize)
        self.pace = Pace(plan.workers)
        self._budget = Budget(plan.workers)
        self.present: set[int] = {0}
        self._behind: set[int] = set()  # ranks that are not at the round that is on
        self._left_out: dict[int, tuple[int, int]] = {}  # until which round, and for how many
        self._tails: deque[float] = deque(maxlen=TAILS)
        self.round = 0
        self._generation = settings.generation
        self._began = 0.0
        self._orders: dict[int, list[Order]] = {}
        self._units: dict[int, Unit[None]] = {}  # those that are not complete
        self._finished: dict[int, float] = {}  # how many times longer than expected those took that are through
        self._quickest: tuple[float, int] | None = None  # seconds and blocks of the first that was through
        self._bets: dict[int, bool] = {}  # ranks that were bet on in this round, and whether it was counted
        self._units_done_at: float | None = None
        self._asked: dict[int, float] = {}  # keepers that were asked what they lack, when
        self._lacks: dict[int, tuple[int, ...]] = {}  # what they answered
        self._replaced: dict[int, int] = {}  # by whom, stripe by stripe
        self._redone: dict[
            int, tuple[set[int], float]
        ] = {}  # by unit: who did it again, and when the last one was asked
        self._providers: dict[int, int] = {}  # who said last that a unit is done
        self.late: set[int] = set()
        self.stripes: tuple[range, ...] = ()
        self._go_keepers: tuple[tuple[int, int], ...] = ()
        self._usual: float | None = None  # what a block took a rank in the middle, when the round began

    # -- who takes part

    def came(self, rank: int, actions: list[AnyAction]) -> None:
        """A rank is in, or has a new connection: it is told of the round that is on, and must show that it is there."""
        self.present.add(rank)
        if self.round:
            self._behind.add(rank)
            self._say(rank, Go(generation=self._generation, round=self.round, keepers=self._go_keepers), actions)
            for stripe, keeper in sorted(self._replaced.items()):
                keep = Keep(generation=self._generation, round=self.round, stripe=stripe, keeper=keeper)
                self._say(rank, keep, actions)

    def _is_back(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank is at the current round, and was not: what it still owes may not have reached it, and what nobody
        who was there could do may be its to do."""
        self._behind.discard(rank)
        orders = self._orders.get(rank, [])
        for order in orders:
            order.given, order.told, order.done = now, None, 0
        if orders:
            parts = tuple(order.part for order in orders)
            self._say(rank, Do(generation=self._generation, round=self.round, parts=parts), actions)
        for unit in list(self._units):
            if rank in self._plan.group(unit):
                self._hand_out_uncovered(unit, now, actions)

    def gone(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """A rank cannot be reached: what it was to do is done by others, at once."""
        self.present.discard(rank)
        self._behind.discard(rank)
        self._budget.on_time(rank)
        if self._units or self._units_done_at is not None:
            if rank < len(self.stripes) and self.stripes[rank] and rank not in self._replaced:
                self._replace(rank, now, actions)
            self._redo_undelivered(rank, now, actions)
            self.look(now, actions)

    def _redo_undelivered(self, rank: int, now: float, actions: list[AnyAction]) -> None:
        """What a rank that is gone said it had done may not have arrived."""
        for unit, provider in list(self._providers.items()):
            if provider == rank and unit not in self._redone:
                self._redo(unit, now, actions)

    def is_current(self, rank: int) -> bool:
        """Whether a rank is at the round that is on, as far as is known."""
        return rank in self.present and rank not in self._behind

    def must_renew(self, rank: int) -> None:
        """A rank takes another's state, and does nothing until it has it."""
        self._behind.add(rank)

    def current(self) -> list[int]:
        """The ranks that are at the round that is on, as far as is known."""
        return sorted(self.present - self._behind)

    def _is_left_out(self, rank: int) -> bool:
        until, _ = self._left_out.get(rank, (0, 0))
        return self.round <= until

    def _leave_out(self, rank: int) -> None:
        if rank and not self._is_left_out(rank):
            _, rounds = self._left_out.get(rank, (0, LEFT_OUT // 2))
            rounds = min(LEFT_OUT_AT_MOST, 2 * rounds)
            self._left_out[rank] = (self.round + rounds, rounds)

    # -- a round begins

    def begin(self, round_: int, now: float, actions: list[AnyAction]) -> Go:
        """Share out the work of a round, and tell everyone; what rank 0 itself is to do."""
        self.round = round_
        self._began = now
        self._usual = self.pace.usual()
        loads = self._share_out()
        weights = self._weights(loads)
        self.stripes = self._plan.stripes(self._settings.chunks, self._plan.weights(self._keepers, weights))
        self._units = {unit: Unit(self._plan.blocks) for unit in self._plan.computing}
        self._orders = {}
        self._finished.clear()
        self._quickest = None
        self._bets.clear()
        self._units_done_at = None
        self._asked.clear()
        self._lacks.clear()
        self._replaced.clear()
        self._redone.clear()
        self._providers.clear()
        self.late = set()
        self._go_keepers = tuple(sorted(weights.items()))
        own = Go()
        for rank in sorted(self.present):
            parts = tuple(loads[rank].parts()) if rank in loads else ()
            self._give(rank, parts, now)
            go = Go(
                generation=self._generation, round=round_, parts=parts + self._trial(rank, parts),
                keepers=self._go_keepers,
            )  # fmt: skip
            if rank:
                actions.append(Transmit(to=rank, message=go))
            else:
                own = go
        if self._idle():  # somebody must look, though nobody may ever say a thing
            actions.append(SetTimer(name=LATE, at=now))
        if self._settings.say_waiting_after < float("inf"):
            actions.append(SetTimer(name=WAITING, at=now + self._settings.say_waiting_after))
        return own

    def _share_out(self) -> dict[int, Load]:
        taking_part = [rank for rank in self.current() if not self._is_left_out(rank)] or [0]
        usual = self.pace.usual() or 1.0
        speeds = {
            rank: Speed(block=self.pace.at_best(rank) or usual, lag=self.pace.lag_at_best(rank)) for rank in taking_part
        }
        plan = self._plan
        loads = share_out(plan.workers, plan.blocks, speeds, lambda rank, unit: rank in plan.group(unit), self.vector())
        self._cover(loads)
        return loads

    def _cover(self, loads: dict[int, Load]) -> None:
        """Units that nobody who takes part can do go to those that are present, however slow."""
        given = {part.unit for load in loads.values() for part in load.parts()}
        for unit in self._plan.computing:
            if unit not in given:
                able = [rank for rank in self._plan.group(unit) if rank in self.present]
                if able:
                    loads.setdefault(able[0], Load()).firsts[unit] = self._plan.blocks

    def _trial(self, rank: int, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Now and then a rank that is too slow to be given anything does a block that another does, too."""
        if parts or not self.is_current(rank) or self._is_left_out(rank) or (self.round + rank) % TRY_EVERY:
            return ()
        return (Part(rank, 0, 1),)

    def _weights(self, loads: dict[int, Load]) -> dict[int, int]:
        """What stripes weigh that do not weigh as usual."""
        vectors = {rank: max(1, load.vectors) for rank, load in loads.items()}
        weights = stripe_weights(vectors, self._keepers)
        keep_none = [rank for rank in self._plan.computing if rank not in weights]
        usual = self._plan.weights(self._keepers, {})
        exceptions = {rank: 0 for rank in keep_none if usual[rank]}
        lacking = len(exceptions)
        for rank, weight in weights.items():
            if usual[rank]:
                if weight != FULL_WEIGHT:
                    exceptions[rank] = weight
            elif lacking:  # in place of one that keeps none
                exceptions[rank] = FULL_WEIGHT
                lacking -= 1
        return exceptions

    def _give(self, rank: int, parts: Iterable[Part], now: float, helps: int | None = None) -> list[Order]:
        orders = self._orders.setdefault(rank, [])
        ahead = sum(order.part.blocks for order in orders)
        given = []
        for part in parts:
            given.append(Order(rank, part, now, ahead, helps))
            ahead += part.blocks
        orders += given
        return given

    def vector(self) -> float:
        """Seconds that a vector takes on a link, as far as rounds have shown."""
        return median(self._tails) / 2 if self._tails else 0.0

    # -- ranks tell what they have done

    def done(self, rank: int, done: Done, now: float, actions: list[AnyAction]) -> None:
        """A rank has done a part and sends it to the keepers."""
        part = Part(done.unit, done.first, done.last)
        if done.round != self.round or not self._plan.is_part(part):
            return
        orders = self._orders.setdefault(rank, [])
        order = next((one for one in orders if one.part[:2] == part[:2]), None)
        if order is None and part.unit not in self._units:
            return  # it has said so before, or does not matter
        if rank in self._behind:
            self._is_back(rank, now, actions)
        self._budget.save()
        block = max(done.block, SHORTEST)
        if not done.block:
            pass  # others did it: it has the sum of the round
        elif order is None or order.helps is not None or order.ahead:
            self.pace.did(rank, block)
        else:
            self.pace.did(rank, block, now - order.given - part.blocks * block)
        if order is not None:
            orders.remove(order)
            self._learn(order, part, now)
        if part.unit in self._units:
            self._providers[part.unit] = rank
            unit = self._units[part.unit]
            unit.add(part, None)
            if unit.chain() is not None:
                self._complete(part.unit, actions)
            else:
                self._drop_needless(part.unit)
                self._hand_out_uncovered(part.unit, now, actions)
        if not self._units and self._units_done_at is None:
            self._units_done_at = now
            self._expect_sum(now, actions)
        self.look(now, actions)

    def _learn(self, order: Order, part: Part, now: float) -> None:
        if order.helps is not None:
            return
        took = now - order.given
        if self._quickest is None:
            self._quickest = (took, order.ahead + part.blocks)
        expected = self._expected(order)
        if not self._orders[order.rank] and expected:
            self._finished[order.rank] = took / expected
            self.pace.ended(max(0.0, took / expected - 1))

    def _complete(self, unit: int, actions: list[AnyAction]) -> None:
        """A unit is done: whoever still works on it need not."""
        del self._units[unit]
        for orders in self._orders.values():
            for order in [one for one in orders if one.part.unit == unit]:
                orders.remove(order)
                self._say(order.rank, Cut(generation=self._generation, round=self.round, unit=unit, end=0), actions)
                if order.helps is None:
                    self.late.add(order.rank)
                    self.pace.held_up(order.rank, order.done, self._now_since(order))
        if unit in self._bets:
            counted = self._bets.pop(unit)
            if unit in self.late:
                self._budget.bet_won(unit, counted=counted)
            else:
                self._budget.bet_lost(unit)
        else:
            self._budget.on_time(unit)

    def _drop_needless(self, unit: int) -> None:
        """Forget orders for what others have done; whoever has them need not be waited for."""
        missing = self._units[unit].missing()
        for orders in self._orders.values():
            for order in [one for one in orders if one.part.unit == unit]:
                if not any(order.part.first <= block < order.part.last for block in missing):
                    orders.remove(order)

    def _now_since(self, order: Order) -> float:
        return max(0.0, self._now - order.given)

    def status(self, rank: int, status: Status, now: float, actions: list[AnyAction]) -> None:
        """A rank says how far it is."""
        if status.round != self.round:
            if status.round < self.round:
                self._behind.add(rank)
            return
        if rank in self._behind:
            self._is_back(rank, now, actions)
        self.hear(rank, status)
        self.look(now, actions)

    def hear(self, rank: int, status: Status) -> None:
        """Take down how far a rank is."""
        orders = self._orders.get(rank)
        if orders:
            orders[0].done = min(status.done, orders[0].part.blocks - 1)
        self._lacks[rank] = tuple(unit for unit in status.lacks if unit in self._plan.computing)

    # -- who is late

    _now = 0.0

    def _expected(self, order: Order) -> float | None:
        """Seconds from when it was given until an order should be delivered; None while nothing is known."""
        blocks = order.ahead + order.part.blocks
        each = self.pace.at_best(order.rank)
        if each is not None:
            return (self.pace.lag_at_best(order.rank) if order.helps is None else 0.0) + blocks * each
        if self._quickest is not None:
            return self._quickest[0] * blocks / self._quickest[1]
        return None if self._usual is None else blocks * self._usual

    def _due(self, order: Order) -> float:
        """When an order is late."""
        if order.rank not in self.present:
            return 0.0
        expected = self._expected(order)
        if expected is None:
            return float("inf")
        settings = self._settings
        known = self.pace.block(order.rank) is not None
        if self._finished and known:  # the round may be slower than usual for everyone
            expected *= max(1.0, sorted(self._finished.values())[len(self._finished) // 3])
        if not settings.head_start:
            return order.given + expected + settings.least_head_start
        fraction = settings.head_start if known else max(UNKNOWN, settings.head_start)
        if not self._has_answered(order):  # what it is asked for is done twice, if it is only late
            fraction = max(fraction, self.pace.spread())
        return order.given + expected + max(fraction * expected, settings.least_head_start)

    def look(self, now: float, actions: list[AnyAction]) -> None:
        """Ask those how far they are that should be done; have the work of late ones done by those that are idle."""
        self._now = now
        next_look = ask_again = float("inf")
        idle = self._idle()
        if not idle:
            return  # nobody could help; who is done next will have others looked at
        looked_at = [one for orders in self._orders.values() for one in orders]
        for order in looked_at:
            if order.relieved or order.part.unit not in self._units:
                continue
            due = self._due(order)
            if due > now:
                asking = order.given + ASK_AT * (due - order.given)
                if order.told is None and order.part.blocks > 1 and order.helps is None and idle:
                    if asking <= now:
                        self._ask(order, now, actions)
                    else:
                        next_look = min(next_look, asking)
                next_look = min(next_look, due)
            elif order.rank in self.present and order.part.blocks > 1 and order.told is None and idle:
                self._ask(order, now, actions)
                next_look = min(next_look, now + self._settings.least_head_start + 0.05 * (now - order.given))
            elif idle and (given := self._relieve(order, idle, now, actions)):
                looked_at += given
                idle = self._idle()
            elif order.rank in self.present:  # nobody can do it in its place: what it said may not have been heard
                again = (order.told or order.given) + self._more_patience(order.told or order.given)
                if again <= now:
                    self._ask(order, now, actions)
                    again = now + self._more_patience(now)
                ask_again = min(ask_again, again)
        next_look = min(next_look if idle else float("inf"), ask_again)
        if next_look < float("inf"):
            actions.append(SetTimer(name=LATE, at=max(next_look, now)))

    def _has_answered(self, order: Order) -> bool:
        """Whether a rank has said how far it is: what it has not begun can be taken from it, and is done once."""
        return order.told is not None and order.rank in self._lacks

    def _ask(self, order: Order, now: float, actions: list[AnyAction]) -> None:
        order.told = now
        self._lacks.pop(order.rank, None)
        self._say(order.rank, Tell(generation=self._generation, round=self.round), actions)

    def _idle(self) -> list[int]:
        """Ranks that have nothing to do, the quickest first."""
        usual = self.pace.usual() or 1.0
        idle = [rank for rank in self.current() if not self._orders.get(rank) and not self._is_left_out(rank)]
        quick = [rank for rank in idle if (self.pace.block(rank) or usual) <= TOO_SLOW * usual]
        return sorted(quick or idle, key=lambda rank: self.pace.block(rank) or usual)

    def _relieve(self, order: Order, idle: list[int], now: float, actions: list[AnyAction]) -> list[Order]:
        """Have others do what a late rank has not done; what they, and it, are to do now."""
        part = order.part
        group = self._plan.group(part.unit)
        helpers = [rank for rank in idle if rank in group]
        if not helpers:  # then those that were left out, too
            helpers = [rank for rank in group if self.is_current(rank) and not self._orders.get(rank)]
        if not helpers:
            return []
        if order.rank in self.present and not self._budget.is_needy(part.unit) and part.unit not in self._bets:
            if not self._budget.may_bet(len(self._bets)):
                return []
            self._budget.bet_made()
            self._bets[part.unit] = True
        self._bets.setdefault(part.unit, False)
        order.relieved = True
        took = now - order.given
        answered = order.rank in self.present and self._has_answered(order)
        done = order.done if answered else 0
        each = took / done if done else (took if answered else float("inf"))
        block = self.pace.block(helpers[0]) or self.pace.usual() or took / max(1, part.blocks)
        relief = relieve(part, done, each, helpers, block, self.vector(), self._plan.workers)
        if order.rank in self.present and relief.end > part.first:
            cut = Cut(generation=self._generation, round=self.round, unit=part.unit, end=relief.end)
            self._say(order.rank, cut, actions)
            order.part = Part(part.unit, part.first, relief.end)
            order.relieved = False  # it may be late again, with what is left
            order.given, order.ahead, order.told = now, 0, None
        elif order.rank not in self.present:
            self._orders[order.rank].remove(order)
            self.late.add(part.unit)
        given = [order] if not order.relieved and order.rank in self.present else []
        for helper, parts in relief.parts:
            given += self._hand(helper, parts, part.unit, now, actions)
        return given

    def _hand(
        self, helper: int, parts: tuple[Part, ...], helps: int, now: float, actions: list[AnyAction]
    ) -> list[Order]:
        self._say(helper, Do(generation=self._generation, round=self.round, parts=parts), actions)
        return self._give(helper, parts, now, helps)

    def _hand_out_uncovered(self, unit: int, now: float, actions: list[AnyAction]) -> None:
        """What nobody does of a unit is given to somebody: a rank did less than it was given, or is back."""
        covered = {
            block for orders in self._orders.values() for order in orders
            if order.part.unit == unit and not order.relieved for block in range(order.part.first, order.part.last)
        }  # fmt: skip
        missing = [block for block in self._units[unit].missing() if block not in covered]
        able = [rank for rank in self._plan.group(unit) if self.is_current(rank)]
        if not missing or not able:
            return
        helper = min(able, key=lambda rank: (sum(one.part.blocks for one in self._orders.get(rank, ())), rank))
        first = next((block for block in range(self._plan.blocks) if block not in missing), self._plan.blocks)
        parts = [Part(unit, 0, first)] if first else []
        parts += [Part(unit, block, block + 1) for block in missing if block >= first]
        self._hand(helper, tuple(parts), unit, now, actions)

    def _say(self, rank: int, message: Message, actions: list[AnyAction]) -> None:
        if rank == 0:
            self._tell_self(message, self._now, actions)
        elif rank in self.present:
            actions.append(Transmit(to=rank, message=message))  # type: ignore[arg-type]

    # -- when all is computed

    def _usual_tail(self, now: float) -> float:
        return median(self._tails) if self._tails else max(0.5, 2 * (now - self._began))

    def _expect_sum(self, now: float, actions: list[AnyAction]) -> None:
        actions.append(SetTimer(name=TAIL, at=now + self._patience(now)))

    def _patience(self, now: float) -> float:
        """How much longer than now the sum may take before keepers are asked."""
        settings = self._settings
        return max(
            1.5 * self._usual_tail(now), settings.head_start * (now - self._began), settings.least_head_start, 0.01
        )

    def _more_patience(self, now: float) -> float:
        """How much longer it may take when something was done about it; the longer, the longer it has taken."""
        usual = median(self._tails) if self._tails else 0.5
        return max(0.75 * usual, 0.1 * (now - self._began), self._settings.least_head_start, 0.01)

    def sum_is_late(self, missing: Iterable[int], own_lacks: list[int], now: float, actions: list[AnyAction]) -> None:
        """All units are done, and chunks of the sum are still missing: find out why, and do something about it."""
        self._now = now
        if self._units_done_at is None:
            return  # the timer of a round before
        missing = list(missing)
        keepers = {self._keeper(index) for index in missing}
        actions.append(SetTimer(name=TAIL, at=now + self._more_patience(now)))
        self._want_again(missing, actions)
        lacking: set[int] = set(own_lacks) if 0 in keepers else set()
        for keeper in sorted(keepers - {0}):
            if keeper not in self.present:
                self._replace(self._stripe_of(keeper), now, actions)
            elif keeper not in self._asked:
                self._asked[keeper] = now
                self._lacks.pop(keeper, None)
                self._say(keeper, Tell(generation=self._generation, round=self.round), actions)
            elif keeper not in self._lacks or not self._lacks[keeper]:
                self._replace(self._stripe_of(keeper), now, actions)
            else:
                lacking.update(self._lacks[keeper])
                del self._asked[keeper]
        for unit in sorted(lacking):
            if unit not in self._units and not self._is_redone(unit, now):
                self._redo(unit, now, actions)

    def _want_again(self, missing: list[int], actions: list[AnyAction]) -> None:
        """Keepers that were asked, or replaced, may have the sum, and it did not arrive."""
        for stripe, chunks in enumerate(self.stripes):
            wanted = tuple(index for index in missing if index in chunks)[:ASKED_AT_ONCE]
            for keeper in {stripe, self._replaced.get(stripe, stripe)} - {0} if wanted else ():
                if keeper in self._asked or stripe in self._replaced:
                    self._say(keeper, Want(generation=self._generation, round=self.round, chunks=wanted), actions)

    def _keeper(self, index: int) -> int:
        stripe = next(rank for rank, chunks in enumerate(self.stripes) if index in chunks)
        return self._replaced.get(stripe, stripe)

    def _stripe_of(self, keeper: int) -> int:
        return next((stripe for stripe, other in self._replaced.items() if other == keeper), keeper)

    def _replace(self, stripe: int, now: float, actions: list[AnyAction]) -> None:
        """Have another rank keep a stripe, for the rest of the round."""
        keeper = self._replaced.get(stripe, stripe)
        self._leave_out(keeper)
        others = [rank for rank in self.current() if rank != keeper and not self._is_left_out(rank)] or [0]
        chosen = min(others, key=lambda rank: (len(self.stripes[rank]), len(self._orders.get(rank, ())), rank))
        self._replaced[stripe] = chosen
        reason = f"round {self.round}: rank {chosen} keeps the stripe of rank {keeper}, which is late"
        actions.append(Note(kind="keeper", reason=reason, round=self.round, nodes=(keeper, chosen)))
        keep = Keep(generation=self._generation, round=self.round, stripe=stripe, keeper=chosen)
        for rank in sorted(self.present):
            self._say(rank, keep, actions)

    def _is_redone(self, unit: int, now: float) -> bool:
        """Whether somebody was asked to do a unit again, and may still be at it, or what it sent on its way."""
        if unit not in self._redone:
            return False
        _, asked = self._redone[unit]
        due = max(
            (self._due(one) for some in self._orders.values() for one in some if one.part.unit == unit), default=0
        )
        return now < max(asked + self._more_patience(asked), min(due, 2 * asked - self._began + 1.0))

    def _redo(self, unit: int, now: float, actions: list[AnyAction]) -> None:
        """A unit was said to be done, and has not arrived: another rank does it."""
        tried, _ = self._redone.get(unit, (set(), 0.0))
        provider = self._providers.get(unit, unit)
        tried.add(provider)
        if provider in self.present:
            self._leave_out(provider)
        self._redone[unit] = (tried, now)
        able = [rank for rank in self.current() if rank in self._plan.group(unit)]
        if not able:
            return
        if tried.issuperset(able):
            tried.clear()  # whoever it was: it is all there is
        self.late.add(provider)
        helper = min(
            (rank for rank in able if rank not in tried),
            key=lambda rank: (
                len(tried) > 1 and rank != 0,  # the second time this rank does it itself, which at least it knows
                len(self._orders.get(rank, ())), self.pace.block(rank) or 0.0, rank,
            ),
        )  # fmt: skip
        self._providers[unit] = helper
        part = Part(unit, 0, self._plan.blocks)
        self._hand(helper, (part,), unit, now, actions)

    def over(self, now: float) -> tuple[int, ...]:
        """The sum is here, at rank 0; who was late."""
        self._now = now
        if self._units_done_at is not None and not self._redone and not self._replaced:
            self._tails.append(now - self._units_done_at)
        for orders in self._orders.values():
            for order in orders:
                if order.helps is None:
                    self.late.add(order.rank)
                    self.pace.held_up(order.rank, order.done, now - order.given)
        self._orders = {}
        self._units = {}
        self._units_done_at = None
        return tuple(sorted(self.late))

    def waiting_for(self, missing: Iterable[int]) -> tuple[int, ...]:
        """The ranks that have not delivered what they were given, or who could; or keep what is missing of the sum."""
        late = {order.rank for orders in self._orders.values() for order in orders if order.part.unit in self._units}
        for unit in self._units:
            group = self._plan.group(unit)
            if late.isdisjoint(group):
                late.update(rank for rank in group if not self.is_current(rank))
        return tuple(sorted(late or {self._keeper(index) for index in missing}))
