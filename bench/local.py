"""What the local world costs and what coding buys there: real processes on this machine.

python -m bench.local [aggregation|stalls|overhead|memory|resident ...] [--out FILE.json]

What a file has of other parts stays in it.

Needs the extra `bench` for the peers: pip install 'codedreduce[bench]'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from bench.measure import ratio, save
from bench.peers import run_gloo, run_mpi
from codedreduce import CodedReduce, MasterWorker, RingAllReduce, Scheme, Striped, Tree
from codedreduce.memory.arena import arenas_of
from codedreduce.node.local import LocalCluster, new_meeting
from codedreduce.protocol import Settings
from codedreduce.run.agreement import Run
from codedreduce.run.configuration import Configuration
from codedreduce.run.tuning import LOCAL_CHUNK
from codedreduce.run.world import Gradient, World
from codedreduce.schemes import Piece
from codedreduce.training import SGD, LogisticRegression, synthetic
from codedreduce.training.loop import Job, run_job

Vector = npt.NDArray[np.float32]

#: Rounds that are not measured: memory is touched for the first time in them.
WARM = 8

EIGHT = CodedReduce(Tree.regular(fanout=8, depth=1), 1)
TWENTY = Tree.regular(fanout=4, depth=2)


class Ready:
    """A gradient that is there already: written into each slot once, so that only aggregation is measured.

    Memory of a node's own is no slot, and writing a fresh vector there is measured with the rest.
    """

    def __init__(self) -> None:
        self._written: set[int] = set()

    def __call__(self, piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> None:
        address = out.__array_interface__["data"][0]
        if out.flags.owndata:
            out[:] = 1
        elif address not in self._written:
            self._written.add(address)
            out[:] = 1


def world(
    scheme: Scheme, gradient: Gradient, model: Vector, rounds: int, *, shared_memory: bool = True
) -> LocalCluster:
    """Processes of this machine, as `train` has them, in which nobody counts as late who is so by less than 0.5 s."""
    plan = scheme.plan(samples=scheme.workers)
    run = Run.of(new_meeting(shared_memory=shared_memory), plan, len(model))
    settings = replace(run.settings, least_head_start=0.5, announce=False)
    if not isinstance(scheme, Striped):
        settings = replace(settings, chunk=LOCAL_CHUNK if shared_memory else 1 << 18, window=4)

    def member(rank: World) -> None:
        reached = 0
        while reached < rounds:
            reached = rank.aggregate(model).round

    return LocalCluster(
        replace(run, settings=settings), gradient, member=member if isinstance(scheme, Striped) else None
    )  # fmt: skip


def aggregate_ms(scheme: Scheme, length: int, repeats: int, *, shared_memory: bool = True) -> float:
    """Median milliseconds of a round with nothing to compute; in stripes every rank ends it with a copy of the sum."""
    model = np.ones(length, np.float32)
    with world(scheme, Ready(), model, WARM + repeats, shared_memory=shared_memory) as cluster:
        for _ in range(WARM):
            cluster.sum_of(model)
        times = []
        for _ in range(repeats):
            result = cluster.sum_of(model)
            assert (result.vector[:: max(1, length // 1000)] == scheme.workers).all()
            times.append(1000 * result.seconds)
    return statistics.median(times)


def aggregation(turns: int = 5) -> list[dict[str, Any]]:
    """Nobody late, all nodes with the new model: against Gloo and MPI."""
    rows = []
    for length, repeats in ((5000, 100), (4_000_000, 8), (16_000_000, 5)):
        names = ("shared_memory", "striped", "sockets", "gloo", "mpich")
        runs: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(turns):
            runs["shared_memory"].append(aggregate_ms(EIGHT, length, repeats))
            runs["striped"].append(aggregate_ms(Striped(8), length, repeats))
            runs["gloo"].append(run_gloo(8, length, repeats))
            runs["mpich"].append(run_mpi(8, length, repeats))
            runs["sockets"].append(aggregate_ms(EIGHT, length, repeats, shared_memory=False))
        row: dict[str, Any] = {"length": length, **{name: statistics.median(times) for name, times in runs.items()}}
        for peer in ("gloo", "mpich"):
            row[f"over_{peer}"] = ratio(runs["shared_memory"], runs[peer])
        for peer in ("gloo", "mpich", "shared_memory"):
            row[f"striped_over_{peer}"] = ratio(runs["striped"], runs[peer])
        rows.append(row)
        print(
            f"  {length:10,} float32, 8 workers: {row['shared_memory']:8.2f} ms ({row['sockets']:.2f} by sockets), "
            f"Gloo {row['gloo']:.2f}, MPICH {row['mpich']:.2f}; "
            f"ratio {row['over_gloo']:.2f} to Gloo, {row['over_mpich']:.2f} to MPICH; "
            f"stripes {row['striped']:.2f} ms, ratio {row['striped_over_shared_memory']:.2f} to the tree, "
            f"{row['striped_over_gloo']:.2f} to Gloo, {row['striped_over_mpich']:.2f} to MPICH",
            flush=True,
        )
    return rows


def mean_round(scheme: Scheme, delays: str, rounds: int = 12) -> float:
    """Mean seconds of a round of 20 workers whose batch takes 4 s on one of them, the first round left out."""
    job = Job(
        objective=LogisticRegression(), source=synthetic(2000, 500), scheme=scheme, rounds=rounds, optimizer=SGD(0.5),
        configuration=Configuration(inject=delays), compute=4.0,
    )  # fmt: skip
    history = run_job(job).history
    return statistics.fmean(log.seconds for log in history[1:])


def stalls() -> list[dict[str, Any]]:
    """One of 20 workers stalls 1 s in every round, a different one each time."""
    schemes: dict[str, Scheme] = {
        "master-worker": MasterWorker(20),
        "ring": RingAllReduce(20),
        "eager": CodedReduce(TWENTY, 1, order="eager"),
        "progressive": CodedReduce(TWENTY, 1),
    }
    times: dict[str, dict[str, list[float]]] = {name: {"calm": [], "one:1s": []} for name in schemes}
    for _ in range(3):
        for name, scheme in schemes.items():
            for delays, log in times[name].items():
                log.append(mean_round(scheme, delays))
    rows = []
    unit = 4.0 / 20
    for name, found in times.items():
        calm, late = (statistics.median(found[key]) for key in ("calm", "one:1s"))
        rows.append(
            {"scheme": name, "calm": calm, "stalled": late, "ratio": late / calm, "more_shares": (late - calm) / unit}
        )
        shares = (late - calm) / unit
        print(f"  {name:14} calm {calm:.3f} s, one stalls {late:.3f} s: {late / calm:.2f}x, {shares:+.2f} shares")
    pairs = zip(times["progressive"]["calm"], times["master-worker"]["calm"], strict=True)
    over = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f"  progressive over master-worker, calm: {over:.3f}")
    rows.append({"progressive_over_master_worker_calm": over})
    return rows


def overhead() -> dict[str, Any]:
    """A round of 20 workers with next to nothing to compute, and how long 84 take to come up."""

    def nothing(piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> None:
        out[:] = 1

    rounds = {}
    for length, repeats in ((5000, 400), (262_144, 100), (4_000_000, 15)):
        found = []
        for _ in range(3):
            settings = Settings(length=length, chunk=LOCAL_CHUNK, announce=False, least_head_start=0.5)
            with LocalCluster.of(CodedReduce(TWENTY, 1).plan(samples=20), nothing, settings) as cluster:
                model = np.ones(length, np.float32)
                found.append(1000 * statistics.median(cluster.sum_of(model).seconds for _ in range(repeats)))
        rounds[str(length)] = statistics.median(found)
        print(f"  20 workers (4x2), {length:9,} float32: {rounds[str(length)]:.2f} ms a round")
    begin = time.perf_counter()
    plan = CodedReduce(Tree.regular(fanout=4, depth=3), 1).plan(samples=84)
    with LocalCluster.of(plan, nothing, Settings(length=5000)) as cluster:
        cluster.sum_of(np.ones(5000, np.float32))
        up = time.perf_counter() - begin
    print(f"  84 workers up and through the first round: {up:.2f} s")
    return {"round_milliseconds": rounds, "start_up_seconds_84": up}


def memory() -> dict[str, Any]:
    """What processes hold at 4 million parameters, and whether 10,000 rounds change it."""

    def nothing(piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> None:
        out[:] = 1

    plan = CodedReduce(TWENTY, 1).plan(samples=20)
    length = 4_000_000
    with LocalCluster.of(plan, nothing, Settings(length=length, chunk=1 << 18), shared_memory=False) as cluster:
        pids = [psutil.Process(), *(psutil.Process(cluster.processes[node]) for node in (1, 5))]
        before = [process.memory_info().rss for process in pids]
        for _ in range(12):
            cluster.sum_of(np.ones(length, np.float32))
        held = [(process.memory_info().rss - old) / (4 * length) for process, old in zip(pids, before, strict=True)]
    print(f"  vectors held: root {held[0]:.1f}, inner worker {held[1]:.1f} (4 children), leaf {held[2]:.1f}")
    with LocalCluster.of(plan, nothing, Settings(length=5000, least_head_start=0.5)) as cluster:
        pids = [psutil.Process(), *map(psutil.Process, cluster.processes.values())]
        model = np.ones(5000, np.float32)
        for _ in range(1000):
            cluster.sum_of(model)
        before = [process.memory_info().rss for process in pids]
        for _ in range(10_000):
            cluster.sum_of(model)
        growth = max(process.memory_info().rss - old for process, old in zip(pids, before, strict=True))
    print(f"  most any process grew over 10,000 rounds: {growth / 1e3:.0f} kB")
    return {"vectors": {"root": held[0], "inner": held[1], "leaf": held[2]}, "growth_bytes": growth}


def resident() -> dict[str, Any]:
    """What a rank of 8 has resident after some rounds of stripes with 4 million float32, in vectors."""
    length, rounds = 4_000_000, 12
    model = np.ones(length, np.float32)

    def nothing(piece: Piece, model: Vector, round_: int, out: Vector, node: int) -> None:
        out[:] = 1

    found: dict[str, Any] = {}
    for name, shared in (("shared", True), ("sockets", False)):
        with world(Striped(8), nothing, model, rounds + 1, shared_memory=shared) as cluster:
            pids = [os.getpid(), *cluster.processes.values()]
            begun = np.array([_anonymous_and_all(pid) for pid in pids])
            for _ in range(rounds):
                cluster.sum_of(model)
            time.sleep(0.5)  # others are behind rank 0 by what a round takes
            held = (np.array([_anonymous_and_all(pid) for pid in pids]) - begun) / (4 * length)
            kept = sum(arenas_of(f"{cluster.run.meeting.run}-").values())
            cluster.sum_of(model)
        found[name] = {
            "own": [float(one) for one in held[:, 0]], "resident": [float(one) for one in held[:, 1]],
            "proportional": [float(one) for one in held[:, 2]], "shared_by_all": kept / (4 * length),
        }  # fmt: skip
        print(
            f"  {name}: a rank's own {held[:, 0].min():.1f} to {held[:, 0].max():.1f} vectors, resident "
            f"{held[:, 1].min():.1f} to {held[:, 1].max():.1f}, its part of what is shared counted once "
            f"{held[:, 2].min():.1f} to {held[:, 2].max():.1f}; shared memory in all {kept / (4 * length):.1f}"
        )
    return found


def _anonymous_and_all(process: int) -> tuple[int, int, int]:
    """Bytes of a process: of its own, resident, and resident with shared pages divided among those that share them."""
    fields = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name] = 1024 * int(value)
    return fields["Anonymous:"], fields["Rss:"], fields["Pss:"]


PARTS = {
    "aggregation": aggregation, "stalls": stalls, "overhead": overhead, "memory": memory, "resident": resident,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all without")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.out is not None and options.out.exists():
        results = json.loads(options.out.read_text())
        results.pop("machine", None)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    for name in options.parts or PARTS:
        print(name, flush=True)
        results[name] = PARTS[name]()
        save(options.out, results)


if __name__ == "__main__":
    main()
