"""One random run whose shares or blocks are audited, and what must hold of it: whatever was looked at is right in the
end, and nobody is blamed who did nothing wrong."""

from __future__ import annotations

from codedreduce.protocol.audits import Auditing
from codedreduce.protocol.events import Aggregated
from codedreduce.schemes import TreePlan
from codedreduce.worlds.simulated import Gradients, Recorder
from codedreduce.worlds.simulated.scenario import ENDLESS, Scenario

from .check_run import DISABLING, notes


class Audited:
    """What came of a run: which rounds were audited, which of their sums were right."""

    def __init__(self, scenario: Scenario, *, latest: float = ENDLESS / 2) -> None:
        self.scenario = scenario
        self.plan = scenario.plan()
        self._gradients = Gradients(scenario.samples, scenario.parameters, scenario.seed)
        self.right: dict[int, bool] = {}
        cluster = scenario.cluster(gradients=self._gradients, checking=True)
        self.recorder: Recorder = cluster.run(scenario.rounds, latest=latest, on_sum=self._compare)
        audit = Auditing(scenario.audit, scenario.quarantine).of(scenario.seed)
        assert audit is not None
        self.drawn = {round_ for round_ in range(1, scenario.rounds + 1) if audit.is_drawn(round_)}

    def _compare(self, done: Aggregated) -> None:
        """With what the plan says, evaluated by itself."""
        model = self._gradients.model(done.round)
        expected = self.plan.reference(lambda piece: self._gradients.of_piece(piece, model))
        is_right = done.vector.tobytes() == expected.tobytes()
        self.right[done.round] = self.right.get(done.round, True) and is_right

    def rounds(self, kind: str) -> set[int]:
        """The rounds of which something of a kind was noted."""
        return {note.round for _, _, note in self.recorder.notes if note.kind == kind}

    def named(self, kind: str) -> set[tuple[int, int]]:
        """Who was named, in which round."""
        return {(note.round, node) for _, _, note in self.recorder.notes if note.kind == kind for node in note.nodes}


def check_audited(scenario: Scenario) -> Audited:
    """Run a scenario of a tree with every invariant checked at every step."""
    run = Audited(scenario)
    recorder, plan = run.recorder, run.plan
    assert isinstance(plan, TreePlan)
    looked_at = run.drawn - run.rounds("unaudited")
    assert [round_ for round_ in sorted(looked_at) if not run.right.get(round_, True)] == [], "wrong, and looked at"
    wrong = {(round_, node) for round_, node, _ in recorder.wrong}
    damaged = {(round_, sender) for round_, sender, _ in recorder.damage}
    assert run.named("mistaken") <= wrong, f"blamed, and not wrong: {sorted(run.named('corrupt') - wrong)}"
    assert run.named("damaged") <= damaged, f"not damaged: {sorted(run.named('damaged') - damaged)}"
    assert all(run.right[round_] for round_ in run.right if not {one for one, _ in wrong | damaged} & {round_})
    quarantined = {node for _, node in run.named("quarantined")}
    is_killed = any(fault.node == 0 for fault in scenario.faults)  # a root that comes anew counts anew
    for node in () if is_killed else quarantined:
        assert len([1 for _, one in run.named("mistaken") if one == node]) == scenario.quarantine
    faults = [fault for fault in scenario.faults if fault.kind in DISABLING and fault.node]
    if recorder.troubles:
        check_undecided(run)
    elif plan.tolerates({fault.node for fault in faults} | quarantined):
        assert len(recorder.rounds) == scenario.rounds, f"waited for a straggler: {notes(recorder)}"
    if not faults and not is_killed and not recorder.troubles and scenario.delays == "calm":
        check_found(run)
    return run


def check_undecided(run: Audited) -> None:
    """A run ends when nobody can say who is right, or when somebody fails; each of them is named for a reason."""
    named = {node for node, _ in run.recorder.troubles}
    assert isinstance(run.plan, TreePlan)
    if any("nobody can decide" in reason for _, reason in run.recorder.troubles):
        last = len(run.recorder.rounds) + 1
        wrong = {node for round_, node, _ in (*run.recorder.wrong, *run.recorder.damage) if round_ == last}
        assert any(named.intersection(run.plan.tree.ancestors(node)) for node in wrong)
    else:
        assert named <= {fault.node for fault in run.scenario.faults if fault.kind == "fail"}


def check_found(run: Audited) -> None:
    """Nobody is late, so what everybody computes is used: whoever is wrong in a round that is looked at is named."""
    for round_, node, _ in run.recorder.wrong:
        if round_ in run.drawn - run.rounds("unaudited") and round_ <= len(run.recorder.rounds):
            assert (round_, node) in run.named("mistaken"), f"worker {node} was not found in round {round_}"
