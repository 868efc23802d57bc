"""What must hold after every step of a simulated run: an observer of all nodes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from codedreduce.protocol import Rank
from codedreduce.protocol.core.events import Aggregated, AnyAction
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.simulator.nodes import SimulatedNode


class Invariants:
    """Checks the machine that has handled an event, its gradient, and that ranks never follow two leaders at once.

    - A gradient does not change after its round.
    - A process never goes back to an earlier generation, nor takes a round from one.
    - A generation is led by one process at a time.
    - At least half of the voters follow a new leader; voters are the ranks that count themselves as such.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, np.ndarray, int]] = {}  # by node: the round, the last gradient, its checksum
        self._followed: dict[tuple[int, int], int] = {}  # the latest generation of a process
        self._led_by: dict[int, tuple[int, int]] = {}

    def __call__(self, number: int, actions: Sequence[AnyAction], nodes: Mapping[int, SimulatedNode]) -> None:
        machine = nodes[number].machine
        machine.check_invariants()
        if isinstance(machine, Rank):
            self._check_rank(number, machine, nodes)
        for action in actions:
            if isinstance(action, Aggregated):
                self._check_last_sum(number)
                self._sums[number] = action.round, action.vector, zlib.crc32(action.vector.data)

    def _check_last_sum(self, number: int) -> None:
        if number in self._sums:
            round_, vector, checksum = self._sums[number]
            assert zlib.crc32(vector.data) == checksum, f"the gradient of round {round_} changed after the round"

    def _check_rank(self, number: int, machine: Rank, nodes: Mapping[int, SimulatedNode]) -> None:
        generation, of = machine.generation, (number, nodes[number].epoch)
        assert generation >= self._followed.get(of, 0), f"rank {number} went back to generation {generation}"
        self._followed[of] = generation
        obeyed = machine.begun_in
        assert obeyed <= generation, f"rank {number} obeys generation {obeyed}, but follows {generation}"
        if not (machine.leads and generation):
            return
        if generation not in self._led_by:
            self._check_following(number, generation, nodes)
        other, its_process = self._led_by.setdefault(generation, of)
        if (other, its_process) != of and nodes[other].alive:
            assert nodes[other].epoch != its_process, f"generation {generation} is led by {other} and {number}"

    def _check_following(self, number: int, generation: int, nodes: Mapping[int, SimulatedNode]) -> None:
        """Check the votes for a new leader; ranks that followed it may have failed or left by now."""
        alive = {one: node for one, node in nodes.items() if node.alive}
        out = (RankState.JOINING, RankState.LEFT)
        ranks = {one: node.machine for one, node in alive.items() if isinstance(node.machine, Rank)}
        there = {one for one, machine in ranks.items() if machine.state not in out and not _is_new(machine)}
        voters = {one for one, machine in ranks.items() if machine.has_say}
        followed = {of for of, latest in self._followed.items() if latest >= generation}
        is_now = {(one, node.epoch) for one, node in alive.items()}
        following = {of for of in followed if of not in is_now or of[0] in voters}
        assert 2 * len(following) >= len(there & voters), (
            f"rank {number} leads generation {generation}, but only {following} follow"
        )


def _is_new(machine: Rank) -> bool:
    """Whether a process would lead a run, has not begun one, and does not know yet of a run without it."""
    return machine.leads and not machine.begun and machine.state is RankState.RESTING
