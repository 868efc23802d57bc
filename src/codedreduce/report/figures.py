"""Figures of runs: bars, distributions, the timeline of a round, the heat map of delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from codedreduce.report.palette import MUTED, group_colour
from codedreduce.run.journal import Interval

#: The colours of a node's activities in a timeline.
ACTIVITY = {"stall": "#D55E00", "compute": "#0072B2", "send": "#E69F00", "interrupted": "#C9C9C9"}

#: Limit of points in a curve: more are not distinguishable.
MOST_POINTS = 1000


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
    ax.set_xlabel("seconds per round (bar: mean, line: to the 95th percentile)")
    ax.margins(x=0.15)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def distributions(seconds: Mapping[str, Sequence[float]]) -> Figure:
    """The fraction of rounds that took longer than t, by scheme. Logarithmic axes show the tails."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    ax = figure.subplots()
    for index, (name, values) in enumerate(seconds.items()):
        ordered = np.sort(values)
        longer = 1 - np.arange(len(ordered)) / len(ordered)
        ranks = _thinned(len(ordered), to_the_end=True)
        ax.step(ordered[ranks], longer[ranks], where="post", color=group_colour(index), label=name, lw=1.6)
    ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="fraction of the rounds that took longer")
    ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def losses_over_time(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Loss against seconds since the start, by scheme: (seconds of each round, loss after it)."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    ax = figure.subplots()
    for index, (name, (seconds, losses)) in enumerate(runs.items()):
        rounds = _thinned(len(losses))
        ax.plot(np.cumsum(seconds)[rounds], np.array(losses)[rounds], color=group_colour(index), label=name, lw=1.6)
    ax.set(xlabel="seconds", ylabel="loss")
    ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def _thinned(count: int, *, to_the_end: bool = False) -> npt.NDArray[np.int64]:
    """The indices of the points to draw: at most `MOST_POINTS`, with `to_the_end` denser towards the end."""
    if count <= MOST_POINTS:
        return np.arange(count)
    if to_the_end:
        return np.unique(count - np.geomspace(count, 1, MOST_POINTS).astype(np.int64))
    return np.unique(np.linspace(0, count - 1, MOST_POINTS).astype(np.int64))


def timelines(rounds: Mapping[str, Sequence[Interval]], ranks: Mapping[str, int]) -> Figure:
    """One round of each scheme: when each rank computed, sent or was interrupted; the rest of the line is waiting."""
    most = max(ranks.values())
    figure = Figure(figsize=(9, min(2.6, 0.7 + 0.1 * most) * len(rounds) + 0.8), layout="constrained")
    axes = figure.subplots(len(rounds), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, intervals) in zip(axes, rounds.items(), strict=True):
        begin = min((interval.begin for interval in intervals), default=0.0)
        for kind, colour in ACTIVITY.items():
            spans = [(i.node, i.begin - begin, i.end - i.begin) for i in intervals if i.kind == kind]
            if spans:
                lines, starts, widths = (np.array(column) for column in zip(*spans, strict=True))
                left, right, low, high = starts, starts + widths, lines - 0.5, lines + 0.5
                corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
                ax.add_collection(PolyCollection(list(corners), facecolors=colour, linewidths=0, rasterized=True))
        end = max((interval.end for interval in intervals if interval.kind in ("compute", "send")), default=begin)
        ax.axvline(end - begin, color="black", lw=0.8)
        ax.autoscale_view(scaley=False)
        ax.set_ylim(-0.5, ranks[name] - 0.5)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        ax.set_ylabel("rank", fontsize=8)
        ax.set_title(name, fontsize=9, loc="left")
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlim(left=0.0)
    axes[-1].set_xlabel("seconds since the round began (black line: the last result that was used)")
    seen = {interval.kind for intervals in rounds.values() for interval in intervals}
    handles = [Patch(color=colour, label=kind) for kind, colour in ACTIVITY.items() if kind in seen]
    figure.legend(handles=handles, loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    return figure


def delay_map(delays: npt.NDArray[np.float64], *, first_rank: int, shown: int) -> Figure:
    """Delays by rank (vertical, from the first computing rank) and round (horizontal, from 1); one round is marked."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    ax = figure.subplots()
    values = np.log10(np.maximum(delays.T, 1e-4))
    ranks, rounds = values.shape
    image = ax.imshow(
        values, aspect="auto", interpolation="nearest", cmap="magma", origin="lower",
        extent=(0.5, rounds + 0.5, first_rank - 0.5, first_rank + ranks - 0.5),
    )  # fmt: skip
    ax.axvline(shown, color="#56B4E9", lw=1.2)
    ax.set(xlabel="round", ylabel="rank")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=ax)
    ticks = [tick for tick in range(-4, 4) if values.min() - 0.01 <= tick <= values.max() + 0.01]
    bar.set_ticks(ticks, labels=[f"{10.0**tick:g}" if tick > -4 else "0" for tick in ticks])
    bar.set_label("delay, seconds")
    return figure
