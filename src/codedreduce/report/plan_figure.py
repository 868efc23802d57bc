"""Figures of plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from codedreduce.errors import UsageError
from codedreduce.report.palette import MUTED, ROOT, group_colour
from codedreduce.report.plan_text import copies_text, group_ranges
from codedreduce.schemes import Plan, RingPlan, StripedPlan, TreePlan

#: Limit of workers: more do not fit on a page.
MOST_DRAWN = 600

Point = tuple[float, float]


def plan_figure(plans: Sequence[Plan]) -> Figure:
    """Draw plans side by side: trees with groups in colour and loads, rings as circles, ranks above their stripes."""
    for plan in plans:
        if plan.workers > MOST_DRAWN:
            raise UsageError(f"{plan.workers} workers do not fit in a picture; draw {MOST_DRAWN} or fewer")
    widths = [max(7.0 if isinstance(plan, StripedPlan) else 4.5, 0.4 * _breadth(plan)) for plan in plans]
    figure = Figure(figsize=(sum(widths), 4.6 if len(plans) == 1 else 4.2), layout="constrained")
    axes = figure.subplots(1, len(plans), squeeze=False, width_ratios=widths)[0]
    for ax, plan, width in zip(axes, plans, widths, strict=True):
        if isinstance(plan, TreePlan):
            _draw_tree(ax, plan, width)
        elif isinstance(plan, RingPlan):
            _draw_ring(ax, plan)
        elif isinstance(plan, StripedPlan):
            _draw_stripes(ax, plan)
        ax.set_title(str(plan.scheme), fontsize=11, fontweight="bold")
        ax.text(0.5, -0.02, _caption(plan), transform=ax.transAxes, ha="center", va="top", fontsize=9, color=ROOT)
        ax.set_axis_off()
    return figure


def _breadth(plan: Plan) -> int:
    return max(plan.tree.sizes) if isinstance(plan, TreePlan) else min(plan.workers, 16)


def _caption(plan: Plan) -> str:
    last = plan.computing[-1]
    calm, most = plan.calm_load(last), plan.load(last)
    computes = f"every worker computes {_per_cent(calm, plan)} of the batch"
    if isinstance(plan, StripedPlan):
        computes += ", plus late blocks of other ranks"
    elif calm != most:
        computes += f", up to {_per_cent(most, plan)} under stragglers"
    return f"{computes}\na sample is held {copies_text(plan)}"


def _per_cent(samples: int, plan: Plan) -> str:
    return f"{100 * samples / plan.samples:.3g} %"


def _positions(plan: TreePlan) -> Mapping[int, Point]:
    """Leaves evenly spaced from left to right, each parent above the middle of its children."""
    places: dict[int, Point] = {}
    next_leaf = 0.0

    def place(node: int, level: int) -> float:
        nonlocal next_leaf
        children = plan.tree.children(node)
        if children:
            spots = [place(child, level + 1) for child in children]
            x = (spots[0] + spots[-1]) / 2
            next_leaf += 0.35 if level < plan.tree.depth else 0
        else:
            x = next_leaf
            next_leaf += 1
        places[node] = (x, -level)
        return x

    place(0, 0)
    return places


def _draw_tree(ax: Axes, plan: TreePlan, width: float) -> None:
    places = _positions(plan)
    crowding = width / max(4.0, max(x for x, _ in places.values()) + 1)
    size = 620 * min(1.0, (crowding / 0.42)) ** 2
    font = max(3.0, 9 * min(1.0, crowding / 0.42))
    parents = [node for node in places if plan.tree.children(node)]
    for parent in parents:
        for index, members in enumerate(group_ranges(plan, plan.tree.children(parent))):
            colour = group_colour(index + plan.tree.level(parent) * 4)
            for child in members:
                ax.plot(*zip(places[parent], places[child], strict=True), color=colour, lw=1.2, alpha=0.7, zorder=1)
                _dot(ax, places[child], str(child), colour, size, font)
                _label(ax, places[child], _load(plan, child), leaf=not plan.tree.children(child), size=size, font=font)
    _dot(ax, places[0], "root", ROOT, size * 1.3, font)
    ax.margins(x=0.05, y=0.2)


def _load(plan: TreePlan, node: int) -> str:
    calm, most = plan.calm_load(node), plan.load(node)
    if calm == most:
        return str(most)
    return f"{calm}\n≤{most}"


def _label(ax: Axes, place: Point, text: str, *, leaf: bool, size: float, font: float) -> None:
    """Put a label below a leaf, or beside a parent, as edges leave a parent at its lower side."""
    reach = 0.62 * math.sqrt(size)
    offset, ha, va = ((0.0, -reach), "center", "top") if leaf else ((reach, 0.0), "left", "center")
    ax.annotate(
        text, place, offset, textcoords="offset points", ha=ha, va=va, fontsize=font * 0.85, color=ROOT, linespacing=1.1
    )


def _dot(ax: Axes, place: Point, label: str, colour: str, size: float, font: float) -> None:
    ax.scatter(*place, s=size, color=colour, edgecolors="white", linewidths=1.0, zorder=2)
    ax.text(*place, label, ha="center", va="center", color="white", fontsize=font, fontweight="bold", zorder=3)


def _draw_stripes(ax: Axes, plan: StripedPlan) -> None:
    """Ranks with the blocks of their units, and below them the vector: every rank sends to every stripe's reducer."""
    ranks = plan.workers
    scale = min(1.0, 18 / ranks)
    for rank in plan.computing:
        colour = group_colour(rank)
        for other in plan.computing:
            ax.plot((rank, other), (0, -2), color=group_colour(other), lw=1.4 * scale, alpha=0.35, zorder=1)
        blocks = len(plan.own(rank)) * plan.blocks
        width = 0.8 / blocks
        for block in range(blocks):
            left = rank - 0.4 + block * width
            ax.add_patch(Rectangle((left, 0.55), 0.8 * width, 0.16, color=colour, alpha=0.75, lw=0))
        ax.add_patch(Rectangle((rank - 0.5, -2.28), 1, 0.28, facecolor=colour, edgecolor="white", lw=scale))
        _dot(ax, (rank, 0), str(rank), colour, 620 * scale**2, max(3.0, 9 * scale))
    units = len(plan.all_units)
    work = f"one unit each,\n{plan.blocks} blocks" if units == ranks else f"{units} units,\n{plan.blocks} blocks each"
    for height, words in ((0.63, work), (-2.14, "the sum,\none stripe each")):
        ax.text(-0.75, height, words, ha="right", va="center", fontsize=8, color=ROOT)
    ax.set_xlim(-0.8 - 0.2 * ranks, ranks - 0.3)
    ax.set_ylim(-2.5, 0.95)


def _draw_ring(ax: Axes, plan: RingPlan) -> None:
    places: dict[int, Point] = {}
    for node in range(1, plan.workers + 1):
        angle = math.pi / 2 - 2 * math.pi * (node - 1) / plan.workers
        places[node] = (math.cos(angle), math.sin(angle))
    scale = min(1.0, 18 / plan.workers)
    for node, place in places.items():
        ax.annotate(
            "", places[plan.next(node)], place,
            arrowprops={"arrowstyle": "-|>", "color": MUTED, "shrinkA": 15 * scale, "shrinkB": 15 * scale, "lw": 1.4},
        )  # fmt: skip
        _dot(ax, place, str(node), group_colour(node - 1), 620 * scale**2, max(3.0, 9 * scale))
        ax.text(1.24 * place[0], 1.2 * place[1], str(plan.calm_load(node)), ha="center", va="center",
                fontsize=max(3.0, 8 * scale), color=ROOT)  # fmt: skip
    ax.set_aspect("equal")
    ax.margins(0.2)
