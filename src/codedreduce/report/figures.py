"""Figures of runs: bars, distributions, the timeline of a round, the heat map of delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from codedreduce.report.palette import MUTED, group_colour
from codedreduce.worlds.journal import Interval

#: The colour of what a node does in a timeline.
ACTIVITY = {"stall": "#D55E00", "compute": "#0072B2", "send": "#E69F00", "interrupted": "#C9C9C9"}


def bars(means: Mapping[str, float], p95: Mapping[str, float]) -> Figure:
    """Mean round time by scheme, with the 95th percentile as a thin line."""
    figure = Figure(figsize=(8, 0.5 * len(means) + 1.2), layout="constrained")
    ax = figure.subplots()
    names = list(means)[::-1]
    for place, name in enumerate(names):
        ax.barh(place, means[name], color=group_colour(len(names) - 1 - place), height=0.6)
        ax.plot([means[name], p95[name]], [place, place], color=MUTED, lw=1.5, solid_capstyle="butt")
        ax.text(max(means[name], p95[name]), place, f"  {means[name]:.3g} s", va="center", fontsize=9)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("seconds a round (bar: mean, line: to the 95th percentile)")
    ax.margins(x=0.15)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def distributions(seconds: Mapping[str, Sequence[float]]) -> Figure:
    """The part of rounds that took longer than t, by scheme: tails show on the logarithmic axis."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    ax = figure.subplots()
    for index, (name, values) in enumerate(seconds.items()):
        ordered = np.sort(values)
        longer = 1 - np.arange(len(ordered)) / len(ordered)
        ax.step(ordered, longer, where="post", color=group_colour(index), label=name, lw=1.6)
    ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="part of the rounds that took longer")
    ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def losses_over_time(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Loss against seconds since the start, by scheme: (seconds of each round, loss after it)."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    ax = figure.subplots()
    for index, (name, (seconds, losses)) in enumerate(runs.items()):
        ax.plot(np.cumsum(seconds), losses, color=group_colour(index), label=name, lw=1.6)
    ax.set(xlabel="seconds", ylabel="loss")
    ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def timelines(rounds: Mapping[str, Sequence[Interval]], workers: int) -> Figure:
    """One round of each scheme: who computed, sent, was interrupted; the rest of the line is waiting."""
    figure = Figure(figsize=(9, min(2.6, 0.6 + 0.03 * workers) * len(rounds) + 0.8), layout="constrained")
    axes = figure.subplots(len(rounds), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, intervals) in zip(axes, rounds.items(), strict=True):
        begin = min((interval.begin for interval in intervals), default=0.0)
        for kind, colour in ACTIVITY.items():
            spans = [(i.node, i.begin - begin, i.end - i.begin) for i in intervals if i.kind == kind]
            if spans:
                nodes, starts, widths = (np.array(column) for column in zip(*spans, strict=True))
                ax.barh(nodes, widths, left=starts, height=1.0, color=colour, linewidth=0)
        end = max((interval.end for interval in intervals if interval.kind in ("compute", "send")), default=begin)
        ax.axvline(end - begin, color="black", lw=0.8)
        ax.set_ylim(workers + 0.5, -0.5)
        ax.set_ylabel("node", fontsize=8)
        ax.set_title(name, fontsize=9, loc="left")
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds since the round began (black line: the last result that counted)")
    seen = {interval.kind for intervals in rounds.values() for interval in intervals}
    handles = [Patch(color=colour, label=kind) for kind, colour in ACTIVITY.items() if kind in seen]
    figure.legend(handles=handles, loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    return figure


def delay_map(delays: npt.NDArray[np.float64]) -> Figure:
    """Delays of workers (down) over rounds (across)."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    ax = figure.subplots()
    shown = np.log10(np.maximum(delays.T, 1e-4))
    image = ax.imshow(shown, aspect="auto", interpolation="nearest", cmap="magma", origin="lower")
    ax.set_xlabel("round")
    ax.set_ylabel("worker")
    bar = figure.colorbar(image, ax=ax)
    ticks = [tick for tick in range(-4, 4) if shown.min() - 0.01 <= tick <= shown.max() + 0.01]
    bar.set_ticks(ticks, labels=[f"{10.0**tick:g}" for tick in ticks])
    bar.set_label("delay, seconds")
    return figure
