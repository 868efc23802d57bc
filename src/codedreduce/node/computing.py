"""The computing thread: takes orders of the driver, and stops at the next safe point on request."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from codedreduce.digests import digest
from codedreduce.net.buffers import Buffers
from codedreduce.node.driver import Outward
from codedreduce.process.error_lines import is_plain
from codedreduce.protocol.core.events import (
    Advanced,
    Aggregated,
    Cancel,
    ComputationStopped,
    Compute,
    Computed,
    Digested,
    Ended,
    Event,
    EveryoneIn,
    Failed,
    Finished,
    Gathered,
    Note,
    Pack,
    Renewed,
)
from codedreduce.run.failures import NOT_FINITE
from codedreduce.run.injected_delays import DelayInjector
from codedreduce.run.journal import Interval
from codedreduce.run.world import Gradient
from codedreduce.schemes.plan import Piece, samples_in
from codedreduce.timing import Timing
from codedreduce.vectors import Vector, is_finite, on_host

#: Maximum length of an error text that is sent to others.
REASON = 400

#: Actions that are passed on instead of computed.
News = EveryoneIn | Aggregated | Gathered | Pack | Renewed | Ended | Note | Finished


class Computing:
    """Computes for one node, on the thread that asks for news.

    `record` gets the activities of the node. A node without a gradient never gets work. With `reports_failures` an
    error is reported to the machine, which has another rank compute the work; with `refuses_nonfinite`, too, so is a
    result that is not finite. Without `reports_failures` the error is raised.
    """

    def __init__(
        self,
        node: int,
        buffers: Buffers,
        gradient: Gradient | None = None,
        injector: DelayInjector | None = None,
        record: Callable[[Interval], None] | None = None,
        *,
        timing: Timing,
        reports_failures: bool = False,
        refuses_nonfinite: bool = True,
    ) -> None:
        self._timing = timing
        self._reports_failures = reports_failures
        self._refuses_nonfinite = refuses_nonfinite
        self._printed: set[str] = set()  # errors with a traceback that was printed
        self._node = node
        self._buffers = buffers
        self._gradient = gradient
        self._injector = injector
        self._record = record
        self._orders: queue.SimpleQueue[tuple[float, int, Outward]] = queue.SimpleQueue()
        self._latest = 0  # number of the last order that replaces those before it
        self._stop = threading.Event()
        if gradient is not None and hasattr(gradient, "should_stop"):  # a long gradient can check it in between
            gradient.should_stop = self._stop.is_set
        self._changing = threading.Lock()  # an order and its stop are atomic
        self._stopped_at = 0.0

    def tell(self, what: Outward) -> None:
        """Called by the driver: an order to compute, or to stop, replaces the current computation."""
        with self._changing:
            now = time.monotonic()
            if isinstance(what, Compute | Cancel | Finished | Aggregated | Gathered | Renewed):
                self._stopped_at = now
                self._stop.set()
                self._latest += 1
            self._orders.put((now, self._latest, what))

    def news(self, post: Callable[[Event], None], look: Callable[[], None] | None = None) -> Iterator[News]:
        """Execute orders to compute, and yield all other actions; `look` is called regularly while waiting.

        `Finished` is the last action, and every later call yields it again: else a rank that learned of the end from it
        would wait for it a second time, for ever.
        """
        while True:
            try:
                asked_at, number, order = self._orders.get(timeout=None if look is None else self._timing.poll_interval)
            except queue.Empty:
                if look is not None:
                    look()
                continue
            if isinstance(order, Compute | Cancel):
                with self._changing:
                    replaced = number != self._latest  # by a later order, but not by mere news
                    if not replaced:
                        self._stop.clear()
                if isinstance(order, Compute) and not replaced:
                    self._try(order, asked_at, post)
                del order  # or its model would stay until the next order
            else:
                if isinstance(order, Finished):
                    self._orders.put((asked_at, number, order))
                yield order

    def _try(self, order: Compute, asked_at: float, post: Callable[[Event], None]) -> None:
        """Compute, and report an error if the machine can have another rank do the work."""
        try:
            self._compute(order, asked_at, post)
        except Exception as error:  # any error of a gradient: it may affect only this worker
            if not self._reports_failures:
                raise
            post(Failed(round=order.round, task=order.task, reason=self._describe(error)))

    def _describe(self, error: Exception) -> str:
        """The last line of its traceback; the whole traceback goes to standard error once.

        A plain error (`is_plain`) needs no traceback: its type and text are enough.
        """
        if is_plain(error):
            return " ".join(f"{type(error).__name__}: {error}".split())[:REASON]
        said = traceback.TracebackException.from_exception(error, limit=0)
        said.__notes__ = None
        reason = list(said.format_exception_only())[-1].strip()[:REASON]
        if reason not in self._printed:
            self._printed.add(reason)
            traceback.print_exception(error, file=sys.stderr)
        return reason

    def _compute(self, order: Compute, asked_at: float, post: Callable[[Event], None]) -> None:
        begin = time.monotonic()
        if self._injector is not None:
            self._injector.before(order.round, asked_at, self._stop)
        out = self._buffers.spare() if order.digest_only else self._buffers.room(order.round)
        computing = time.monotonic()
        done = pieces = 0
        for piece in order.pieces:
            if self._stop.is_set() or not self._add_piece(piece, order, out, pieces, post):
                break
            done += samples_in((piece,))
            pieces += 1
            if order.watched and pieces < len(order.pieces):
                post(Advanced(round=order.round, task=order.task, pieces=pieces))
        self._settle(out)
        total = samples_in(order.pieces)
        finished = done == total and not self._stop.is_set()
        ended = time.monotonic()
        if not finished:
            late = ended - self._stopped_at
            if self._injector is not None:
                late += self._injector.left(order.round)
            post(ComputationStopped(round=order.round, task=order.task, seconds=late))
        is_refused = self._reports_failures and self._refuses_nonfinite and not order.digest_only
        if finished and is_refused and not self._is_finite(out):
            post(Failed(round=order.round, task=order.task, reason=NOT_FINITE))
        elif finished or (order.salvage and done):
            vector = self._buffers.as_sent(out, order.round)
            covered = done / total
            post(Computed(round=order.round, task=order.task, vector=vector, covered=covered, pieces=pieces))
        if self._record is not None:  # last: others wait for the vector, but not for this
            kind = "compute" if finished else "interrupted"
            self._record(Interval(order.round, self._node, "stall", begin, computing))
            self._record(Interval(order.round, self._node, kind, computing, ended, done))

    def _settle(self, out: Vector) -> None:
        """Make all numbers readable in `out`: a device may still compute, or have them in its own memory."""
        settle = getattr(self._gradient, "settle", None)
        if settle is not None:
            settle(out)

    def _is_finite(self, out: Vector) -> bool:
        """Whether the result is finite; a gradient may know this without a pass over it here."""
        return bool(getattr(self._gradient, "is_finite", is_finite)(out))

    def _add_piece(
        self, piece: Piece, order: Compute, out: Vector, place: int, post: Callable[[Event], None]
    ) -> bool:  # fmt: skip
        """Compute a piece into `out`, or add it to the sum there; return whether it was finished.

        An audited piece is computed separately, so that it has its own digest.
        """
        assert self._gradient is not None
        begin = time.monotonic()
        is_audited = place in order.audited
        add = getattr(self._gradient, "add", None) if place and not is_audited else None
        target = out if not place or add is not None else self._buffers.spare()
        if (add or self._gradient)(piece, order.model, order.round, target, self._node) is False:
            return False
        if order.audited:
            self._settle(target)
        if is_audited:
            post(Digested(round=order.round, task=order.task, piece=place, digest=digest(on_host(target))))
        if target is not out:
            out += target
        if self._injector is not None:
            self._injector.after(order.round, samples_in((piece,)), time.monotonic() - begin, self._stop)
        return True
