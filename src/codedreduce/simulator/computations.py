"""Simulated computations: stalls and slowness, shared cores, and the result of an interrupted computation."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from codedreduce.protocol.core.events import Advanced, Cancel, Compute, Computed, Digested, Failed
from codedreduce.run.delays import Delays
from codedreduce.run.journal import Interval
from codedreduce.schemes.plan import Piece, samples_in
from codedreduce.simulator.network import Cores
from codedreduce.simulator.nodes import Nodes
from codedreduce.simulator.wrong import Digests, Wrongs
from codedreduce.vectors import Vector

#: Rounds for which delays are kept: late workers may still compute for an earlier one.
ROUNDS_KEPT = 5

#: Samples that a finished piece may lack: the rounding error when times are converted to samples.
ROUNDING = 1e-6


class Computation(NamedTuple):
    """A node's computation, its start, and the seconds that a sample takes."""

    action: Compute
    began: float
    samples: int
    sample_seconds: float


class Computations:
    """The computations of all nodes, at most one per node at a time."""

    def __init__(
        self, nodes: Nodes, gradients: Wrongs, delays: Delays, sample_seconds: float, cores: Cores | None
    ) -> None:
        self._nodes = nodes
        self._kernel = nodes.kernel
        self._gradients = gradients
        self._draw = lru_cache(ROUNDS_KEPT)(delays.draw)
        self._sample_seconds = sample_seconds
        self._cores = cores
        self._running: dict[int, Computation] = {}
        self._stalls: dict[int, tuple[int, float]] = {}  # by node: the round of the start-up delay, and its end
        self._broken: Counter[int] = Counter()  # by node: active faults that make computations fail
        self._samples = 0.0  # computed since the last call of `take_samples`
        self._first = nodes.plan.computing.start

    def take_samples(self) -> float:
        """The number of samples computed since the last call."""
        samples, self._samples = self._samples, 0.0
        return samples

    def start(self, node: int, action: Compute) -> None:
        """Start a computation, in place of the node's current one."""
        self.stop(node)
        now = self._kernel.now
        begin, slowness, samples = now, 1.0, samples_in(action.pieces)
        if node >= self._first:  # a root in place of workers computes without faults
            draw = self._draw(action.round)
            if self._stalls.get(node, (0, 0.0))[0] != action.round:
                self._stalls[node] = (action.round, now + float(draw.startup[node - self._first]))
            begin, slowness = max(now, self._stalls[node][1]), float(draw.slowness[node - self._first])
        running = self._running[node] = Computation(action, begin, samples, self._sample_seconds * slowness)
        due = begin + samples * self._sample_seconds * slowness
        if action.watched:
            self._watch(node, running, 1)
        if self._cores is None:
            self._kernel.at(due, self._done, node, running)
        else:
            self._kernel.at(begin, self._share_cores, self._cores, node, running, due)

    def _watch(self, node: int, running: Computation, pieces: int) -> None:
        """Report to the node when this many pieces are done, then each further piece but the last."""
        if pieces < len(running.action.pieces):
            samples = samples_in(running.action.pieces[:pieces])
            self._kernel.at(running.began + samples * running.sample_seconds, self._advanced, node, running, pieces)

    def _advanced(self, node: int, running: Computation, pieces: int) -> None:
        if self._running.get(node) is running:
            action = running.action
            self._nodes.dispatch(node, Advanced(round=action.round, task=action.task, pieces=pieces))
            self._watch(node, running, pieces + 1)

    def _share_cores(self, cores: Cores, node: int, running: Computation, due: float) -> None:
        """On shared cores a computation takes its specified time, or longer if a core finishes it later."""
        if self._running.get(node) is running:
            done = cores.calculated_at(self._kernel.now, running.samples)
            self._kernel.at(max(due, done), self._done, node, running)

    def _done(self, node: int, running: Computation) -> None:
        if self._running.get(node) is not running:
            return
        del self._running[node]
        action = running.action
        self._count(node, "compute", running, running.samples)
        if self._broken[node]:
            self._nodes.dispatch(node, Failed(round=action.round, task=action.task, reason=f"{node} is broken"))
            return
        vector, digests = self._evaluate(node, action, action.pieces)
        self._report(node, Computed(round=action.round, task=action.task, vector=vector), digests)

    def stop(self, node: int, _: Cancel | None = None) -> None:
        """Interrupt a computation: its finished part counts as work, and is reported if it is to be salvaged."""
        running = self._running.pop(node, None)
        if running is None:
            return
        action = running.action
        done = max(0.0, self._kernel.now - running.began) / running.sample_seconds
        self._count(node, "interrupted", running, min(done, running.samples))
        if action.salvage and (finished := _finished(action.pieces, done)):
            vector, digests = self._evaluate(node, action, finished)
            covered = samples_in(finished) / running.samples
            event = Computed(
                round=action.round, task=action.task, vector=vector, covered=covered, pieces=len(finished)
            )  # fmt: skip
            self._kernel.at(self._kernel.now, self._report, node, event, digests)

    def _report(self, node: int, computed: Computed, digests: Digests) -> None:
        """Report a result to the node, after the digests of audited pieces."""
        for piece, digest in digests:
            self._nodes.dispatch(
                node, Digested(round=computed.round, task=computed.task, piece=piece, digest=digest)
            )  # fmt: skip
        self._nodes.dispatch(node, computed)

    def _evaluate(self, node: int, action: Compute, pieces: tuple[Piece, ...]) -> tuple[Vector, Digests]:
        return self._gradients.of_pieces(node, action.round, pieces, action.model, action.audited)

    def break_down(self, node: int) -> None:
        """Let every computation of a node fail at its end."""
        self._broken[node] += 1

    def mend(self, node: int) -> None:
        """End one such fault."""
        self._broken[node] -= 1

    def lose(self, node: int) -> None:
        """Drop the computation of a process that is gone."""
        self._running.pop(node, None)

    def _count(self, node: int, kind: str, running: Computation, samples: float) -> None:
        self._samples += samples
        now, round_ = self._kernel.now, running.action.round
        self._nodes.recorder.add(Interval(round_, node, kind, min(running.began, now), now, int(samples)))


def _finished(pieces: tuple[Piece, ...], samples: float) -> tuple[Piece, ...]:
    """The pieces, from the first one on, that are done after this many samples."""
    for place, piece in enumerate(pieces):
        samples -= samples_in((piece,))
        if samples < -ROUNDING:
            return pieces[:place]
    return pieces
