"""Striped, in virtual time: the same bits on every rank, whoever is late, paused, cut off, gone, or behind."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core import settings
from codedreduce.protocol.core.events import Aggregated, Received, Renewed, Transmit
from codedreduce.simulator import Fault, Gradients, Recorder
from codedreduce.simulator.scenario import ENDLESS, Scenario
from tests.simulation.invariants import Invariants

from .check_run import check_run, trace_of

CALM = Scenario(
    tree="6x1", stragglers=0, scheme="striped", samples=144, parameters=60, stripes=6, blocks=4, chunk=5, compute=6.0,
    rounds=8, rate=1e6, latency=1e-4, say_waiting_after=100.0,
)  # fmt: skip


def changed(**changes: object) -> Scenario:
    return Scenario(**{**{field: getattr(CALM, field) for field in CALM.__struct_fields__}, **changes})


class Watched:
    """A run of which every rank's sums are kept, and what it said and took."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.sums: dict[tuple[int, int], bytes] = {}
        self.sent: list[tuple[int, Transmit]] = []
        self.renewed: list[tuple[int, int]] = []
        self.most_held: dict[int, int] = {}
        self.cluster = scenario.cluster(observer=Invariants())
        for rank in self.cluster.plan.computing:
            self._watch(rank)
        self.recorder = self.cluster.run(scenario.rounds, latest=ENDLESS / 2)
        self.cluster.kernel.run(latest=self.cluster.kernel.now + 100.0)
        self.cluster.end(self.cluster.kernel.now + 1000.0)

    def _watch(self, rank: int) -> None:
        machine = self.cluster.nodes.machine(rank)
        handle = machine.handle

        def watching(event, now):
            actions = handle(event, now)
            for action in actions:
                if isinstance(action, Aggregated):
                    self.sums[rank, action.round] = action.vector.tobytes()
                elif isinstance(action, Transmit):
                    self.sent.append((rank, action))
                elif isinstance(action, Renewed):
                    self.renewed.append((rank, action.round))
            if isinstance(event, Received):
                self.most_held[rank] = max(self.most_held.get(rank, 0), machine.held())
            return actions

        machine.handle = watching

    def of(self, kind: type) -> list[tuple[int, Transmit]]:
        return [(rank, action) for rank, action in self.sent if isinstance(action.message, kind)]


def same_bits(scenario: Scenario) -> Watched:
    """Run it; every sum that any rank had is what the plan says, and rank 0 had all of them."""
    run = Watched(scenario)
    plan = scenario.plan()
    gradients = Gradients(scenario.samples, scenario.parameters, scenario.seed)
    for (rank, round_), bits in run.sums.items():
        model = gradients.model(round_)
        right = plan.reference(lambda piece, model=model: gradients.of_piece(piece, model)).tobytes()
        assert bits == right, f"rank {rank} in round {round_}"
    assert {round_ for rank, round_ in run.sums if rank == 0} == set(range(1, scenario.rounds + 1))
    return run


def all_have(run: Watched, ranks=None) -> None:
    for rank in run.cluster.plan.computing if ranks is None else ranks:
        missing = [r for r in range(1, run.scenario.rounds + 1) if (rank, r) not in run.sums]
        assert missing == [], f"rank {rank} has not had the sums of {missing}"


def all_end(run: Watched) -> None:
    """Whatever they missed: all are through with the last round."""
    for rank in run.cluster.plan.computing:
        assert run.cluster.nodes.machine(rank).round == run.scenario.rounds
        assert not run.cluster.nodes.is_alive(rank)


DELAYS = ["calm", "exponential", "bursty", "sticky", "stalls:0.2:3s", "one:5s", "worker:1:1.0:9s", "worker:4:1.0:2s"]


@pytest.mark.parametrize("delays", DELAYS)
@pytest.mark.parametrize("shape", [{}, {"reach": 2}, {"stripes": 2}, {"blocks": 1}, {"tree": "2x1", "stripes": 2}])
def test_the_same_bits_whoever_is_late(delays: str, shape: dict[str, object]) -> None:
    run = same_bits(changed(delays=delays, **shape) if "tree" not in shape or "4" not in delays else CALM)
    all_have(run)


def test_a_calm_round_does_nothing_twice_and_says_little() -> None:
    run = same_bits(CALM)
    assert {record.work for record in run.recorder.rounds} == {1.0}
    assert not run.of(said.Do)
    assert not run.of(said.NewReducer)
    assert not run.of(said.Want)
    ranks, rounds = 6, CALM.rounds
    assert len(run.of(said.Done)) == (ranks - 1) * rounds
    assert len(run.of(said.Go)) == (ranks - 1) * rounds


@pytest.mark.parametrize("later", ["0.015s", "0.02s"])
def test_where_a_unit_is_one_block_who_is_a_little_late_is_left_alone(later: str) -> None:
    """It cannot show that it has begun; what is done twice then is a whole unit, and a GPU cannot be interrupted."""
    run = same_bits(changed(blocks=1, tree="6x1", samples=48, compute=6 * 0.13, rounds=30, delays=f"stalls:0.3:{later}",
        parameters=600, rate=1e9))  # fmt: skip
    assert {log.work for log in run.cluster.recorder.rounds} == {1.0}


def test_every_link_carries_what_a_ring_s_would() -> None:
    """(N-1)/N of a vector each way in each half; headers, acknowledgements and small messages aside."""
    run = same_bits(changed(parameters=6000, chunk=500, rounds=4))
    vector = 4 * 6000 * 5 / 6
    carried = run.cluster.network.bytes_out[:6] / run.scenario.rounds
    assert carried.max() < 1.25 * 2 * vector


@pytest.mark.parametrize("kind", ["crash", "pause", "cut"])
@pytest.mark.parametrize("after", [0.0, 0.3, 0.99, 1.0005])
def test_one_that_is_gone_for_good(kind, after: float) -> None:
    run = same_bits(changed(faults=(Fault(kind=kind, node=3, round=3, after=after),)))
    all_have(run, [0, 1, 2, 4, 5])
    assert run.renewed == [], "nobody needs a state because somebody else is gone"
    assert run.recorder.seconds()[3:].max() < 2.5, "and is left out"


@pytest.mark.parametrize("kind", ["crash", "pause", "cut"])
def test_who_is_back_takes_part_again(kind) -> None:
    scenario = changed(faults=(Fault(kind=kind, node=3, round=2, after=0.4, seconds=1.5),), rounds=30)
    recorder = scenario.cluster(recorder=Recorder(timeline=range(31)), observer=Invariants()).run(scenario.rounds)
    computed = {interval.round for interval in recorder.intervals if interval.node == 3 and interval.kind == "compute"}
    assert max(computed) > 20, "it computes again"
    assert recorder.identical
    check_run(scenario)


def test_a_keeper_that_stops_is_replaced_and_its_stripe_sent_again() -> None:
    run = same_bits(changed(faults=(Fault(kind="pause", node=3, round=3, after=0.99, seconds=3.0),)))
    kept = {(action.message.stripe, action.message.reducer) for _, action in run.of(said.NewReducer)}
    assert {stripe for stripe, _ in kept} == {3}
    all_have(run)


def test_all_keepers_but_rank_0_stop() -> None:
    faults = tuple(Fault(kind="pause", node=rank, round=3, after=1.0001, seconds=60.0) for rank in range(1, 6))
    run = same_bits(changed(faults=faults))
    assert run.recorder.seconds()[2:].max() < 10.0, "rank 0 does all of it"
    # All have all sums, which is more than that they go on with a state: rank 0, which kept the stripes of the others,
    # holds the sums of 64 rounds of so short a vector, and the last 5 of 8 went by while they were paused.
    all_have(run)
    assert run.renewed == []
    all_end(run)


def test_all_but_rank_0_are_late() -> None:
    faults = tuple(Fault(kind="pause", node=rank, round=3, after=0.0, seconds=60.0) for rank in range(1, 6))
    run = same_bits(changed(faults=faults))
    assert run.recorder.seconds()[2:].max() < 10.0, "rank 0 does all of it"
    all_end(run)


def test_rank_0_alone_is_left() -> None:
    faults = tuple(Fault(kind="crash", node=rank, round=3, after=0.1 * rank) for rank in range(1, 6))
    run = same_bits(changed(faults=faults))
    assert run.recorder.seconds()[3:].max() == pytest.approx(6.0, rel=0.01)


def test_a_rank_alone_from_the_start() -> None:
    run = same_bits(changed(tree="1x1", stripes=1))
    assert not run.sent


def test_the_rank_that_is_named_is_late() -> None:
    for rank in (0, 3):
        run = Watched(changed(delays=f"rank:{rank}:1.0:9s", rounds=4))
        assert run.recorder.rounds[0].late == (rank,)


def test_who_falls_behind_steps_through_the_sums_it_missed() -> None:
    """It was cut off from what others sent for some rounds, no more than keepers hold."""
    run = same_bits(changed(faults=(Fault(kind="pause", node=3, round=3, after=0.2, seconds=3.0),)))
    all_have(run)
    assert run.renewed == []
    lossy = same_bits(changed(faults=(Fault(kind="corrupt", node=1, round=2, seconds=2.0),)))
    all_have(lossy)
    assert lossy.of(said.Want), "sums that were lost are asked for"


@pytest.fixture
def few_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with long vectors: keepers have the sums of 4 rounds, and every rank the last one."""
    monkeypatch.setattr(settings, "HELD_BYTES", 0)


ITS_STRIPE_IS_KEPT_BY_ANOTHER = Fault(kind="cut", node=3, round=2, after=0.4, seconds=1.5)


def test_who_does_not_know_that_its_stripe_was_kept_by_another_asks_who_leads() -> None:
    run = same_bits(changed(faults=(ITS_STRIPE_IS_KEPT_BY_ANOTHER,), rounds=12))
    assert run.renewed == []
    all_have(run)


@pytest.mark.usefixtures("few_are_held")
def test_if_that_has_not_got_it_any_more_it_takes_the_state() -> None:
    """Rounds that begin meanwhile must not put that off."""
    run = same_bits(changed(faults=(replace(ITS_STRIPE_IS_KEPT_BY_ANOTHER, seconds=3.5),), rounds=12))
    assert [rank for rank, _ in run.renewed] == [3]
    assert run.renewed[0][1] < 8
    all_have(run, [0, 1, 2, 4, 5])


@pytest.mark.usefixtures("few_are_held")
def test_who_falls_far_behind_takes_the_state() -> None:
    run = same_bits(changed(faults=(Fault(kind="cut", node=3, round=2, after=0.5, seconds=9.0),), rounds=20))
    assert [rank for rank, _ in run.renewed] == [3]
    ((_, renewed),) = run.renewed
    missed = [round_ for round_ in range(1, 21) if (3, round_) not in run.sums]
    assert missed == list(range(missed[0], renewed + 1)), "and is there for all that follow"
    all_have(run, [0, 1, 2, 4, 5])


@pytest.mark.usefixtures("few_are_held")
def test_a_state_comes_from_several() -> None:
    run = same_bits(changed(faults=(Fault(kind="cut", node=3, round=2, after=0.5, seconds=9.0),), rounds=20))
    givers = {rank for rank, action in run.of(said.StateChunk) if action.to == 3}
    assert len(givers) >= 2
    assert 0 not in givers, "rank 0 has enough to do"
    assert [rank for rank, _ in run.renewed] == [3]
    assert not any(run.cluster.nodes.machine(rank).states_held for rank in range(6)), "and nobody keeps it"


@pytest.mark.usefixtures("few_are_held")
@pytest.mark.parametrize("kind", ["crash", "pause", "cut", "slow"])
def test_a_giver_that_is_gone_or_slow_is_replaced(kind) -> None:
    """It goes when it has sent a piece; the state comes from the others, and in one go."""
    far_behind = Fault(kind="cut", node=3, round=2, after=0.5, seconds=9.0)
    calm = Watched(changed(faults=(far_behind,), rounds=20))
    givers = {rank for rank, action in calm.of(said.StateChunk)}
    ((_, renewed),) = calm.renewed
    for giver in givers:
        fault = Fault(kind=kind, node=giver, round=renewed + 1, after=0.0, seconds=30.0, factor=50.0)
        run = same_bits(changed(faults=(far_behind, fault), rounds=20))
        assert (3, renewed) in run.renewed or (3, renewed + 1) in run.renewed, "it is not waited for"
        all_end(run)


def test_a_new_process_takes_the_state() -> None:
    scenario = changed(faults=(Fault(kind="crash", node=3, round=2, after=0.5, seconds=3.0),), rounds=12)
    trace = trace_of(scenario)
    assert "node 3 Started" in trace.split("== round 2", 1)[1]
    assert trace.count("-> Renewed") == 1
    check_run(scenario)


def test_stripes_that_differ_from_round_to_round_give_the_same_bits() -> None:
    run = same_bits(changed(delays="worker:5:1.0:1.5s", rounds=14))
    weights = {action.message.reducers for _, action in run.of(said.Go)}
    assert len(weights) > 1, "who keeps how much changes"
    all_have(run)


@pytest.mark.parametrize("kind", ["duplicate", "reorder"])
def test_what_comes_twice_or_late_changes_nothing(kind) -> None:
    faults = tuple(Fault(kind=kind, node=rank, round=1, seconds=ENDLESS) for rank in range(1, 6))
    all_have(same_bits(changed(faults=faults)))


@pytest.mark.parametrize(
    ("scenario", "vectors"),
    [
        (CALM, 1.0),
        (changed(delays="stalls:0.2:3s", rounds=20), 2.0),
        (changed(delays="bursty", rounds=20), 2.0),
    ],
    ids=["calm", "stalls", "bursty"],
)  # fmt: skip
def test_what_a_keeper_holds(scenario: Scenario, vectors: float) -> None:
    """At most a vector of early stripes, and a stripe for each block that travels alone."""
    run = same_bits(scenario)
    chunks = run.cluster.nodes.machine(0).settings.chunks
    assert 0 < max(run.most_held.values()) <= vectors * chunks


def test_many_ranks_in_little_time() -> None:
    scenario = changed(
        tree="200x1", stripes=4, samples=1600, parameters=400, chunk=1 << 18, compute=200.0, rounds=1,
        delays="stalls:0.05:3s",
    )  # fmt: skip
    recorder = scenario.cluster().run(1)
    assert recorder.identical
    assert recorder.seconds().max() < 3.0


def test_the_same_run_again_to_the_byte() -> None:
    scenario = changed(
        delays="sticky",
        faults=(
            Fault(kind="crash", node=2, round=2, after=0.3, seconds=2.0),
            Fault(kind="corrupt", node=4, round=3, seconds=9.0),
        ),
    )
    assert trace_of(scenario) == trace_of(Scenario.from_json(scenario.to_json()))


def leaders(run: Watched) -> list[int]:
    return [node for _, node, note in run.recorder.notes if note.kind == "leads"]


def every_sum_is_right(scenario: Scenario) -> Watched:
    """Run it; every sum that any rank had is what the plan says, and of every round somebody had it."""
    run = Watched(scenario)
    plan = scenario.plan()
    gradients = Gradients(scenario.samples, scenario.parameters, scenario.seed)
    for (rank, round_), bits in run.sums.items():
        model = gradients.model(round_)
        right = plan.reference(lambda piece, model=model: gradients.of_piece(piece, model)).tobytes()
        assert bits == right, f"rank {rank} in round {round_}"
    assert {round_ for _, round_ in run.sums} == set(range(1, scenario.rounds + 1))
    return run


@pytest.mark.parametrize("after", [0.0, 0.3, 0.99, 1.0005])
@pytest.mark.parametrize("round_", [1, 3, 8])
@pytest.mark.parametrize("shape", [{}, {"reach": 2}, {"stripes": 2}, {"tree": "2x1", "stripes": 2}])
def test_another_leads_when_rank_0_is_gone(after: float, round_: int, shape: dict[str, object]) -> None:
    """No round is lost, and the one in which it happens takes no longer than its work does twice."""
    run = every_sum_is_right(changed(faults=(Fault(kind="crash", node=0, round=round_, after=after),), **shape))
    if leaders(run):  # else it was over before that
        assert leaders(run) == [1]
    alive = [rank for rank in run.cluster.plan.computing if rank]
    all_have(run, alive)
    assert run.renewed == [], "who got what rank 0 kept of the last sum has it for the others"
    assert all(run.cluster.nodes.machine(rank).round == run.scenario.rounds for rank in alive)
    assert run.recorder.seconds().max() < 3.5 * max(1.0, 6.0 / len(run.cluster.plan.computing))
    assert not any(run.cluster.nodes.is_alive(rank) for rank in alive)


@pytest.mark.parametrize("shape", [{"stripes": 1}, {"stripes": 2}, {"stripes": 1, "reach": 2}], ids=str)
def test_a_sum_that_reached_some_before_its_keeper_was_gone_reaches_all(shape: dict[str, object]) -> None:
    """Rank 0 keeps it, leads, and is killed while it sends it: who has it gives it to others, or they do it again."""
    done_again, asked = set(), set()
    for rate, step in itertools.product((2000.0, 20000.0), range(12)):
        fault = Fault(kind="crash", node=0, round=4, after=step * 200 / rate)
        run = every_sum_is_right(changed(faults=(fault,), rate=rate, latency=0.01, **shape))
        alive = [rank for rank in run.cluster.plan.computing if rank]
        all_have(run, alive)
        assert run.renewed == [], f"killed {fault.after} s after the round began"
        done_again |= {action.message.round for rank, action in run.of(said.Go) if rank in alive}
        asked |= {action.message.round for rank, action in run.of(said.Want) if rank in alive}
    assert 3 in done_again | asked


@pytest.mark.parametrize("after", [0.0, 0.3, 1.0005])
@pytest.mark.parametrize("shape", [{}, {"reach": 2}, {"stripes": 1}], ids=str)
def test_another_leads_when_rank_0_is_stopped(after: float, shape: dict[str, object]) -> None:
    """It keeps its connections, and says nothing: it is asked, then given up; and follows when it goes on."""
    stopped = Fault(kind="pause", node=0, round=4, after=after, seconds=40.0)
    run = every_sum_is_right(changed(faults=(stopped,), rounds=60, **shape))
    assert len(leaders(run)) == 1
    assert leaders(run)[0] != 0
    silent = [note for _, _, note in run.recorder.notes if note.kind == "silent"]
    assert silent
    assert all(note.nodes == (0,) for note in silent)
    all_have(run, [1, 2, 3, 4, 5])
    assert run.recorder.seconds().max() < 15.0, "the others do not wait for it"
    assert run.cluster.nodes.machine(0).round == 60, "and it is with them in the end"


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_a_leader_that_is_slow_for_a_moment_stays(seconds: float) -> None:
    run = every_sum_is_right(changed(faults=(Fault(kind="pause", node=0, round=4, after=0.3, seconds=seconds),)))
    assert leaders(run) == []


def test_rank_after_rank_dies_and_the_last_goes_on_alone() -> None:
    faults = tuple(Fault(kind="crash", node=rank, round=2 + rank, after=0.4) for rank in range(5))
    run = every_sum_is_right(changed(faults=faults))
    assert leaders(run)[-1] == 5
    assert set(leaders(run)) <= {1, 2, 3, 4, 5}
    all_have(run, [5])


def test_of_two_parts_the_larger_goes_on() -> None:
    parted = Fault(kind="partition", node=0, others=(1,), round=3, after=0.4, seconds=20.0)
    run = every_sum_is_right(changed(faults=(parted,), rounds=12))
    assert leaders(run) == [2]
    waiting = [note for _, node, note in run.recorder.notes if node == 0 and note.kind == "waiting"]
    assert waiting
    assert set(waiting[0].nodes) == {2, 3, 4, 5}, "and rank 0 says for whom it waits"
    all_end(run)


def test_of_two_halves_that_with_the_first_rank_goes_on() -> None:
    parted = Fault(kind="partition", node=3, others=(4, 5), round=3, after=0.4, seconds=20.0)
    run = every_sum_is_right(changed(faults=(parted,), rounds=12))
    assert leaders(run) == []
    all_end(run)


def test_rank_0_comes_back_as_one_of_many() -> None:
    run = every_sum_is_right(changed(faults=(Fault(kind="crash", node=0, round=3, after=0.4, seconds=2.0),), rounds=14))
    assert leaders(run) == [1]
    assert run.cluster.nodes.machine(0).leader == 1
    assert run.cluster.nodes.machine(0).round == 14
    all_end(run)


def test_one_bad_link_unseats_nobody() -> None:
    """A rank that loses its coordinator alone waits until it is back."""
    run = every_sum_is_right(changed(faults=(Fault(kind="partition", node=4, round=3, after=0.2, seconds=3.0),)))
    assert leaders(run) == []
    all_end(run)
