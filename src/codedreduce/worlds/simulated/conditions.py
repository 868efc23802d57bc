"""What the simulated machines and wires are like."""

from __future__ import annotations

from dataclasses import dataclass, field

from codedreduce.worlds.delays import Delays
from codedreduce.worlds.simulated.faults import Fault
from codedreduce.worlds.simulated.network import Host, Link


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Links, the time a sample takes, who is late, and what goes wrong."""

    link: Link = field(default_factory=Link)
    sample_seconds: float = 0.003
    delays: Delays
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    host: Host | None = None  # what all nodes share, if they do
