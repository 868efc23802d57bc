"""Schemes by their names in comparisons."""

from __future__ import annotations

import msgspec

from codedreduce.errors import UsageError
from codedreduce.schemes.names import SCHEMES
from codedreduce.simulator.scenario import Scenario

#: The schemes that `all` selects, in the order of the table.
ALL = ("master-worker", "gradient-coding", "live-compensation", "ring", "eager", "progressive", "striped")

#: Schemes without a root: all ranks compute.
ROOTLESS = ("ring", "striped")


def scheme_names(text: str) -> list[str]:
    """The schemes of a list such as `ring,progressive`, or `all`.

    >>> scheme_names("all")[-1]
    'striped'
    """
    names = list(ALL) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ALL and name not in SCHEMES:
            raise UsageError(f"unknown scheme {name!r}; there are {', '.join((*ALL, 'all'))}")
    return names


def scenario_for(base: Scenario, name: str, tolerance: int | None = None) -> Scenario:
    """The scenario with the scheme of that name.

    >>> scenario_for(Scenario(tree="4x2"), "gradient-coding", 3).parsed_scheme().label
    'gradient-coding S=3'
    """
    if name == "coded-reduce":
        return msgspec.structs.replace(base, scheme=name)
    if name in ("progressive", "eager"):
        return msgspec.structs.replace(base, scheme="coded-reduce", order=name)
    if tolerance is None:
        tolerance = max(1, base.workers // 20) if name == "live-compensation" else base.stragglers
    return msgspec.structs.replace(base, scheme=name, order="eager", tolerance=min(tolerance, base.workers - 1))


def gradient_coding_choices(workers: int) -> list[int]:
    """The values of S to try: those with equal groups of S + 1 workers, or a fixed series if there are few of these.

    >>> gradient_coding_choices(84)
    [1, 2, 3, 5, 6, 11, 13, 20, 27, 41, 83]
    """
    even = [s for s in range(1, workers) if workers % (s + 1) == 0]
    return even if len(even) > 2 else [s for s in (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63) if s < workers]
