"""The local world: one process a node on this machine, forked from the one that trains, which is the root.

On a site (a lab) each process moves to its node's place first, and they talk by TCP.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import zmq
from threadpoolctl import threadpool_limits

from codedreduce.errors import TooManyStragglers, WorkerFailed
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Aggregated, Begin, Event, Note, Vector
from codedreduce.schemes import Plan, RingPlan
from codedreduce.worlds.inject import Injection
from codedreduce.worlds.site import Site, meeting_at
from codedreduce.worlds.zeromq.arena import remove_arenas
from codedreduce.worlds.zeromq.computing import Gradient, Record
from codedreduce.worlds.zeromq.node import Meeting
from codedreduce.worlds.zeromq.rendezvous import Directory
from codedreduce.worlds.zeromq.root import RootNode, RoundResult
from codedreduce.worlds.zeromq.serve import serve_worker

FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)


class Activity(NamedTuple):
    """What a worker did for a while."""

    round: int
    node: int
    kind: str
    begin: float
    end: float
    samples: int


class Workers:
    """Worker processes: started, watched, and ended however the run ends."""

    def __init__(
        self,
        serve: Callable[[int], object],
        plan: Plan,
        noted: Callable[[Note], None] | None,
        place: Callable[[int], None] | None = None,
    ) -> None:
        self._plan = plan
        self._noted = noted
        self._errors, self._error_end = os.pipe()
        self._dead: set[int] = set()
        self.notes: list[Note] = []
        self.processes: dict[int, BaseProcess] = {}
        context = multiprocessing.get_context("fork")
        sys.stdout.flush()
        sys.stderr.flush()
        for node in range(1, plan.workers + 1):
            process = context.Process(target=_child, args=(serve, node, self._error_end, place), daemon=True)
            process.start()
            self.processes[node] = process

    def watch(self) -> None:
        """A worker that raised ends the run; one that was killed is late for ever, which is what coding is for."""
        if select.select([self._errors], [], [], 0)[0]:
            who, _, message = os.read(self._errors, 4096).decode(errors="replace").partition("\t")
            raise WorkerFailed(int(who), message.strip().partition("\n")[0])
        for node, process in self.processes.items():
            if node not in self._dead and process.exitcode is not None:
                self._dead.add(node)
                how = f"was killed by signal {-process.exitcode}" if process.exitcode < 0 else "left"
                self.notes.append(Note(kind="dead", reason=f"worker {node} {how}", round=0, nodes=(node,)))
                if self._noted is not None:
                    self._noted(self.notes[-1])
                if not self._plan.tolerates(self._dead):
                    tolerance = getattr(self._plan.scheme, "stragglers", 0)
                    raise TooManyStragglers(missing=self._dead, tolerance=tolerance, among="workers of this machine")

    def end(self, patience: float) -> None:
        """Wait for all to leave, then end those that have not."""
        deadline = time.monotonic() + patience
        for process in self.processes.values():
            process.join(timeout=max(0.0, deadline - time.monotonic()))
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self.processes.clear()
        for end in (self._errors, self._error_end):
            os.close(end)


class LocalCluster:
    """A root in this process and workers as processes beside it, each with a thread that talks and one that computes.

    `gradient(piece, model, round, out)` is inherited by the workers as it is.
    """

    def __init__(
        self,
        plan: Plan,
        gradient: Gradient,
        settings: Settings,
        *,
        dtype: np.dtype[np.generic] = FLOAT32,
        injection: Injection | None = None,
        shared_memory: bool = True,
        record: bool = False,
        noted: Callable[[Note], None] | None = None,
        site: Site | None = None,
    ) -> None:
        self._noted = noted
        self._site = site
        self.plan = plan
        self.settings = settings
        self.dtype = dtype
        run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.meeting = meeting_at(site, run) if site is not None else Meeting(run=run, shared_memory=shared_memory)
        self._gradient = gradient
        self._injection = injection
        self._workers: Workers | None = None
        self._root: RootNode | None = None
        self._unread = b""
        self._records, self._workers_end = os.pipe() if record else (-1, -1)
        for end in (self._records, self._workers_end) if record else ():
            os.set_blocking(end, False)

    def __enter__(self) -> Self:
        try:
            place = self._site.enter if self._site is not None else None
            self._workers = Workers(self._serve, self.plan, self._noted, place)
            with self._site.at(0) if self._site is not None else contextlib.nullcontext():
                self._listen(self._workers)
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen(self, workers: Workers) -> None:
        self._root = RootNode(self.meeting, self.plan, self.settings, self.dtype, workers.watch, self._noted)

    def _wait(self) -> None:
        assert self._root is not None
        self._root.wait_for_all()

    def _serve(self, node: int) -> object:
        return serve_worker(
            self.meeting, node, self.plan, self.settings, self.dtype, self._gradient, self._injection,
            record=self._recorder(node),
        )  # fmt: skip

    def _recorder(self, node: int) -> Record | None:
        """In a worker: writes what it did where the root can read it."""
        workers = self._workers_end
        if workers < 0:
            return None

        def record(round_: int, kind: str, begin: float, end: float, samples: int) -> None:
            with contextlib.suppress(BlockingIOError):
                os.write(workers, f"{round_} {node} {kind} {begin!r} {end!r} {samples}\n".encode())

        return record

    def activities(self) -> list[Activity]:
        """What workers have done since last asked, if it is recorded."""
        if self._records < 0:
            return []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._records, 1 << 20):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        found = []
        for line in lines:
            round_, node, kind, begin, end, samples = line.decode().split()
            found.append(Activity(int(round_), int(node), kind, float(begin), float(end), int(samples)))
        return found

    @property
    def processes(self) -> dict[int, int]:
        """The process id of each worker."""
        found = self._workers.processes if self._workers is not None else {}
        return {node: process.pid or -1 for node, process in found.items()}

    @property
    def notes(self) -> list[Note]:
        """What the root and the workers' processes had to tell."""
        return [*(self._root.notes if self._root else ()), *(self._workers.notes if self._workers else ())]

    def aggregate(self, model: Vector) -> RoundResult:
        """One round: the gradient sum of the whole batch under this model."""
        assert self._root is not None
        return self._root.aggregate(model)

    def close(self) -> None:
        """End all workers and take everything away."""
        if self._root is not None:
            self._root.close()
        if self._workers is not None:
            self._workers.end(2.0 if self._root is not None else 0.0)
            self._workers = None
        self._root = None
        for end in (self._records, self._workers_end):
            if end >= 0:
                os.close(end)
        self._records = self._workers_end = -1
        remove_arenas(self.meeting.run)


class LocalRing(LocalCluster):
    """A ring without a root: every worker trains, with `update(model, sum, round)`, and the first one tells."""

    def __init__(
        self,
        plan: RingPlan,
        gradient: Gradient,
        settings: Settings,
        *,
        update: Callable[[Vector, Vector, int], Vector],
        model: Vector,
        rounds: int,
        injection: Injection | None = None,
        shared_memory: bool = True,
        record: bool = False,
        noted: Callable[[Note], None] | None = None,
        site: Site | None = None,
    ) -> None:
        super().__init__(
            plan, gradient, settings, injection=injection, shared_memory=shared_memory, record=record, noted=noted,
            site=site,
        )  # fmt: skip
        self._update = update
        self._model = model
        self._rounds = rounds
        self._told, self._tell_end = os.pipe()
        self._directory: Directory | None = None

    def _listen(self, workers: Workers) -> None:
        self._directory = Directory(zmq.Context.instance(), self.meeting.address, self.meeting.run)

    def _wait(self) -> None:
        """There is no root that could know when all are in; the first round waits for them."""

    def _serve(self, node: int) -> object:
        model = self._model
        began = time.monotonic()

        def aggregated(action: Aggregated) -> Event | None:
            nonlocal model, began
            now = time.monotonic()
            seconds, began = now - began, now
            model = self._update(model, action.vector, action.round)
            if node == 1:
                os.write(self._tell_end, f"{action.round} {seconds!r} {float(model[-1])!r}\n".encode())
            if action.round < self._rounds:
                return Begin(round=action.round + 1, model=model)
            if node == 1:
                with os.fdopen(os.dup(self._tell_end), "wb") as pipe:
                    pipe.write(b"model\n" + np.ascontiguousarray(model).tobytes())
            return None

        return serve_worker(
            self.meeting, node, self.plan, self.settings, self.dtype, self._gradient, self._injection,
            begin=Begin(round=1, model=model), aggregated=aggregated, record=self._recorder(node),
        )  # fmt: skip

    def run(self, told: Callable[[int, float, float], None]) -> Vector:
        """Run all rounds, telling of each its seconds and loss; the model they end with."""
        assert self._directory is not None
        assert self._workers is not None
        os.set_blocking(self._told, False)
        pending = b""
        poller = zmq.Poller()
        poller.register(self._told, zmq.POLLIN)
        poller.register(self._directory.socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(200))
            self._directory.serve()
            self._workers.watch()
            if self._told in ready:
                pending += os.read(self._told, 1 << 20)
            while b"\n" in pending:
                line, _, rest = pending.partition(b"\n")
                if line == b"model":
                    if len(rest) < self._model.nbytes:
                        break
                    return np.frombuffer(rest[: self._model.nbytes], dtype=self._model.dtype).copy()
                pending = rest
                round_, seconds, loss = line.split()
                told(int(round_), float(seconds), float(loss))

    def close(self) -> None:
        """End all workers; a ring has nobody to tell them."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None
        super().close()
        for end in (self._told, self._tell_end):
            with contextlib.suppress(OSError):
                os.close(end)


def _child(serve: Callable[[int], object], node: int, errors: int, place: Callable[[int], None] | None = None) -> None:
    """What a forked worker does: live, and leave no trace but its last words."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the root decides when it is over
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    sys.setswitchinterval(0.0005)  # the thread that talks must not wait for the one that computes
    try:
        if place is not None:
            place(node)
        with threadpool_limits(1):  # one core a worker, or all of them fight for all
            serve(node)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        os.write(errors, f"{node}\t{text}\n".encode()[:4096])
        os._exit(1)
    os._exit(0)


def die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
