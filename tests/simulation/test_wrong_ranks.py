"""A rank that is always wrong, and goes and comes back: in rounds that are audited nothing that it computed is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from codedreduce.protocol.core.audits import Audit
from codedreduce.protocol.core.events import AnyAction, Event, Received, Transmit
from codedreduce.protocol.core.messages import Checked, PartChunk
from codedreduce.simulator import Fault, Recorder
from codedreduce.simulator.faults import Kind
from codedreduce.simulator.scenario import ENDLESS, Scenario
from codedreduce.simulator.wrong import Wrong
from tests.simulation.invariants import Invariants
from tests.simulation.random_scenarios import random_wrong_ranks

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
    scenario.cluster(recorder=recorder, observer=Invariants()).run(scenario.rounds, latest=ENDLESS / 20)
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


def test_a_leader_that_comes_back_to_a_round_whose_sum_another_has_uses_nothing_that_nobody_compared() -> None:
    """It is stopped in a round, which the others end; then it leads in that round, and they are through with it."""
    scenario = Scenario(
        tree="3x1", stragglers=0, scheme="striped", compute=3.899261299437833, rounds=5, seed=862, samples=24,
        parameters=200, blocks=4, rate=1e3, latency=0.05, audit=1.0, quarantine=1000, wrongs=(Wrong(node=0, seed=862),),
        faults=(
            Fault(kind="crash", node=0, round=1, after=1.98, seconds=2.0, known_after=5.0),
            Fault(kind="pause", node=0, round=1, after=0.0, seconds=8.0, known_after=5.0),
            Fault(kind="crash", node=1, round=1, after=1.0, seconds=1.02, known_after=5.0),
            Fault(kind="pause", node=0, round=3, after=0.4, seconds=7.0, known_after=0.5),
            Fault(kind="duplicate", node=1, round=3, after=2.6, seconds=1.0),
            Fault(kind="crash", node=2, round=5, after=0.5, seconds=0.4, known_after=0.5),
        ),
    )  # fmt: skip
    recorder = Leaving()
    scenario.cluster(recorder=recorder, observer=Invariants()).run(scenario.rounds, latest=ENDLESS / 20)
    assert len(recorder.rounds) == scenario.rounds
    assert 3 not in recorder.different


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_two_that_differ_wait_for_a_third_that_is_there_and_not_at_the_round(seconds: float) -> None:
    """A process that was killed and started again takes a state first; the run would end before."""
    away = Fault(kind="crash", node=2, round=3, after=0.0, seconds=seconds, known_after=0.5)
    scenario = Scenario(
        tree="3x1", stragglers=0, scheme="striped", compute=2.38, rounds=5, seed=289, samples=24, parameters=12,
        blocks=4, chunk=4, rate=1e6, latency=0.05, audit=0.2, quarantine=1000, wrongs=(Wrong(node=0, seed=289),),
        faults=(away,),
    )  # fmt: skip
    recorder = Leaving()
    scenario.cluster(recorder=recorder, observer=Invariants()).run(scenario.rounds, latest=ENDLESS / 20)
    assert not recorder.troubles
    assert len(recorder.rounds) == scenario.rounds


def test_an_audited_round_of_which_somebody_has_the_sum_ends_for_all() -> None:
    """Nobody is wrong: but who has the sum computes nothing more of the round, so that nothing would pass."""
    scenario = Scenario(
        tree="3x1", stragglers=0, scheme="striped", compute=3.0, rounds=6, seed=437, samples=24, parameters=200,
        blocks=2, rate=1e3, audit=0.2, quarantine=3,
        faults=(
            Fault(kind="leave", node=1, round=3, after=1.0, seconds=0.0, known_after=5.0),
            Fault(kind="slow", node=0, round=4, after=1.0789660475501637, seconds=2.4902626267706576, factor=18.2),
            Fault(kind="cut", node=1, round=5, after=0.0, seconds=1.3, known_after=0.5),
            Fault(kind="cut", node=0, round=6, after=1.0, seconds=1.0, known_after=0.5),
            Fault(kind="pause", node=1, round=6, after=1.0, seconds=0.5, known_after=5.0),
        ),
    )  # fmt: skip
    recorder = Leaving()
    scenario.cluster(recorder=recorder, observer=Invariants()).run(scenario.rounds, latest=ENDLESS / 20)
    assert len(recorder.rounds) == scenario.rounds
    assert recorder.identical


@pytest.mark.parametrize(("seconds", "crashed", "unreachable"), [(9.0, 5, 13.0), (9.0, 6, 13.0), (12.0, 7, 22.0)])
@pytest.mark.parametrize("wrong", [(), (Wrong(node=0, seed=3),)])
def test_a_round_whose_sum_another_had_and_holds_no_more_ends(
    seconds: float, crashed: int, unreachable: float, wrong: tuple[Wrong, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 comes back to a round that rank 2 ended some rounds ago; of large vectors it holds the last sum only."""
    monkeypatch.setattr("codedreduce.protocol.core.settings.HELD_BYTES", 1)
    scenario = Scenario(
        tree="3x1", stragglers=0, scheme="striped", compute=3.0, rounds=9, seed=3, samples=24, parameters=40,
        blocks=2, chunk=8, audit=1.0, quarantine=1000, wrongs=wrong,
        faults=(
            Fault(kind="pause", node=0, round=3, after=0.2, seconds=seconds, known_after=0.5),
            Fault(kind="one-way", node=0, round=3, after=0.1, seconds=unreachable, known_after=0.5, others=(2,)),
            Fault(kind="crash", node=1, round=crashed, after=0.5, seconds=5.0, known_after=0.5),
        ),
    )  # fmt: skip
    recorder = Leaving()
    scenario.cluster(recorder=recorder, observer=Invariants()).run(scenario.rounds, latest=ENDLESS / 20)
    assert not recorder.different
    if wrong:  # two have computed it, and rank 2 computes nothing of it any more
        assert {rank for rank, _ in recorder.troubles} == {0, 1}
    else:
        assert len(recorder.rounds) == scenario.rounds


def test_a_round_in_which_every_rank_was_found_to_be_wrong_ends_the_run() -> None:
    """Two that compute the same wrong bits outvote the others in one block, and are outvoted in another."""
    scenario = Scenario(
        tree="4x1", stragglers=0, scheme="striped", compute=4.0, rounds=4, seed=8, samples=32, parameters=12, blocks=8,
        chunk=4, rate=1e6, audit=1.0, quarantine=1000, delays="exponential",
        wrongs=(Wrong(node=0, seed=8), Wrong(node=3, seed=8)),
    )  # fmt: skip
    recorder = Leaving()
    scenario.cluster(recorder=recorder, observer=Invariants()).run(scenario.rounds, latest=ENDLESS / 20)
    assert {rank for rank, _ in recorder.troubles} == {0, 1, 2, 3}
