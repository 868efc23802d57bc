"""Colours that are distinct on paper, on a screen and for colour-blind readers (Okabe and Ito, then Tol's muted)."""

from __future__ import annotations

GROUPS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#882255",
    "#999933",
    "#44AA99",
    "#332288",
)
ROOT = "#333333"
MUTED = "#8A8A8A"


def group_colour(index: int) -> str:
    """The colour of the index-th group."""
    return GROUPS[index % len(GROUPS)]
