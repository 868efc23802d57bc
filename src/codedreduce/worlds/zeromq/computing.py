"""The thread that computes: takes what the driver wants computed, stops at the next safe point when it is not."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from codedreduce.protocol.events import Aggregated, Cancel, Compute, Computed, Event, Finished, Interrupted, Vector
from codedreduce.schemes.work import Piece, samples_in
from codedreduce.worlds.inject import Injector
from codedreduce.worlds.zeromq.arena import Arena
from codedreduce.worlds.zeromq.driver import Outward

#: Told of everything a worker did: round, what, from when, until when, how many samples.
Record = Callable[[int, str, float, float, int], None]


class Gradient(Protocol):
    """Writes the gradient sum of a piece, under a model, into `out`; called in the process of worker `node`.

    One that has an attribute `should_stop` is given a function there, to ask now and then whether to go on.
    """

    def __call__(self, piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> bool | None:
        """Overwrite `out`. False: it was told to stop, and has not finished."""


class Computing:
    """Computes for one worker, on the thread that calls `serve`."""

    def __init__(
        self,
        gradient: Gradient,
        *,
        node: int,
        length: int,
        dtype: np.dtype[np.generic],
        arena: Arena | None = None,
        injector: Injector | None = None,
        aggregated: Callable[[Aggregated], Event | None] | None = None,
        record: Record | None = None,
        wire: np.dtype[np.generic] | None = None,
    ) -> None:
        self._wire = wire
        self._gradient = gradient
        self._node = node
        self._length = length
        self._dtype = dtype
        self._arena = arena
        self._injector = injector
        self._aggregated = aggregated
        self._record = record
        self._orders: queue.SimpleQueue[tuple[float, Compute | Aggregated | Finished | Cancel]] = queue.SimpleQueue()
        self._stop = threading.Event()
        if hasattr(gradient, "should_stop"):  # a gradient that takes long can look up in between
            gradient.should_stop = self._stop.is_set
        self._changing = threading.Lock()  # an order and the stop it brings are one
        self._stopped_at = 0.0
        self._post: Callable[[Event], None] | None = None
        self._spare = np.empty(0, dtype=dtype)

    def tell(self, what: Outward) -> None:
        """Called by the driver: an order to compute replaces what is being computed."""
        if isinstance(what, Compute | Finished | Aggregated | Cancel):
            with self._changing:
                self._stopped_at = time.monotonic()
                self._stop.set()
                self._orders.put((self._stopped_at, what))

    def serve(self, post: Callable[[Event], None]) -> Finished:
        """Compute until the node has left."""
        self._post = post
        while True:
            asked_at, order = self._orders.get()
            if isinstance(order, Finished):
                return order
            if isinstance(order, Aggregated):
                event = self._aggregated(order) if self._aggregated is not None else None
                if event is not None:
                    post(event)
                continue
            with self._changing:
                replaced = not self._orders.empty()  # whatever came meanwhile
                if not replaced:
                    self._stop.clear()
            if isinstance(order, Compute) and not replaced:
                self._compute(order, asked_at)
            del order  # or its model would stay until the next one is here

    def _compute(self, order: Compute, asked_at: float) -> None:
        assert self._post is not None
        begin = time.monotonic()
        if self._injector is not None:
            self._injector.before(order.round, asked_at, self._stop)
        out = self._arena.slot(order.round) if self._arena is not None else np.empty(self._length, dtype=self._dtype)
        computing = time.monotonic()
        done = 0
        for index, piece in enumerate(order.pieces):
            if self._stop.is_set() or not self._add_piece(piece, order, out, first=index == 0):
                break
            done += samples_in((piece,))
        total = samples_in(order.pieces)
        finished = done == total and not self._stop.is_set()
        ended = time.monotonic()
        if not finished:
            late = ended - self._stopped_at
            if self._injector is not None:
                late += self._injector.left(order.round)
            self._post(Interrupted(round=order.round, task=order.task, seconds=late))
        if finished or (order.salvage and done):
            if self._wire is not None:  # as if it had travelled: a parent's own unit may come from its child
                out[:] = out.astype(self._wire)
            self._post(Computed(round=order.round, task=order.task, vector=out, covered=done / total))
        if self._record is not None:  # last: somebody waits for the vector, nobody for this
            self._record(order.round, "stall", begin, computing, 0)
            self._record(order.round, "compute" if finished else "interrupted", computing, ended, done)

    def _add_piece(self, piece: Piece, order: Compute, out: Vector, *, first: bool) -> bool:
        """Compute a piece into `out`, or add it to what is there; whether it was computed to its end."""
        begin = time.monotonic()
        if not first and len(self._spare) != self._length:
            self._spare = np.empty(self._length, dtype=self._dtype)
        target = out if first else self._spare
        if self._gradient(piece, order.model, order.round, target, self._node) is False:
            return False
        if not first:
            out += self._spare
        if self._injector is not None:
            self._injector.after(order.round, samples_in((piece,)), time.monotonic() - begin, self._stop)
        return True
