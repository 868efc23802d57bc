"""Plans as text for the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as TextTree

from codedreduce.report.palette import group_colour
from codedreduce.schemes import Plan, RingPlan, StripedPlan, TreePlan

#: Limit of workers for a complete tree; a larger one shows the subtree of one replica per group.
SHOWN_WHOLE = 64

#: Limit of children shown per node in such a larger tree.
CHILDREN = 20

#: Limit of workers for counting how often a sample is held: more take seconds.
COUNTED = 2000


def plan_text(plan: Plan) -> Group:
    """The tree (groups in colour, load and tasks of each node), the ring or the ranks; below it a summary."""
    if isinstance(plan, TreePlan):
        picture: TextTree | Text = _tree(plan)
    else:
        picture = _ranks(plan) if isinstance(plan, StripedPlan) else _ring(plan)
    return Group(Text(str(plan.scheme), style="bold"), picture, Text(), _summary(plan))


def _tree(plan: TreePlan) -> TextTree:
    whole = plan.workers <= SHOWN_WHOLE
    top = TextTree(Text("0 root", style="bold"), guide_style="dim")
    _add_children(plan, top, 0, whole)
    return top


def _add_children(plan: TreePlan, branch: TextTree, node: int, whole: bool) -> None:
    children = plan.tree.children(node)
    shown = children if whole else children[:CHILDREN]
    for index, members in enumerate(group_ranges(plan, shown)):
        colour = group_colour(index + plan.tree.level(node) * 4)
        for member in members:
            label = Text()
            label.append(f"● {member}", style=f"bold {colour}")
            label.append(f"  {_describe(plan, member)}")
            twig = branch.add(label)
            if whole or member == members.start:
                _add_children(plan, twig, member, whole)
            elif plan.tree.children(member):
                twig.add(Text(f"as under {members.start}", style="dim"))
    if len(shown) < len(children):
        branch.add(Text(f"... and so on to {children[-1]}", style="dim"))


def group_ranges(plan: TreePlan, children: range) -> list[range]:
    """The groups of these children of a node, in order, cut off at the last of these children."""
    groups: list[range] = []
    for child in children:
        group = plan.group(child)
        members = range(group.start, min(group.stop, children.stop))
        if not groups or groups[-1] != members:
            groups.append(members)
    return groups


def _describe(plan: TreePlan, node: int) -> str:
    calm, most = plan.calm_load(node), plan.load(node)
    if plan.scheme.order == "progressive" and most > calm:
        tasks = plan.order(node, plan.tree.parent(node))
        return f"{calm} samples, {most} at most; tasks {' then '.join(map(str, tasks))}"
    piece = [part for pieces in next(plan.units(node)).pieces for part in pieces]
    where = " + ".join(f"{_weight(part.weight)}[{part.start}, {part.stop})" for part in piece[:4])
    return f"{most} samples: {where}{' + ...' if len(piece) > 4 else ''}"


def _weight(weight: float) -> str:
    return "" if weight == 1 else f"{weight:.3g}·"


def _ring(plan: Plan) -> Text:
    assert isinstance(plan, RingPlan)
    text = Text()
    for node in range(1, min(plan.workers, SHOWN_WHOLE) + 1):
        part = plan.unit(node).pieces[0][0]
        text.append(f"● {node}", style=f"bold {group_colour(node - 1)}")
        text.append(f"  {len(part)} samples: [{part.start}, {part.stop}), sends to {plan.next(node)}\n")
    if plan.workers > SHOWN_WHOLE:
        text.append(f"... and so on to {plan.workers}\n", style="dim")
    return text


def _ranks(plan: StripedPlan) -> Text:
    text = Text()
    for rank in plan.computing[:SHOWN_WHOLE]:
        units = tuple(plan.units(rank))
        start, stop = units[0].pieces[0][0].start, units[-1].pieces[-1][0].stop
        several = f"{len(units)} units, " if len(units) > 1 else ""
        text.append(f"● {rank}", style=f"bold {group_colour(rank)}")
        text.append(f"  {stop - start} samples: [{start}, {stop}) in {several}{len(units) * plan.blocks} blocks; ")
        text.append(f"{'first leader, and ' if rank == 0 else ''}reducer of 1/{plan.workers} of the vector\n")
    if plan.workers > SHOWN_WHOLE:
        text.append(f"... and so on to {plan.workers - 1}\n", style="dim")
    return text


def _summary(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    probes = (
        [plan.computing.start] if not isinstance(plan, TreePlan) else [level.start for level in plan.tree.levels()][1:]
    )
    calm = max(plan.calm_load(node) for node in probes)
    most = max(plan.load(node) for node in probes)
    tolerated = getattr(plan.scheme, "stragglers", 0)
    table.add_row("workers", str(plan.workers))
    table.add_row("samples", str(plan.samples))
    at_most = "plus late blocks of other ranks" if isinstance(plan, StripedPlan) else f"{most} at most"
    table.add_row("a worker computes", f"{calm} samples without stragglers, {at_most}")
    if plan.workers <= COUNTED:
        table.add_row("a sample is held", copies_text(plan))
    table.add_row("tolerates", _tolerance(plan, tolerated))
    return table


def copies_text(plan: Plan) -> str:
    """How many workers hold a sample."""
    least, mean, most = plan.copies()
    if least == most:
        return "once" if most == 1 else f"by {most} workers"
    return f"by {least} to {most} workers, {mean:.3g} in the mean"


def _tolerance(plan: Plan, tolerated: int) -> str:
    if isinstance(plan, StripedPlan):
        others = len(plan.group(0)) - 1
        return (
            f"{others} stragglers, that is, all ranks but one"
            if others + 1 == plan.workers
            else f"{others} in each group"
        )
    if not tolerated:
        return "no straggler: a round waits for the slowest worker"
    where = "in each group" if getattr(plan.scheme, "code", "repetition") == "repetition" else "under each parent"
    if plan.scheme.name == "live-compensation":
        where = "in all; their results count one step later"
    return f"{tolerated} straggler{'s' if tolerated > 1 else ''} {where}"
