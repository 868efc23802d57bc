"""What was measured, as tables, and beside the paper's Fig. 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.paper.experiments import EXPERIMENTS
from codedreduce.comparison.selection import ALL
from codedreduce.report.palette import MUTED, group_colour

#: The speed-ups of CodedReduce that the paper reports, "up to".
PAPER = {"master-worker": 22.5, "gradient-coding": 6.4, "ring": 4.3}

COLUMNS = {
    "master-worker": "master-worker", "gradient-coding": "gradient coding", "live-compensation": "live comp. *",
    "ring": "ring", "eager": "CodedReduce eager", "progressive": "**progressive**", "striped": "**striped**",
    "gloo": "Gloo", "mpi": "MPICH",
}  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """All that was measured, as Markdown."""
    return "\n".join(
        _means(name, results) + "\n" + _speedups(results) + "\n" + _simulated(results)
        for name, results in found.get("experiments", {}).items()
    )


def mean(row: dict[str, Any], name: str) -> float | None:
    """The mean round of a scheme or peer, if it was measured."""
    found: float | None = row.get(name, {}).get("mean")
    return found


def _means(name: str, results: dict[str, Any]) -> str:
    experiment = next(one for one in EXPERIMENTS if one.name == name)
    lines = [f"\n{experiment.workers} workers ({experiment.tree}), mean seconds a round:\n", _row("condition", COLUMNS)]
    for condition, row in results.items():
        cells = {}
        for column in COLUMNS:
            value = mean(row, column)
            label = row.get(column, {}).get("scheme", "")
            chosen = f" ({label.rpartition(' ')[2]})" if column in ("gradient-coding", "eager", "progressive") else ""
            cells[column] = "" if value is None else f"{value:.3f}{chosen}"
        lines.append("| " + " | ".join([condition, *cells.values()]) + " |")
    return "\n".join(lines)


def _speedups(results: dict[str, Any]) -> str:
    over = [column for column in COLUMNS if column != "progressive"]
    lines = ["\nProgressive is faster by:\n", _row("condition", {column: COLUMNS[column] for column in over})]
    for condition, row in results.items():
        mine = mean(row, "progressive")
        cells = []
        for column in over:
            other = mean(row, column)
            cells.append("" if other is None or mine is None else f"{other / mine:.2f}x")
        lines.append("| " + " | ".join([condition, *cells]) + " |")
    return "\n".join(lines)


def _simulated(results: dict[str, Any]) -> str:
    names = {name: COLUMNS[name] for name in ALL}
    lines = ["\nSimulated / measured:\n", _row("condition", names)]
    worst = 0.0
    for condition, row in results.items():
        cells = []
        for name in names:
            measured, simulated = mean(row, name), row.get(name, {}).get("simulated")
            if measured is None or simulated is None:
                cells.append("")
                continue
            worst = max(worst, abs(simulated / measured - 1))
            cells.append(f"{simulated / measured:.2f}")
        lines.append("| " + " | ".join([condition, *cells]) + " |")
    return "\n".join([*lines, f"\nat worst {100 * worst:.0f} % apart\n"])


def _row(first: str, columns: dict[str, str]) -> str:
    return "| " + " | ".join([first, *columns.values()]) + " |\n|" + "---|" * (len(columns) + 1)


def draw(found: dict[str, Any], path: Path) -> None:
    """The paper's speed-ups and ours, condition by condition."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    experiments = found.get("experiments", {})
    figure, panels = plt.subplots(len(experiments) or 1, 1, figsize=(9, 3.4 * (len(experiments) or 1)), squeeze=False)
    for (name, results), axes in zip(experiments.items(), panels[:, 0], strict=False):
        _panel(axes, name, results)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def _panel(axes: Any, name: str, results: dict[str, Any]) -> None:
    experiment = next(one for one in EXPERIMENTS if one.name == name)
    conditions = list(results)
    width = 0.8 / (len(conditions) + 1)
    for place, (other, theirs) in enumerate(PAPER.items()):
        bars = [("the paper, up to", theirs, MUTED)]
        for index, condition in enumerate(conditions):
            mine, others = mean(results[condition], "progressive"), mean(results[condition], other)
            if mine is not None and others is not None:
                bars.append((condition.replace("_", " "), others / mine, group_colour(index)))
        for index, (label, value, colour) in enumerate(bars):
            where = place + (index - len(conditions) / 2) * width
            axes.bar(where, value, width * 0.92, color=colour, label=label if place == 0 else None)
            axes.text(where, value * 1.04, f"{value:.1f}", ha="center", va="bottom", fontsize=7)
    axes.set_xlim(-0.55, len(PAPER) - 0.45)
    axes.set_yscale("log")
    axes.set_ylim(0.8, 60)
    axes.set_yticks([1, 2, 5, 10, 20], ["1x", "2x", "5x", "10x", "20x"])
    axes.minorticks_off()
    axes.axhline(1, color=MUTED, linewidth=0.8)
    titles = [f"over {COLUMNS[other]}" for other in PAPER]
    axes.set_xticks(range(len(PAPER)), titles)
    axes.set_title(f"{experiment.workers} workers ({experiment.tree}): speed-up of CodedReduce, measured", fontsize=10)
    axes.legend(fontsize=7, ncols=4, loc="upper right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
