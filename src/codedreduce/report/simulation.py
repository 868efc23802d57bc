"""The report of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from codedreduce.report.figures import bars, delay_map, distributions, timelines
from codedreduce.report.page import HtmlTable, Section, write_page
from codedreduce.report.tables import human_bytes, human_seconds
from codedreduce.worlds.simulated.compare import Result, typical_late_round
from codedreduce.worlds.simulated.record import Recorder
from codedreduce.worlds.simulated.scenario import Scenario


def write_simulation_report(folder: Path, base: Scenario, runs: Sequence[tuple[Result, Recorder]]) -> Path:
    """Table, bars, distributions, timelines, delays."""
    results = [result for result, _ in runs]
    shown = typical_late_round(base)
    delays = base.delay_model()
    rows = [
        (
            r.scheme, human_seconds(r.mean), human_seconds(r.median), human_seconds(r.p95), human_seconds(r.p99),
            f"{r.work:.2f}x", human_bytes(r.busiest_bytes or 0), f"{r.max_error:.0e}",
            "yes" if r.bit_identical else "no",
        )
        for r in results
    ]  # fmt: skip
    columns = ("scheme", "mean", "median", "p95", "p99", "work", "busiest interface", "worst error", "same bits")
    best = int(np.argmin([r.mean for r in results]))
    sections = [
        Section(
            "Round time",
            bars({r.scheme: r.mean for r in results}, {r.scheme: r.p95 for r in results}),
            "Shorter is better. All schemes met the same delays.",
        ),
        Section(
            "Distribution",
            distributions({r.scheme: r.round_seconds for r in results}),
            "How often a round took longer than the time on the axis.",
        ),
        Section(
            f"Round {shown}",
            timelines(
                {r.scheme: [(i.node, i.kind, i.begin, i.end) for i in recorder.intervals] for r, recorder in runs},
                base.workers,
            ),
            "One line a node, the root on top. White is waiting. An interrupted computation was no longer needed.",
        ),
        Section(
            "Delays",
            delay_map(np.array([delays.lateness(round_ + 1) for round_ in range(base.rounds)], dtype=np.float32)),
            "How much later than a calm worker each one was, in each round.",
        ),
    ]
    lead = (
        f"{base.rounds} simulated rounds, tree {base.tree}, s={base.stragglers}, "
        f"delays {base.delays.rpartition('/')[2]}, {base.parameters} parameters, "
        f"{base.samples} samples, {base.compute:g} s of computation, "
        f"{base.rate * 8 / 1e6:g} Mbit/s, {base.latency * 1e3:g} ms, seed {base.seed}"
    )
    return write_page(folder, "Simulated round times", lead, HtmlTable(columns, rows, best), sections)
