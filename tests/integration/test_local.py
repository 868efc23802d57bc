"""Real processes: what happens when they stall, stop, die, raise, or get rubbish."""

import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
import zmq

from codedreduce import CodedReduce, RingAllReduce, Tree
from codedreduce.errors import TooManyStragglers, UsageError, WorkerFailed
from codedreduce.memory.arena import arenas_of
from codedreduce.net.rendezvous.registration import Registration
from codedreduce.node.local import LocalCluster
from codedreduce.node.node import Node
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings
from codedreduce.protocol.core.settings import Excess
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.injected_delays import Injection
from codedreduce.run.journal import Journal, Lateness, listening
from codedreduce.run.world import World
from codedreduce.schemes import Piece
from codedreduce.simulator import parse_delays
from tests.fuzz.strangers import doors
from tests.raw import find
from tests.waiting import PATIENCE

SCHEME = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
PLAN = SCHEME.plan(samples=60)
SETTINGS = Settings(length=1000, least_head_start=0.02)
MODEL = np.arange(1000, dtype=np.float32)


def counting(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
    np.multiply(model, np.float32(sum(len(part) for part in piece)), out=out)


def expect_whole_batch(vector: np.ndarray) -> None:
    np.testing.assert_array_equal(vector, 60 * MODEL)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = psutil.Process().children()  # of a library, as Open MPI's daemon
    yield
    gc.collect()
    assert not arenas_of(f"codedreduce-{os.getpid()}-")
    children = [child for child in psutil.Process().children() if child not in before]
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def stop_and_go(pid: int, seconds: float) -> None:
    stop(pid)
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


@pytest.mark.parametrize("node", [1, 4])
def test_a_killed_worker_is_done_without(node: int) -> None:
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        expect_whole_batch(cluster.sum_of(MODEL).vector)
        os.kill(cluster.processes[node], signal.SIGKILL)
        for _ in range(5):
            expect_whole_batch(cluster.sum_of(MODEL).vector)


@pytest.mark.parametrize("node", [2, 5])
def test_a_stopped_worker_is_done_without_and_used_again(node: int) -> None:
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        cluster.sum_of(MODEL)
        stop(cluster.processes[node])
        results = [cluster.sum_of(MODEL) for _ in range(4)]
        os.kill(cluster.processes[node], signal.SIGCONT)
        for result in results:
            expect_whole_batch(result.vector)
        # a late leaf is named in its parent's message, or its parent is, if somebody else delivered for it
        concerned = {node, PLAN.tree.parent(node)} - {0}
        assert all(concerned & set(result.late) for result in results)
        for _ in range(200):  # it comes to its senses when it is scheduled, not when we say so
            if not concerned & set(cluster.sum_of(MODEL).late):
                return
        pytest.fail("it was never used again")


def test_rounds_wait_when_too_many_are_stopped() -> None:
    settings = Settings(length=1000, excess=Excess(say_waiting_after=0.2))
    with LocalCluster.of(PLAN, counting, settings) as cluster:
        cluster.sum_of(MODEL)
        stop_and_go(cluster.processes[1], 1.0)
        stop_and_go(cluster.processes[2], 1.0)
        expect_whole_batch(cluster.sum_of(MODEL).vector)
        waiting = [note for note in cluster.journal.of_kind("waiting") if note.round == 2]  # not for them to come up
        assert waiting
        assert waiting[0].nodes == (1, 2)


def test_a_stall_does_not_outlast_its_round() -> None:
    def late_in(seed: int, round_: int) -> set[int]:
        delays = parse_delays("stalls:0.15:600s", workers=6, unit=1.0, seed=seed)
        return {int(node) + 1 for node in np.flatnonzero(delays.draw(round_).startup)}

    rounds = range(1, 11)
    tolerated = (s for s in range(1000) if all(PLAN.tolerates(late_in(s, r)) for r in rounds))
    seed = next(s for s in tolerated if sum(bool(late_in(s, r)) for r in rounds[:5]) >= 3)
    delays = parse_delays("stalls:0.15:600s", workers=6, unit=1.0, seed=seed)
    heard: list[Lateness] = []
    journal = Journal(lambda entry: heard.append(entry) if isinstance(entry, Lateness) else None)
    with LocalCluster.of(PLAN, counting, SETTINGS, injection=Injection(delays=delays), journal=journal) as cluster:
        for _ in rounds:
            result = cluster.sum_of(MODEL)
            expect_whole_batch(result.vector)
            assert result.seconds < 300
    assert any(late.seconds > 500 for late in heard), "what waiting would have cost is measured"


def test_an_error_before_the_first_round_ends_the_run() -> None:
    class Broken:
        def prepare(self, node: int) -> None:
            if node == 4:
                raise ValueError("no data here")

        def __call__(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
            counting(piece, model, round_, out, node)

    with pytest.raises(WorkerFailed, match="worker 4 failed: ValueError: no data here"):
        LocalCluster.of(PLAN, Broken(), SETTINGS).__enter__()


@pytest.mark.parametrize("nodes", [(1, 2), (3, 4, 5, 6), (1, 2, 3, 4, 5, 6)], ids=str)
def test_more_dead_than_tolerated_are_stood_in_for(nodes: tuple[int, ...]) -> None:
    said = []
    settings = replace(SETTINGS, excess=Excess(replan_after=0.5))
    with LocalCluster.of(PLAN, counting, settings, journal=Journal(listening(on_note=said.append))) as cluster:
        cluster.sum_of(MODEL)
        for node in nodes:
            os.kill(cluster.processes[node], signal.SIGKILL)
        for _ in range(5):
            expect_whole_batch(cluster.sum_of(MODEL).vector)
    dead = {note.reason for note in said if note.kind == "dead"}
    assert dead == {f"worker {node} was killed by signal 9" for node in nodes}
    assert cluster.journal.of_kind("stands in")


def test_more_dead_than_tolerated_ends_a_run_whose_root_cannot_help() -> None:
    plan = CodedReduce(Tree.regular(fanout=2, depth=1), 1, order="eager", code="cyclic").plan(samples=60)
    with LocalCluster.of(plan, counting, SETTINGS) as cluster:
        cluster.sum_of(MODEL)
        for node in (1, 2):
            os.kill(cluster.processes[node], signal.SIGKILL)
        with pytest.raises(TooManyStragglers, match=r"missing \{1, 2\}, but only 1 straggler is tolerated"):
            [cluster.sum_of(MODEL) for _ in range(3)]


@pytest.mark.parametrize("node", [1, 4])
def test_a_worker_that_is_asked_to_go_finishes_its_round(node: int) -> None:
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        cluster.sum_of(MODEL)
        process = psutil.Process(cluster.processes[node])
        os.kill(cluster.processes[node], signal.SIGTERM)
        heard = time.monotonic() + PATIENCE  # by way of its parent
        while time.monotonic() < heard and not cluster.journal.of_kind("dead"):
            expect_whole_batch(cluster.sum_of(MODEL).vector)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        for _ in range(20):
            expect_whole_batch(cluster.sum_of(MODEL).vector)
        reasons = [note.reason for note in cluster.journal.of_kind("dead")]
        assert reasons == [f"worker {node} left"], "it went by itself, without an error"


def begin_rounds(world: World) -> None:
    for _ in range(10**6):
        world.aggregate(MODEL)


def test_a_killed_ring_worker_ends_the_run() -> None:
    plan = RingAllReduce(3).plan(samples=60)
    with LocalCluster.of(plan, counting, SETTINGS, member=begin_rounds) as ring:
        expect_whole_batch(ring.aggregate(MODEL).vector)
        os.kill(ring.processes[2], signal.SIGKILL)
        with pytest.raises(TooManyStragglers, match=r"missing \{2\}, but only 0"):
            begin_rounds(ring)


def test_a_parent_that_dies_and_returns_is_found_by_its_children() -> None:
    """A new process in the place of an inner worker: its children come back to it, and it is used again."""
    context = multiprocessing.get_context("fork")
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        cluster.sum_of(MODEL)
        os.kill(cluster.processes[1], signal.SIGKILL)
        for _ in range(3):
            expect_whole_batch(cluster.sum_of(MODEL).vector)
        again = context.Process(target=cluster._live, args=(1,), daemon=True)
        again.start()
        try:
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                result = cluster.sum_of(MODEL)
                expect_whole_batch(result.vector)
                if not {1, 3, 4} & set(result.late):
                    return
                time.sleep(0.01)
            pytest.fail(f"still late: {result.late}")
        finally:
            again.kill()
            again.join()


def test_rubbish_at_the_door_changes_nothing() -> None:
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        context = zmq.Context.instance()
        random = np.random.default_rng(0)
        cluster.sum_of(MODEL)
        places = doors(cluster.run)
        assert len(places) >= 5
        for place in places.values():
            rogue = context.socket(zmq.DEALER)
            rogue.setsockopt(zmq.ROUTING_ID, random.bytes(3))
            rogue.connect(place)
            for frames in range(5):
                rogue.send_multipart([random.bytes(int(random.integers(0, 40))) for _ in range(frames + 1)])
            rogue.close(linger=100)
        for _ in range(5):
            expect_whole_batch(cluster.sum_of(MODEL).vector)
        meeting = replace(cluster.run.meeting, root_within=2.0)  # so long it waits for the other run to end
        with pytest.raises(UsageError, match="belongs to another run"):
            find(context, meeting, Registration("somebody else's", 9, (0,), None))


def test_a_worker_that_cannot_reach_the_root_says_so() -> None:
    with pytest.raises(UsageError, match=r"rank 3 got no answer from the root at .* within 0.2 s"):
        find(zmq.Context.instance(), Meeting(run="nobody", root_within=0.2), Registration("x", 3, (0,), None))


def test_a_node_that_cannot_start_leaves_nothing() -> None:
    """Neither memory nor files, whatever it had begun."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        meeting = Meeting(run=f"codedreduce-{os.getpid()}-x", port=taken.getsockname()[1], secret=Secret.fresh())
        open_files = psutil.Process().num_fds()
        for _ in range(3):
            with pytest.raises(UsageError, match="the root cannot listen at"):
                Node(Run(meeting=meeting, plan=PLAN, settings=SETTINGS), 0).__enter__()
        assert psutil.Process().num_fds() == open_files


def test_memory_does_not_grow() -> None:
    with LocalCluster.of(PLAN, counting, SETTINGS) as cluster:
        processes = [psutil.Process(), *map(psutil.Process, cluster.processes.values())]
        for _ in range(300):
            cluster.sum_of(MODEL)
        before = [process.memory_info().rss for process in processes]
        for _ in range(1500):
            cluster.sum_of(MODEL)
        growth = [process.memory_info().rss - old for process, old in zip(processes, before, strict=True)]
        assert max(growth) < 2_000_000, "less than a kilobyte a round, and that once"


def test_forty_workers_come_and_go() -> None:
    scheme = CodedReduce(Tree.balanced(workers=40, fanout=4, stragglers=1), 1)
    with LocalCluster.of(scheme.plan(samples=80), counting, SETTINGS) as cluster:
        np.testing.assert_array_equal(cluster.sum_of(MODEL).vector, 80 * MODEL)
