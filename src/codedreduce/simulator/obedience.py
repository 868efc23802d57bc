"""Checks all ranks of a simulated run together: ranks must never follow two leaders at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from codedreduce.protocol import Machine, Rank
from codedreduce.protocol.core.rank_table import RankState


class Process(Protocol):
    """What is known of a node's process; `epoch` is another one for every process."""

    alive: bool
    epoch: int
    machine: Machine


class Obedience:
    """The generations that each process has followed so far, and their leaders.

    - A process never goes back to an earlier generation, nor takes a round from one.
    - A generation is led by one process at a time.
    - At least half of the voters follow a new leader; voters are the ranks that count themselves as such.
    """

    def __init__(self) -> None:
        self._followed: dict[tuple[int, int], int] = {}  # the latest generation of a process
        self._led_by: dict[int, tuple[int, int]] = {}

    def check(self, number: int, nodes: Mapping[int, Process]) -> None:
        """Check a rank after an event."""
        machine, epoch = nodes[number].machine, nodes[number].epoch
        if not isinstance(machine, Rank):
            return
        generation, of = machine.generation, (number, epoch)
        if generation < self._followed.get(of, 0):
            raise AssertionError(f"rank {number} went back to generation {generation}")
        self._followed[of] = generation
        if machine.begun_in > generation:
            raise AssertionError(f"rank {number} obeys generation {machine.begun_in}, but follows {generation}")
        if not machine.leads:
            return
        if generation and generation not in self._led_by:
            self._check_following(number, generation, nodes)
        if self._led_by.setdefault(generation, of) != of and generation:
            other, its_process = self._led_by[generation]
            if nodes[other].alive and nodes[other].epoch == its_process:
                raise AssertionError(f"generation {generation} is led by {self._led_by[generation]} and {of}")

    def _check_following(self, number: int, generation: int, nodes: Mapping[int, Process]) -> None:
        """Check the votes for a new leader; ranks that followed it may have failed or left by now."""
        out = (RankState.JOINING, RankState.LEFT)
        processes = {one: node.epoch for one, node in nodes.items() if node.alive}
        ranks = {one: machine for one in processes if isinstance(machine := nodes[one].machine, Rank)}
        there = {one for one, machine in ranks.items() if machine.state not in out and not _is_new(machine)}
        voters = {one for one, machine in ranks.items() if machine.has_say}
        followed = {of for of, latest in self._followed.items() if latest >= generation}
        following = {(one, its) for one, its in followed if processes.get(one) != its or one in voters}
        if 2 * len(following) < len(there & voters):
            raise AssertionError(f"rank {number} leads generation {generation}, but only {following} follow")


def _is_new(machine: Rank) -> bool:
    """Whether a process would lead a run, has not begun one, and does not know yet of a run without it."""
    return machine.leads and not machine.begun and machine.state is RankState.RESTING
