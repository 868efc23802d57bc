"""Reserve places in Ray for the ranks of a run: all places that the run needs to begin, or none of them.

If a place is lost, Ray reserves another one as soon as a node has room. The places beyond the minimum are requested one
by one, and are available when there is room: an autoscaler sees the open requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codedreduce.errors import UsageError
from codedreduce.ray.ray_cluster import RayNode, nodes_of
from codedreduce.ray.spots import Spot, assign, clashes, evenly, fits, groups_of, in_words
from codedreduce.schemes import Plan

#: Seconds of waiting after which the missing resources are reported.
SAY_AFTER = 2.0

#: Ray's option names for its built-in resources.
AS_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A request to a cluster: places for `least` to `count` ranks, each with these `resources` of a node.

    The places are spread over nodes, or over the values of a node label. `within` is the timeout in seconds.
    """

    least: int
    count: int
    resources: Mapping[str, float] = field(default_factory=dict)
    spread_over: str | None = None
    within: float = 60.0

    def __post_init__(self) -> None:
        for name, much in self.resources.items():
            if not much >= 0 or (much > 1 and much != int(much)):
                raise UsageError(f"{name} of a rank must be a whole number, or below 1; got {much:g}")

    @property
    def needs(self) -> dict[str, float]:
        """The resources of each rank; by default one core."""
        return {name: much for name, much in {"CPU": 1.0, **self.resources}.items() if much}


class Reservation:
    """The places that are reserved for a run, until `release`."""

    def __init__(self, ray: Any, wanted: Wanted, plan: Plan) -> None:
        self._ray, self._wanted, self._plan = ray, wanted, plan
        self._groups: list[Any] = []
        self._places: tuple[int, ...] = ()  # the bundle of each of the first ranks
        self.spots: tuple[Spot, ...] = ()  # the initial place of each of these ranks

    def wait(self, note: Callable[[str], None]) -> None:
        """Wait for the places that the run needs to begin, and request the others."""
        wanted, util = self._wanted, self._ray.util
        selectors = self._selectors(list(nodes_of(self._ray).values()))
        first = util.placement_group([wanted.needs] * wanted.least, strategy="SPREAD", bundle_label_selector=selectors)
        self._groups.append(first)
        if not first.wait(min(SAY_AFTER, wanted.within)):
            lacking = self._lacking()
            note(f"(waits up to {wanted.within:g} s for places: {lacking})")
            deadline = time.monotonic() + wanted.within - SAY_AFTER
            while not first.wait(1):
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"no places within {wanted.within:g} s: {self._lacking()}; add nodes, or request less "
                        "(-n, --resources)"
                    )
        self._groups += [util.placement_group([wanted.needs]) for _ in range(wanted.least, wanted.count)]
        self._seat(first)

    def _seat(self, first: Any) -> None:
        nodes = nodes_of(self._ray)
        placed = self._ray.util.placement_group_table(first)["bundles_to_node_id"]
        found = [nodes[placed[bundle]] for bundle in range(self._wanted.least)]
        label = self._wanted.spread_over
        spots = [Spot(node=one.name, address=one.address, domain=one.domain(label)) for one in found]
        self._places = assign(groups_of(self._plan, self._wanted.least), [spot.domain for spot in spots])
        self.spots = tuple(spots[place] for place in self._places)

    def _selectors(self, nodes: Sequence[RayNode]) -> list[dict[str, str]] | None:
        """The label value (a rack, for example) of each place; no constraint where no room is left now."""
        label = self._wanted.spread_over
        if label is None:
            return None
        room: dict[str, int] = {}
        for node in nodes:
            if label in node.labels:
                value = node.labels[label]
                room[value] = room.get(value, 0) + fits(self._wanted.needs, node.free)
        if not room:
            there = sorted({name for node in nodes for name in node.labels if not name.startswith("ray.io/")})
            raise UsageError(
                f"no node of the cluster has a label {label!r} (they have: {', '.join(there) or 'none'}); give them "
                f"one with: ray start --labels {label}=..."
            )
        chosen = evenly(self._wanted.least, room)
        return [{} if value is None else {label: value} for value in chosen]

    def _lacking(self) -> str:
        """The missing and the available resources as text."""
        wanted, nodes = self._wanted, list(nodes_of(self._ray).values())
        there = sum(fits(wanted.needs, node.free) for node in nodes)
        nowhere = [name for name in wanted.needs if not any(node.has.get(name) for node in nodes)]
        none = f", and no node has any {' or '.join(nowhere)}" if nowhere else ""
        each = "; ".join(node.in_words() for node in nodes)
        return (
            f"{wanted.least} ranks need {in_words(wanted.needs.items())} each; there is room for {there}{none} ({each})"
        )

    def clashes(self) -> list[str]:
        """Messages for domains without which the run cannot continue."""
        if self._wanted.least < self._plan.workers:
            one = len({spot.domain for spot in self.spots}) == 1
            return [f"all ranks are on {self.spots[0].domain}"] if one else []
        return clashes(self._plan, [spot.domain for spot in self.spots])

    def options(self, rank: int) -> dict[str, Any]:
        """Ray's options that place a rank's actor."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = self._groups[0 if rank < self._wanted.least else 1 + rank - self._wanted.least]
        bundle = self._places[rank] if rank < self._wanted.least else 0
        needs = {"CPU": 0.0, **self._wanted.needs}
        own = {AS_OPTIONS[name]: much for name, much in needs.items() if name in AS_OPTIONS}
        others = {name: much for name, much in needs.items() if name not in AS_OPTIONS}
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        return {**own, "resources": others, "scheduling_strategy": strategy, "max_restarts": 0}

    def release(self) -> None:
        """Release all places."""
        for group in self._groups:
            self._ray.util.remove_placement_group(group)
        self._groups = []
