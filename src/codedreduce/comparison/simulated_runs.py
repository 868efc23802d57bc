"""Comparisons of schemes in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import msgspec

from codedreduce.comparison.result import Comparison, Result, SchemeRun, lateness, run_in_turn, shown_round, summed_up
from codedreduce.comparison.selection import gradient_coding_choices, scenario_for
from codedreduce.errors import UsageError
from codedreduce.run.journal import listening
from codedreduce.simulator.gradients import Gradients
from codedreduce.simulator.record import Recorder
from codedreduce.simulator.scenario import Scenario

#: Rounds for trying each S of gradient coding; the best S then runs in full.
SWEEP_ROUNDS = 40

#: Called with (label of the running scheme, finished rounds, total rounds).
Progress = Callable[[str, int, int], None]


def simulate_schemes(base: Scenario, names: Sequence[str], *, progress: Progress | None = None) -> Comparison:
    """Run schemes under the same conditions; gradient coding with its best S."""
    base.plan()  # raise errors of the configuration before the first run
    gradients = Gradients(base.samples, base.parameters, base.seed)
    delays = lateness(base.delay_model(), base.rounds, base.workers)
    chosen = choose_tolerances(base, names, gradients, progress)
    timeline = {shown_round(delays)}
    runs, stopped_by = run_in_turn(
        chosen, lambda name: run_scenario(chosen[name], name, gradients, timeline=timeline, progress=progress)
    )
    return Comparison(runs=runs, delays=delays, stopped_by=stopped_by)


def choose_tolerances(
    base: Scenario, names: Sequence[str], gradients: Gradients, progress: Progress | None = None
) -> dict[str, Scenario]:
    """The schemes with these names, each with its tolerance; for gradient coding the S with the best simulation."""
    return {
        name: best_gradient_coding(base, gradients, progress) if name == "gradient-coding" else scenario_for(base, name)
        for name in names
    }


def best_gradient_coding(base: Scenario, gradients: Gradients, progress: Progress | None = None) -> Scenario:
    """Gradient coding with the S that gives the shortest mean round."""

    def mean(scenario: Scenario) -> float:
        short = msgspec.structs.replace(scenario, rounds=min(base.rounds, SWEEP_ROUNDS))
        return run_scenario(short, "gradient-coding", gradients, progress=progress).result.mean

    tried = [scenario_for(base, "gradient-coding", tolerance) for tolerance in gradient_coding_choices(base.workers)]
    return min(tried, key=mean, default=scenario_for(base, "gradient-coding"))


def run_scenario(
    scenario: Scenario,
    name: str,
    gradients: Gradients,
    *,
    timeline: Container[int] = (),
    progress: Progress | None = None,
) -> SchemeRun:
    """Run one scheme and summarize it."""
    label = scenario.parsed_scheme().label
    on_round = (lambda log: progress(label, log.round, scenario.rounds)) if progress else None
    recorder = Recorder(listening(on_round=on_round), timeline=timeline)
    scenario.cluster(gradients=gradients, recorder=recorder).run(scenario.rounds)
    if len(recorder.rounds) < scenario.rounds:
        raise UsageError(f"{label} did not finish all rounds: {_last_words(recorder)}")
    return SchemeRun(_sum_up(name, label, recorder), recorder)


def _sum_up(name: str, label: str, recorder: Recorder) -> Result:
    seconds = recorder.seconds()
    work = [log.work for log in recorder.rounds]
    return Result(
        scheme=label, name=name, **summed_up(seconds, work), busiest_bytes=recorder.busiest_bytes / len(seconds),
        max_error=recorder.max_error, bit_identical=recorder.identical,
    )  # fmt: skip


def _last_words(recorder: Recorder) -> str:
    return recorder.notes[-1].note.reason if recorder.notes else "no event is left"
