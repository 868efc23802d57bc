"""One random simulated run, and what must hold of it."""

import io
from collections.abc import Callable
from pathlib import Path

from codedreduce.protocol.core.audits import Audit
from codedreduce.schemes import LiveCompensation, Plan, StripedPlan, TreePlan
from codedreduce.simulator import Recorder, SimulatedCluster
from codedreduce.simulator.scenario import ENDLESS, Scenario, write_trace
from tests.simulation.invariants import Invariants
from tests.simulation.random_scenarios import random_scenario

#: Faults that make a node late; the others only make its messages strange.
DISABLING = ("crash", "pause", "cut", "slow", "corrupt", "reorder", "fail", "leave", "partition", "one-way")


#: Those after which all is as before; of messages that were damaged, some are never said again.
PASSING = ("crash", "pause", "cut", "slow", "fail", "leave")

#: Seconds after which every fault that passes has passed, and what it left on the wires, too.
LONG = 5000.0


def check_run(scenario: Scenario) -> Recorder:
    """Run a scenario with every invariant checked at every step."""
    cluster = scenario.cluster(observer=Invariants())
    plan = scenario.plan()
    latest = ENDLESS / 20 if isinstance(plan, StripedPlan) else ENDLESS / 2  # ranks that wait ask each other for ever
    recorder = cluster.run(scenario.rounds, latest=latest)
    faults = [fault for fault in scenario.faults if fault.kind in DISABLING and fault.node in plan.computing]
    touched = {node for fault in faults for node in (fault.node, *fault.others)}
    if recorder.troubles:
        check_failure(scenario, recorder)
    elif isinstance(plan, StripedPlan):
        check_ranks(cluster, scenario, touched)
    elif plan.tolerates(touched):
        assert len(recorder.rounds) == scenario.rounds, f"waited for a straggler: {notes(recorder)}"
        assert all(record.residual == 0 for record in recorder.rounds)
    elif isinstance(plan, TreePlan) and all(fault.seconds < ENDLESS and fault.kind in PASSING for fault in faults):
        assert len(recorder.rounds) == scenario.rounds, f"never went on: {notes(recorder)}"
    elif len(recorder.rounds) < scenario.rounds and scenario.on_excess == "wait":
        waiting = [note for _, node, note in recorder.notes if node == 0 and note.kind == "waiting"]
        assert waiting, "a round that cannot end says so"
        assert all(note.nodes for note in waiting), "and names whom it waits for"
    check_gradients(plan, scenario, recorder)
    check_blame(cluster, scenario)
    return recorder


def check_failure(scenario: Scenario, recorder: Recorder) -> None:
    """A run that ends because nobody could compute something names those who failed, which are two or all there are."""
    plan = scenario.plan()
    named = {node for node, _ in recorder.troubles}
    if named & {wrong.node for wrong in scenario.wrongs}:
        return  # it computed something else than another, and nobody was left to decide
    assert named <= {fault.node for fault in scenario.faults if fault.kind == "fail"}
    assert len(named) > 1 or not any(len(plan.group(node)) > 1 for node in named)
    if any(fault.kind in ("cut", "reorder", "corrupt") for fault in scenario.faults):
        return  # it may be said later than the end, or never arrive
    failed = {node for _, _, note in recorder.notes if note.kind == "failed" for node in note.nodes}
    assert named & failed, "and it was said when it happened"


def check_ranks(cluster: SimulatedCluster, scenario: Scenario, touched: set[int]) -> None:
    """A run ends as long as more than half of the ranks are there, or come back; and whoever waits says for whom."""
    recorder, ranks = cluster.recorder, cluster.plan.workers
    is_endless = any(fault.seconds >= ENDLESS for fault in scenario.faults)
    crashed = {fault.node for fault in scenario.faults if fault.kind in ("crash", "leave")}
    lost = touched if is_endless else crashed
    if lost:
        lost |= {fault.node for fault in scenario.faults if fault.kind == "late"}  # until it comes it has no say
    if 2 * len(lost) < ranks and (not is_endless or cluster.plan.tolerates(lost)):
        assert len(recorder.rounds) == scenario.rounds, f"waited for a straggler: {notes(recorder)}"
    if len(recorder.rounds) == scenario.rounds:
        check_end(cluster, scenario, lost)
    elif any(cluster.nodes.is_alive(rank) and rank not in touched for rank in cluster.plan.computing):
        waiting = [note for _, _, note in recorder.notes if note.kind == "waiting"]
        assert waiting, "a round that cannot end says so"
        assert all(note.nodes for note in waiting), "and names whom it waits for"


def check_end(cluster: SimulatedCluster, scenario: Scenario, lost: set[int]) -> None:
    """All ranks that nothing keeps from it have the last sum, and leave; those that were back in time, too."""
    cluster.kernel.run(latest=cluster.kernel.now + LONG)
    cluster.end(cluster.kernel.now + ENDLESS / 10)
    for rank in cluster.plan.computing if 2 * len(lost) < cluster.plan.workers else ():
        faults = [fault for fault in scenario.faults if rank in (fault.node, *fault.others) and fault.kind in DISABLING]
        if not faults or all(fault.seconds < ENDLESS for fault in faults):
            machine = cluster.nodes.machine(rank)
            assert machine.round == scenario.rounds, f"rank {rank} is left behind in round {machine.round}"
            assert not cluster.nodes.is_alive(rank), f"rank {rank} never leaves"


def check_gradients(plan: Plan, scenario: Scenario, recorder: Recorder) -> None:
    if isinstance(plan.scheme, LiveCompensation):
        return
    if scenario.wrongs:
        different = recorder.different - not_drawn(scenario)
        assert different <= unaudited(scenario, recorder), "what is audited and wrong is not used"
    elif all(record.residual == 0 for record in recorder.rounds):
        assert recorder.max_error < (1e-5 if scenario.code == "repetition" else 1e-3)
        if isinstance(plan, TreePlan | StripedPlan) and plan.scheme.bit_identical:
            assert recorder.identical, "the same bits whoever straggles"


def not_drawn(scenario: Scenario) -> set[int]:
    """Rounds in which nothing is audited, if a rank is wrong in those as well."""
    plan, audit = scenario.plan(), Audit(scenario.audit, scenario.quarantine).of(scenario.seed)
    if audit is None or not isinstance(plan, StripedPlan) or all(wrong.where_audited for wrong in scenario.wrongs):
        return set()
    return {round_ for round_ in range(1, scenario.rounds + 1) if not audit.blocks(round_, 0, plan.blocks)}


def unaudited(scenario: Scenario, recorder: Recorder) -> set[int]:
    """Rounds in which something that a rank may have computed wrongly passed, because nobody was left to check it."""
    wrong = {one.node for one in scenario.wrongs}
    said = [note for _, _, note in recorder.notes if note.kind == "unaudited"]
    return {note.round for note in said if not wrong.isdisjoint(note.nodes)}


def check_blame(cluster: SimulatedCluster, scenario: Scenario) -> None:
    """Nobody is said to have computed wrongly who has not, in that very round."""
    slips = {(slip.node, slip.round) for slip in cluster.wrongs.slips}
    for _, _, note in cluster.recorder.notes:
        if note.kind == "mistaken":
            assert (note.nodes[0], note.round) in slips, note.reason


def notes(recorder: Recorder) -> list[str]:
    return [note.reason for _, node, note in recorder.notes if node == 0][-3:]


def check_seed(
    seed: int, folder: Path, draw: Callable[[int], Scenario] = random_scenario,
    check: Callable[[Scenario], object] = check_run,
) -> None:  # fmt: skip
    """Check the random scenario of a seed; if it fails, save its trace and say how to replay it."""
    scenario = draw(seed)
    try:
        check(scenario)
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"seed-{seed}.trace"
        with path.open("w") as file:
            try:
                write_trace(scenario, file, latest=ENDLESS / 2)
            except Exception as again:
                file.write(f"!! {type(again).__name__}: {again}\n")
        raise AssertionError(
            f"seed {seed} failed ({error}); step through it with: codedreduce replay {path}"
        ) from error


def trace_of(scenario: Scenario) -> str:
    file = io.StringIO()
    write_trace(scenario, file, latest=ENDLESS / 2)
    return file.getvalue()
