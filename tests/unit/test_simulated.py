import io

import msgspec
import numpy as np
import pytest

from codedreduce.comparison.selection import gradient_coding_choices, scheme_names
from codedreduce.comparison.simulated_runs import simulate_schemes
from codedreduce.errors import UsageError
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Aggregated, Cancel, Compute, SetTimer, Transmit
from codedreduce.protocol.core.timers import Timer
from codedreduce.simulator import Fault, Gradients, Link, Recorder, load_trace, parse_delays
from codedreduce.simulator.kernel import Kernel
from codedreduce.simulator.network import SMALL_BYTES, Cores, Host, Network
from codedreduce.simulator.nodes import Nodes
from codedreduce.simulator.scenario import Scenario
from codedreduce.units import rate, seconds
from tests.simulation.invariants import Invariants


def test_kernel_orders_by_time_priority_and_sequence() -> None:
    kernel, seen = Kernel(), []
    for time, priority, name in [(2.0, 1, "d"), (1.0, 1, "b"), (1.0, 0, "a"), (1.0, 1, "c")]:
        kernel.at(time, seen.append, name, priority=priority)
    kernel.run()
    assert "".join(seen) == "abcd"


def test_an_interface_carries_one_chunk_at_a_time_each_way() -> None:
    kernel, arrived = Kernel(), []
    network = Network(kernel, 4, Link(rate=1000.0, latency=0.5))
    for sender, receiver in [(0, 1), (0, 2), (3, 2)]:
        network.chunk(sender, receiver, 900, lambda *who: arrived.append((*who, kernel.now)), sender, receiver)
    network.small(0, 1, lambda: arrived.append(("small", kernel.now)))
    kernel.run()
    assert arrived == [("small", 0.6), (0, 1, 1.5), (3, 2, 1.5), (0, 2, 2.5)]
    assert network.busiest_bytes() == 2100


@pytest.mark.parametrize("text", ["calm", "exponential", "bursty", "sticky", "stalls:0.5:2s"])
def test_delays_are_a_function_of_seed_and_round(text: str) -> None:
    one = parse_delays(text, workers=30, unit=0.5, seed=3)
    other = parse_delays(text, workers=30, unit=0.5, seed=3)
    for round_ in (5, 1, 70):
        for a, b in zip(one.draw(round_), other.draw(round_), strict=True):
            np.testing.assert_array_equal(a, b)
            assert (a >= 0).all()


def test_one_at_a_time() -> None:
    delays = parse_delays("one:3s", workers=5, unit=1.0, seed=0)
    late = [np.flatnonzero(delays.draw(round_).startup).tolist() for round_ in range(1, 6)]
    assert sorted(late) == [[0], [1], [2], [3], [4]]


def test_sticky_stays() -> None:
    delays = parse_delays("sticky", workers=40, unit=1.0, seed=0)
    assert delays.draw(1).slowness.max() == 1
    late = delays.draw(80).slowness > 1
    assert late.sum() == 4
    assert (late == (delays.draw(500).slowness > 1)).all()


def test_traces_keep_whole_rounds_together(tmp_path) -> None:
    latencies = np.arange(1.0, 13.0).reshape(4, 3) * np.array([1.0, 10.0, 100.0])
    np.savez(tmp_path / "t.npz", key=latencies.astype(np.float32))
    delays = parse_delays(f"{tmp_path / 't.npz'}:key", workers=8, unit=2.0, seed=0)
    columns = [set(np.round(np.maximum(c / np.median(latencies) - 1, 0) * 2.0, 4)) for c in latencies.T]
    for round_ in range(20):
        drawn = np.round(delays.draw(round_).startup, 4)
        assert set(drawn[:4]) in columns, "all workers of a round come from one measured round"
        assert set(drawn[4:]) in columns


def test_gradients_depend_on_the_model_and_match_the_truth() -> None:
    gradients = Gradients(100, 7, seed=1)
    plan = Scenario(tree="4x1", samples=100).plan()
    total = plan.reference(lambda piece: gradients.of_piece(piece, gradients.model(3)))
    np.testing.assert_allclose(total, gradients.truth(3), rtol=1e-5, atol=1e-5)
    assert not np.allclose(gradients.truth(3), gradients.truth(2))


def test_a_timer_of_a_process_that_is_gone_never_fires_in_its_place() -> None:
    """The one that came back sets a timer of the same name: it has a token of its own."""
    plan, kernel, trace = Scenario(tree="2x1", samples=20).plan(), Kernel(), io.StringIO()
    nodes = Nodes(plan, Settings(length=4), kernel, Recorder(trace=trace), latency=0.1)
    nodes.have_done(dict.fromkeys((Transmit, Compute, Cancel), lambda node, action: None))
    set_timer = nodes._performers[SetTimer]
    set_timer(1, SetTimer(name=Timer.REDUNDANCY, at=5.0))
    crash = nodes.crash(1)
    nodes.come_back(1, crash)
    set_timer(1, SetTimer(name=Timer.REDUNDANCY, at=7.0))
    kernel.run()
    assert [line for line in trace.getvalue().splitlines() if "timer" in line] == ["7.0 node 1 timer redundancy"]


def test_a_rank_that_was_lost_in_one_of_two_pauses_that_overlap_is_found_after_both() -> None:
    """The longer pause is too short to be noticed by itself; a rank whose link was lost for good gets no sums."""
    pauses = (
        Fault(kind="pause", node=0, round=2, after=0.3, seconds=1.8, known_after=0.5),
        Fault(kind="pause", node=0, round=2, after=0.1, seconds=2.8, known_after=5.0),
    )
    cluster = Scenario(tree="3x1", stragglers=0, scheme="striped", samples=24, parameters=12, faults=pauses).cluster()
    cluster.run(6)
    assert [cluster.nodes.machine(rank).reached for rank in range(3)] == [3, 3, 3]


def test_the_journal_knows_who_was_late_and_by_how_much() -> None:
    """In an eager 4x1 tree with s=1 the second copy of a share is late by the time it takes to arrive."""
    scenario = Scenario(tree="4x1", order="eager", samples=40, parameters=100, rounds=4, delays="one:0.1s", compute=4.0)
    recorder = scenario.cluster().run(4)
    assert all(set(log.lateness) <= set(log.late) for log in recorder.rounds)
    assert recorder.saved == pytest.approx(sum(log.saved for log in recorder.rounds))
    assert recorder.saved > 0
    assert not recorder.of_kind("late")


def test_gradient_coding_is_swept() -> None:
    base = Scenario(tree="12x1", parameters=100, samples=240, rounds=10, delays="stalls:0.1:5s", compute=2.0)
    (result,) = simulate_schemes(base, ["gradient-coding"]).results
    each = [compare_one(base, s) for s in gradient_coding_choices(12)]
    assert result.mean == pytest.approx(min(each))


def compare_one(base: Scenario, s: int) -> float:
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    scenario = Scenario(**{**fields, "scheme": "gradient-coding", "order": "eager", "tolerance": s})
    return float(scenario.cluster().run(base.rounds).seconds().mean())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: seconds("20 parsecs"), "20s, 0.5ms"),
        (lambda: seconds("1.2.3s"), "1.2.3s"),
        (lambda: rate("0mbit"), "above zero"),
        (lambda: rate("fast"), "60mbit"),
        (lambda: Link(rate=0), "above zero, got 0"),
        (lambda: Link(latency=-1), "negative"),
        (lambda: parse_delays("windy", workers=3, unit=1, seed=0), "unknown delays 'windy'"),
        (lambda: parse_delays("stalls:2:1s", workers=3, unit=1, seed=0), "the probability 2 is not between 0 and 1"),
        (lambda: scheme_names("ring,magic"), "unknown scheme 'magic'"),
        (lambda: Fault(kind="fire", node=1, round=1), "unknown fault 'fire'"),
        (lambda: Fault(kind="crash", node=-1, round=1), "got node -1"),
        (lambda: Scenario(faults=(Fault(kind="crash", node=85, round=1),)).cluster(), r"node 85, but .* up to 84"),
        (lambda: Scenario(compute=0).cluster(), "above zero"),
        (lambda: Scenario(rounds=0).cluster(), "at least one round"),
        (lambda: Scenario(on_excess="panic").cluster(), "'panic'"),
        (lambda: Scenario.from_json("{"), "not a scenario"),
        (lambda: Gradients(0, 5, 0), "got 0 and 5"),
    ],
)
def test_mistakes_are_named(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_bad_traces_are_named(tmp_path) -> None:
    np.savez(tmp_path / "flat.npz", key=np.ones(5))
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    np.savez(tmp_path / "negative.npz", key=-np.ones((2, 2)))
    (tmp_path / "text.npz").write_text("not an archive")
    for name, message in [
        ("flat.npz:key", r"workers x rounds; flat.npz:key has the shape \(5,\)"),
        ("two.npz", "one of a, b"),
        ("two.npz:c", "no 'c'"),
        ("negative.npz:key", "positive seconds"),
        ("text.npz:key", "not a readable"),
        ("missing.npz:key", "there is no trace"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_trace(str(tmp_path / name))


def test_an_interface_serves_connections_in_turns() -> None:
    """Two chunks of 10 at 1 a second: whole, one after the other; in turns of 4, both begin before one ends."""

    def arrivals(turn: int) -> list[float]:
        kernel, arrived = Kernel(), []
        network = Network(kernel, 3, Link(rate=1.0, latency=0.0, turn=turn))
        for receiver in (1, 2):
            network.chunk(0, receiver, 10 - SMALL_BYTES, lambda: arrived.append(kernel.now))
        kernel.run()
        return arrived

    assert arrivals(0) == [10.0, 20.0]
    assert arrivals(4) == [14.0, 20.0]


def test_nodes_of_one_host_share_its_cores() -> None:
    """Four messages of a second each arrive together: on two cores the last is handled after two seconds."""
    cores = Cores(Host(cores=2, message_seconds=1.0))
    assert [cores.handled_at(5.0) for _ in range(4)] == [6.0, 6.0, 7.0, 7.0]
    base = Scenario(tree="2x2", samples=60, parameters=20, compute=0.6, rounds=3)
    apart = base.cluster().run(3)
    together = msgspec.structs.replace(base, cores=1, message_seconds=0.01).cluster().run(3)
    assert together.seconds().mean() > apart.seconds().mean() + 0.1
    assert together.identical


def test_workers_of_one_host_do_their_arithmetic_in_turns() -> None:
    """Six workers with 10 samples of 0.02 s each: 1.2 s on one core, however short they are said to compute."""
    base = Scenario(tree="6x1", scheme="master-worker", samples=60, parameters=20, compute=0.6, rounds=3)
    apart, crowded, roomy = (
        msgspec.structs.replace(base, cores=cores, arithmetic_seconds=0.02).cluster().run(3).seconds().mean()
        for cores in (0, 1, 6)
    )
    assert apart < 0.2
    assert crowded == pytest.approx(1.2, rel=0.05)
    assert roomy == pytest.approx(0.2, rel=0.05)


def test_one_worker_can_be_told_to_stall() -> None:
    delays = parse_delays("worker:3:1:0.5s", workers=6, unit=0.1, seed=0)
    assert delays.draw(7).startup.tolist() == [0, 0, 0.5, 0, 0, 0]
    with pytest.raises(UsageError, match="no worker 7"):
        parse_delays("worker:7:1:0.5s", workers=6, unit=0.1, seed=0)
    with pytest.raises(UsageError, match="no worker 0"):
        parse_delays("worker:0:1:0.5s", workers=6, unit=0.1, seed=0)


def test_ranks_are_counted_from_0() -> None:
    for rank in range(6):
        delays = parse_delays(f"rank:{rank}:1:0.5s", workers=6, unit=0.1, seed=0)
        assert delays.draw(7).startup.nonzero()[0].tolist() == [rank]
    with pytest.raises(UsageError, match="there is no rank 6 to delay: ranks are 0 to 5"):
        parse_delays("rank:6:1:0.5s", workers=6, unit=0.1, seed=0)


@pytest.mark.parametrize("scheme", ["coded-reduce", "striped"])
def test_what_is_damaged_on_its_way_is_in_the_sum_and_is_written_down(scheme: str) -> None:
    scenario = Scenario(
        tree="4x1", scheme=scheme, stragglers=0 if scheme == "striped" else 1, samples=80, parameters=40, chunk=4,
        compute=1.0, rounds=4, faults=(Fault(kind="damage", node=2, round=3),),
    )  # fmt: skip
    plan, gradients = scenario.plan(), Gradients(80, 40, 0)
    right: dict[int, bool] = {}

    def compare(done: Aggregated) -> None:
        model = gradients.model(done.round)
        expected = plan.reference(lambda piece: gradients.of_piece(piece, model))
        right[done.round] = right.get(done.round, True) and done.vector.tobytes() == expected.tobytes()

    recorder = scenario.cluster(gradients=gradients, observer=Invariants()).run(4, on_sum=compare)
    assert right == {1: True, 2: True, 3: False, 4: False}
    assert {(where[0], where[1]) for where in recorder.damage} == {(3, 2), (4, 2)}
