"""A rank that is always wrong, and goes and comes back: in rounds that are audited nothing that it computed is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from codedreduce.protocol.audits import Audit
from codedreduce.protocol.events import AnyAction, Event, Received, Transmit
from codedreduce.protocol.messages import Checked, PartChunk
from codedreduce.worlds.simulated import Fault, Recorder
from codedreduce.worlds.simulated.faults import Kind
from codedreduce.worlds.simulated.scenario import ENDLESS, Scenario, random_wrong_ranks
from codedreduce.worlds.simulated.wrong import Wrong

from .check_run import check_seed

#: Rounds 1 to 8 are all drawn: in round 6 it is the last block of the wrong rank's unit.
AUDIT = Audit(fraction=0.2, seed=7)
WRONG, ROUNDS, BLOCKS = 2, 8, 4

SMALL = Scenario(
    tree="4x1", stragglers=0, scheme="striped", compute=4.0, rounds=ROUNDS, seed=AUDIT.seed, samples=32, parameters=12,
    blocks=BLOCKS, chunk=4, rate=1e6, audit=AUDIT.fraction, quarantine=1000, wrongs=(Wrong(node=WRONG),),
)  # fmt: skip


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(SMALL, field) for field in SMALL.__struct_fields__}, **changes})


class Leaving(Recorder):
    """What leaves the wrong rank; and of which rounds rank 0, which leads, hears a digest while they are on."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[int] = set()
        self.heard: set[int] = set()

    @property
    def tracing(self) -> bool:
        return True

    def trace(self, now: float, node: int, event: Event, actions: Sequence[AnyAction]) -> None:
        match event:
            case Received(sender=sender, message=Checked() as message) if (node, sender) == (0, WRONG):
                if message.round == len(self.rounds) + 1:
                    self.heard.add(message.round)
        if node == WRONG:
            chunks = [action.message for action in actions if isinstance(action, Transmit)]
            self.sent |= {chunk.round for chunk in chunks if isinstance(chunk, PartChunk)}


def run(scenario: Scenario) -> set[int]:
    """Run it; in which rounds the wrong rank was named."""
    recorder = Leaving()
    scenario.cluster(recorder=recorder, checking=True).run(scenario.rounds, latest=ENDLESS / 20)
    named = {note.round for _, _, note in recorder.notes if note.kind == "mistaken" and note.nodes == (WRONG,)}
    assert len(recorder.rounds) == scenario.rounds, [note.reason for _, _, note in recorder.notes][-3:]
    assert not recorder.different, "the sum of an audited round has something in it that is wrong"
    assert not recorder.sent, "what is wrong has left the rank that computed it"
    assert recorder.heard <= named, "what it said is compared in the same round"
    return named


def test_the_rounds_are_drawn_as_it_is_said() -> None:
    assert AUDIT.blocks(6, unit=WRONG, of=BLOCKS) == (3,)
    assert all(AUDIT.blocks(round_, unit, BLOCKS) for round_ in range(1, ROUNDS + 1) for unit in range(4))


@pytest.mark.parametrize("kind", ["crash", "leave", "cut", "pause"])
@pytest.mark.parametrize("delays", ["calm", "exponential"])
def test_a_wrong_rank_that_comes_back_in_an_audited_round(kind: Kind, delays: str) -> None:
    """At every moment of some rounds; it takes a state where its process is another, else the sums that it missed."""
    named: set[int] = set()
    for seconds in np.arange(3.0, 7.0, 0.25):
        away = Fault(kind=kind, node=WRONG, round=1, after=0.9, seconds=float(seconds), known_after=1.0)
        named |= run(changed(faults=(away,), delays=delays))
    assert {5, 6, 7} <= named, "it comes back, and is found, or this test shows nothing"


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_faults_beside_ranks_that_are_always_wrong(first: int) -> None:
    for seed in range(first, first + 25):
        check_seed(seed, Path("traces"), random_wrong_ranks)


@pytest.mark.parametrize(
    "seed",
    [
        350,  # a rank that was stopped hears of all blocks at once: it has not got the sum, which others did
    ],
)
def test_random_faults_that_once_led_to_a_sum_that_was_wrong(seed: int) -> None:
    check_seed(seed, Path("traces"), random_wrong_ranks)
