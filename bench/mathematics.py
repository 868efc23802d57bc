"""What the mathematics costs: summing vectors, asking a plan for a node's work, and what codes do to rounding.

python -m bench.mathematics [--out FILE.json]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measure import interleaved, ratio, save
from codedreduce import CodedReduce, Tree
from codedreduce.codes import cyclic
from codedreduce.errors import CodeError
from codedreduce.vectors import combine

Vector = npt.NDArray[np.float32]

#: Vectors are taken in turn from a pool this large, so that they come from memory and not from a cache.
POOL_BYTES = 512 << 20


def combine_speed(m: int, mebibytes: int, *, hot: bool = False) -> dict[str, Any]:
    """Reading m vectors and writing one, against what copies of such vectors take: (m + 1) / 2 copies."""
    length = mebibytes << 18
    count = m if hot else max(m, POOL_BYTES // (mebibytes << 20) // 2)
    sources = [np.full(length, i, np.float32) for i in range(count)]
    targets = [np.zeros(length, np.float32) for _ in range(count)]
    batches = [sources[i : i + m] for i in range(0, count - m + 1, m)]
    turns = 64 // mebibytes if hot else 1

    def copies() -> None:
        for _ in range(turns):
            for i in range(len(batches) * m):
                np.copyto(targets[i], sources[i])

    def sums() -> None:
        for _ in range(turns):
            for i, batch in enumerate(batches):
                combine(batch, None, targets[i])

    copying, adding = interleaved(9, copies, sums)
    allowed = [seconds / (len(batches) * m) * len(batches) * (m + 1) / 2 for seconds in copying]
    moved = turns * len(batches) * (m + 1) * length * 4
    return {
        "vectors": m,
        "mebibytes": mebibytes,
        "in_cache": hot,
        "of_memory_speed": round(ratio(allowed, adding), 3),
        "gigabytes_per_second": round(moved / statistics.median(adding) / 1e9, 1),
    }


def planning_time(depth: int) -> dict[str, Any]:
    """Laying a plan over 10 + ... + 10^depth workers and asking for one node's work."""
    tree = Tree.regular(fanout=10, depth=depth)
    seconds = []
    for node in np.random.default_rng(depth).integers(1, tree.workers + 1, 21).tolist():
        begin = time.perf_counter()
        plan = CodedReduce(tree, 1).plan(samples=100 * tree.workers)
        for unit in plan.units(node):
            plan.needs(node, unit.task)
        seconds.append(time.perf_counter() - begin)
    return {"workers": tree.workers, "milliseconds": round(1000 * statistics.median(seconds), 3)}


def rounding_growth(n: int, s: int) -> dict[str, Any]:
    """How far the worst tolerated set lets rounding errors grow: our cyclic codes, and random ones of three seeds."""

    def growth(seed: int | None) -> float | str:
        try:
            return round(cyclic(n, s, seed=seed).amplification(), 1)
        except CodeError:
            return "refused"

    return {"n": n, "s": s, "chosen": growth(None), "random": [growth(seed) for seed in range(3)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    print("combine: share of the speed memory allows for reading m vectors and writing one")
    speeds = []
    for mebibytes, hot in ((1, False), (64, False), (1, True)):
        for m in (2, 4, 8, 16):
            speeds.append(speed := combine_speed(m, mebibytes, hot=hot))
            where = "in the cache" if hot else "from memory"
            print(
                f"  {m:2} vectors of {mebibytes:2} MiB {where:12}  {speed['of_memory_speed']:5.0%}  "
                f"{speed['gigabytes_per_second']:5.1f} GB/s"
            )

    print("one node's work in a plan, its units listed")
    plans = [planning_time(depth) for depth in (3, 4, 5, 6)]
    for plan in plans:
        print(f"  {plan['workers']:9,} workers  {plan['milliseconds']:7.3f} ms")

    print("cyclic codes: growth of rounding errors, chosen frequencies against random draws (best of 32, three seeds)")
    growths = [rounding_growth(n, s) for n, s in ((5, 1), (12, 2), (12, 3), (16, 4), (30, 5), (32, 5))]
    for growth in growths:
        print(f"  n={growth['n']:2} s={growth['s']}  {growth['chosen']:7}  {growth['random']}")
    save(options.out, {"combine": speeds, "plan": plans, "cyclic": growths})


if __name__ == "__main__":
    main()
