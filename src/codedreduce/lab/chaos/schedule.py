"""The schedule of faults: drawn by a seed before the run begins, so that it can be saved and repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from codedreduce.errors import UsageError

#: kill: SIGKILL; the process that started it restarts it. stop: SIGSTOP, then SIGCONT. cut: the link goes down, and
#: up later. slow: the link has a hundredth of its rate for a while. reset: one of the node's TCP connections breaks.
#: fail: the next computation raises MemoryError. partition: some nodes can reach each other, but not the rest.
#: leave: SIGTERM, as a spot instance gets it; a replacement joins later.
Kind = Literal["kill", "stop", "cut", "slow", "reset", "fail", "partition", "leave"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: The relative frequency of each kind, and its seconds: the minimum, and the mean beyond the minimum.
_WEIGHT: dict[Kind, float] = {
    "kill": 5, "stop": 4, "cut": 3, "slow": 2, "reset": 2, "fail": 2, "partition": 1, "leave": 1,
}  # fmt: skip
_LASTS: dict[Kind, tuple[float, float]] = {
    "kill": (4.0, 0.0), "stop": (0.2, 2.0), "cut": (0.5, 3.0), "slow": (1.0, 3.0), "reset": (1.0, 0.0),
    "fail": (0.5, 0.0), "partition": (1.0, 3.0), "leave": (4.0, 0.0),
}  # fmt: skip

#: Limit of the fraction of nodes with a fault at the same time: a majority must be able to agree.
AT_ONCE = 1 / 3


class ChaosFault(msgspec.Struct, frozen=True):
    """A fault of some nodes: it begins `at` seconds after the first round, and lasts `seconds` seconds."""

    at: float
    kind: Kind
    nodes: tuple[int, ...]
    seconds: float

    @property
    def until(self) -> float:
        """When the fault ends."""
        return self.at + self.seconds


def drawn(
    nodes: int, seconds: float, seed: int, *, every: float = 1.0, kinds: Sequence[Kind] = KINDS
) -> list[ChaosFault]:
    """A schedule for nodes 0, 1, ...: a fault every `every` seconds, at nodes without a current fault.

    >>> schedule = drawn(7, 60.0, seed=1)
    >>> len(schedule), schedule == drawn(7, 60.0, seed=1)
    (60, True)
    """
    random = np.random.default_rng([seed, nodes])
    most = max(1, int(AT_ONCE * nodes))
    weights = np.array([_WEIGHT[kind] for kind in kinds])
    found: list[ChaosFault] = []
    for at in np.arange(0.0, seconds, every):
        busy = {node for fault in found if fault.until > at for node in fault.nodes}
        free = [node for node in range(nodes) if node not in busy]
        room = most - len(busy)
        kind = kinds[int(random.choice(len(kinds), p=weights / weights.sum()))]
        count = int(random.integers(2, max(3, most))) if kind == "partition" else 1
        if count > room:
            if "reset" not in kinds:
                continue
            kind, count = "reset", 1  # a fault that ends at once
        least, beyond = _LASTS[kind]
        lasts = least + (float(random.exponential(beyond)) if beyond else 0.0)
        chosen = tuple(sorted(int(node) for node in random.choice(free, size=count, replace=False)))
        found.append(
            ChaosFault(at=float(at), kind=kind, nodes=chosen, seconds=round(min(lasts, 6 * (least + beyond)), 2))
        )
    return found


def write(path: Path, schedule: Iterable[ChaosFault]) -> None:
    """Write a schedule into a file, one line per fault."""
    path.write_text("".join(msgspec.json.encode(fault).decode() + "\n" for fault in schedule))


def read(path: Path) -> list[ChaosFault]:
    """Read a schedule from a file."""
    try:
        lines = path.read_text().splitlines()
        return [msgspec.json.decode(line, type=ChaosFault) for line in lines if line.strip()]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a schedule of faults: {error}") from None
