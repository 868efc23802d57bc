"""The table and the page of schemes side by side: what is fastest, over what a speed-up is, which rank and round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from codedreduce.cli.terminal.comparison_output import show_comparison
from codedreduce.cli.terminal.console import make_console
from codedreduce.comparison.result import Comparison, Result, SchemeRun, run_in_turn
from codedreduce.errors import CodedReduceError
from codedreduce.report.comparison import comparison_table, write_comparison
from codedreduce.report.figures import delay_map, timelines
from codedreduce.run.journal import ALL_ROUNDS, Interval, Journal

WORKERS, ROUNDS = 5, 30
DELAYS = np.random.default_rng(0).random((ROUNDS, WORKERS))


def run(name: str, mean: float) -> SchemeRun:
    result = Result(
        scheme=name, name=name, mean=mean, median=mean, p95=2 * mean, p99=2 * mean, work=1.0, max_work=1.0,
        busiest_bytes=None, max_error=0.0, bit_identical=True, round_seconds=(mean,) * ROUNDS, final_loss=0.5,
        saved=0.0, losses=(0.5,) * ROUNDS,
    )  # fmt: skip
    journal = Journal(timeline=ALL_ROUNDS)
    first = 0 if name == "striped" else 1
    for round_ in range(1, ROUNDS + 1):
        for node in range(first, first + WORKERS):
            journal.add(Interval(round_, node, "compute", round_ + 0.1 * node, round_ + 0.1 * node + mean, 1))
    return SchemeRun(result, journal)


def compared(*runs: SchemeRun, **more: Any) -> Comparison:
    return Comparison(runs=runs, delays=DELAYS, **more)


def printed(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> list[str]:
    for part in comparison_table(comparison.results):
        make_console().print(part)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_speed_up_is_over_waiting_for_all_and_rows_are_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(compared(run("progressive", 0.2), run("master-worker", 0.4), run("striped", 0.1)), capsys)
    assert lines[0] == "fastest first; speed-up over master-worker, which waits for all"
    assert [line.split()[0] for line in lines[2:]] == ["striped", "progressive", "master-worker"]
    assert [line.split()[3] for line in lines[2:]] == ["4.00x", "2.00x", "1.00x"]


def test_without_master_worker_it_is_over_the_slowest(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(compared(run("ring", 0.3), run("striped", 0.1)), capsys)
    assert lines[0] == "fastest first; speed-up over ring, the slowest"
    assert [line.split()[3] for line in lines[2:]] == ["3.00x", "1.00x"]


def test_only_the_fastest_is_green(tmp_path: Path) -> None:
    runs = run("progressive", 0.2), run("master-worker", 0.4), run("striped", 0.1)
    table = comparison_table(compared(*runs).results)[1]
    assert [str(row.style) for row in table.rows] == ["bold green", "", ""]
    page = write_comparison(tmp_path, "Race", "<lead>", compared(*runs)).read_text()
    assert re.findall(r"<tr class=best><td>(\S+?)</td>", page) == ["striped"]
    assert "speed-up over master-worker" in page


def limits(figure: Figure, axes: int = 0) -> tuple[tuple[float, float], tuple[float, float]]:
    ax = figure.axes[axes]
    return ax.get_xlim(), ax.get_ylim()


def test_the_same_round_and_rank_are_the_same_number_in_all_figures() -> None:
    comparison = compared(run("ring", 0.3), run("striped", 0.1), run("progressive", 0.2))
    shown = comparison.shown
    figure = delay_map(DELAYS, first_rank=0, shown=shown)
    assert limits(figure) == ((0.5, ROUNDS + 0.5), (-0.5, WORKERS - 0.5)), "round 1 is at 1, rank 0 at 0"
    assert set(figure.axes[0].lines[0].get_xdata()) == {shown}
    spans = comparison.timelines()
    assert {name: {one.node for one in found} for name, found in spans.items()} == {
        "ring": {0, 1, 2, 3, 4}, "striped": {0, 1, 2, 3, 4}, "progressive": {1, 2, 3, 4, 5},
    }  # fmt: skip
    drawn = timelines(spans, {"ring": WORKERS, "striped": WORKERS, "progressive": WORKERS + 1})
    assert [limits(drawn, place)[1] for place in range(3)] == [(-0.5, 4.5), (-0.5, 4.5), (-0.5, 5.5)], "not reversed"
    drawn.draw_without_rendering()
    figure.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis, *(drawn.axes[place].yaxis for place in range(3))):
        assert all(float(tick).is_integer() for tick in axis.get_ticklocs())


@pytest.mark.parametrize(
    ("names", "says_root", "says_higher"),
    [(("ring", "striped"), False, False), (("striped", "progressive"), True, True), (("progressive",), True, False)],
)
def test_a_root_is_spoken_of_where_there_is_one(
    names: tuple[str, ...], says_root: bool, says_higher: bool, tmp_path: Path
) -> None:
    page = write_comparison(tmp_path, "Race", "", compared(*(run(name, 0.1) for name in names))).read_text()
    assert ("which is the root of a tree" in page) == says_root
    assert ("a rank is one higher than here" in page) == says_higher


def test_a_page_of_many_intervals_is_small_and_wide_parts_scroll(tmp_path: Path) -> None:
    def crowded(name: str) -> SchemeRun:
        one = run(name, 0.1)
        for index in range(20_000):
            begin = 1e-4 * index
            for round_ in {compared(one).shown}:
                one.journal.add(Interval(round_, index % 5, "send", round_ + begin, round_ + begin + 1e-5))
        return one

    path = write_comparison(tmp_path, "Race", "", compared(crowded("striped"), crowded("progressive")))
    assert path.stat().st_size < 700_000
    page = path.read_text()
    assert "name=viewport" in page
    assert page.count("<div class=wide>") == 1 + page.count("<svg ")
    assert "div.wide { overflow-x: auto; }" in page


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CodedReduceError("broken"), SystemExit(143)])
def test_what_is_finished_is_written_before_the_error_goes_on(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(name: str) -> SchemeRun:
        if name == "ring":
            raise error
        return run(name, 0.1)

    names = ["striped", "ring", "eager"]
    runs, stopped_by = run_in_turn(names, one)
    with pytest.raises(type(error)):
        show_comparison(
            Comparison(runs=runs, delays=DELAYS, stopped_by=stopped_by), names, make_console(), title="Race", lead="",
            report=tmp_path / "report", json=tmp_path / "json", conditions={}, seed=0,
        )  # fmt: skip
    assert "striped" in (tmp_path / "json").read_text()
    assert (tmp_path / "report" / "index.html").exists()
    assert "in ring: 1 of 3 schemes are finished" in capsys.readouterr().out
