"""What a cluster costs and saves: start-up and rounds on Ray beside `codedreduce run`; a lost node beside Ray Train.

python -m bench.clusters [--out bench/results/clusters.json] [--repeats 3]

All raylets are on this machine. Rounds: 20 ranks in stripes, 0.1 s of computing each, on one node of Ray's (memory is
shared, as under `codedreduce run`) and on four (TCP, encrypted). Start-up is from the command to the end of round 1; a
round is the median of those after the 10th, at rank 0. Beside them, the same processes without Ray: as `codedreduce
run` starts them, and by TCP, as if they were on several machines. All take turns; figures are medians of repeats.

A lost node: 4 ranks on nodes of their own, 0.2 s of computing, one node to spare; a node is taken away (its raylet is
killed) when step 25 is over. Ray Train runs a TorchTrainer with Gloo and DistributedDataParallel, max_failures=3, and a
checkpoint every 10 steps, as its guide on fault tolerance has it; codedreduce has none. Pause: the longest time between
the ends of two steps that had not been before, after the loss. Steps lost: those that were done again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.measure import ratio, save

RANKS, ROUNDS, WARM = 20, 50, 10
COMPUTE, COMPUTE_OF_FEW = 0.1, 0.2
FEW, STEPS, LOST_AFTER, CHECKPOINT_EVERY = 4, 60, 25, 10
STORE = 100_000_000
WITHIN = 180.0
BY_TCP = "--by-tcp"


# -- what ranks run


def diary(folder: Path, rank: int) -> Callable[[int], None]:
    """Writes down when a step was over."""
    lines = (folder / f"steps-{rank}").open("a", buffering=1)
    return lambda step: void(lines.write(f"{step} {time.monotonic():.4f}\n"))


def void(_: object) -> None:
    """A function that writes gives nothing back."""


def training(samples: int) -> tuple[Any, Any, Any]:
    """A model, its data and its optimizer."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(samples, 64)
    data = TensorDataset(x, x[:, :10].argmax(1))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def codedreduce_rank(folder: Path, steps: int, compute: float) -> None:
    """As a user writes it."""
    from torch.nn.functional import cross_entropy

    import codedreduce.torch as cr

    size = int(os.environ["WORLD_SIZE"])
    model, data, optimizer = training(100 * size)
    write = diary(folder, int(os.environ["RANK"]))

    def losses(model: Any, batch: Any) -> Any:
        x, y = batch
        time.sleep(compute * len(y) / 10)
        return cross_entropy(model(x), y, reduction="none")

    with cr.join() as cluster:
        for step in cluster.train(model, data, losses, 10 * size, steps, state=[optimizer]):
            optimizer.step()
            write(step.round)


def ray_train_rank(said: dict[str, Any]) -> None:
    """DistributedDataParallel with checkpoints, as Ray Train's guide has it."""
    import torch
    from ray import train
    from ray.train.torch import prepare_model
    from torch.nn.functional import cross_entropy

    rank = train.get_context().get_world_rank()
    model, data, optimizer = training(100 * FEW)
    write = diary(Path(said["folder"]), rank)
    done = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    wrapped = prepare_model(model)
    for step in range(done + 1, STEPS + 1):
        x, y = data[torch.arange(10 * rank, 10 * rank + 10)]
        optimizer.zero_grad()
        time.sleep(COMPUTE_OF_FEW)
        cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        write(step)
        if step % CHECKPOINT_EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, Path(folder) / "state.pt")
                kept = train.Checkpoint.from_directory(folder) if rank == 0 else None
                train.report({"step": step}, checkpoint=kept)


def ray_train_driver(folder: str, address: str) -> None:
    """What a user of Ray Train runs."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(address=address, log_to_driver=False)
    TorchTrainer(
        ray_train_rank, train_loop_config={"folder": folder}, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=FEW, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=f"{folder}/kept", failure_config=FailureConfig(max_failures=3)),
    ).fit()  # fmt: skip


# -- clusters, commands and what they have written


@contextlib.contextmanager
def cluster(*cores: int) -> Iterator[Any]:
    """Raylets of this machine with so many cores each, as they believe; the first is the head."""
    with tempfile.TemporaryDirectory(prefix="cdr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder, "ray").mkdir()
        os.environ.update(RAY_TMPDIR=folder, RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0")
        from ray.cluster_utils import Cluster

        first, *others = cores
        usual = {"object_store_memory": STORE}
        made = Cluster(initialize_head=True, head_node_args={**usual, "num_cpus": first, "include_dashboard": False})
        try:
            made.others = [made.add_node(**usual, num_cpus=each) for each in others]
            yield made
        finally:
            made.shutdown()


@contextlib.contextmanager
def command(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher, which looks after its processes itself."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=printed, stderr=printed)
        try:
            yield process
        except SystemExit:
            printed.seek(0)
            print(printed.read().decode(errors="replace")[-3000:])
            raise
        finally:
            process.kill()
            process.wait()


def steps_of(folder: Path, rank: int) -> list[tuple[int, float]]:
    """What a rank has written down."""
    path = folder / f"steps-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), float(at)) for step, at in (line.split() for line in lines if line.count(" ") == 1)]


def until(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + WITHIN
    while not happened():
        if process.poll() not in (None, 0) or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} did not come so far")
        time.sleep(0.02)


def by_tcp(folder: str, steps: str, compute: str) -> None:
    """What `codedreduce run` does for processes at an address that is not this machine's alone."""
    from codedreduce.launch.launcher import Launch, launch
    from codedreduce.launch.placement import Placement
    from codedreduce.launch.showing import OnlyFirst
    from codedreduce.process.addresses import own_address
    from codedreduce.process.processes import Processes

    places = Placement(addresses=(own_address("192.0.2.1", 1),) * RANKS, starter=Processes)
    said = {"CODEDREDUCE_TREE": f"{RANKS}x1", "CODEDREDUCE_SCHEME": "striped"}
    words = [sys.executable, "-m", "bench.clusters", "--rank", folder, steps, compute]
    launch(Launch(command=words, count=RANKS, variables=said, placement=places), OnlyFirst(print, print))


def words_for(count: int, folder: Path, steps: int, compute: float, address: str = "") -> list[str]:
    """The command, here or on a cluster."""
    if address == BY_TCP:
        return [sys.executable, "-m", "bench.clusters", BY_TCP, str(folder), str(steps), str(compute)]
    on = ["--on", "ray", "--address", address] if address else []
    script = ["-m", "bench.clusters", "--rank", str(folder), str(steps), str(compute)]
    return [sys.executable, "-m", "codedreduce", "run", "-n", str(count), *on, *script]


# -- the two questions


def rounds(address: str = "") -> tuple[float, float]:
    """Seconds until round 1 was over, and of a round after."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.monotonic()
        with command(words_for(RANKS, folder, ROUNDS, COMPUTE, address)) as process:
            until(lambda: len(steps_of(folder, 0)) == ROUNDS, process)
            process.wait()
        times = [at for _, at in steps_of(folder, 0)]
        each = [after - before for before, after in zip(times[WARM:], times[WARM + 1 :], strict=False)]
        return times[0] - begin, statistics.median(each)


def a_node_is_lost(with_train: bool) -> dict[str, float]:
    """The longest time without a new step after that, and steps that were done again."""
    with tempfile.TemporaryDirectory() as name, cluster(1, 1, 1, 1, 1) as made:
        folder = Path(name)
        words = words_for(FEW, folder, STEPS, COMPUTE_OF_FEW, made.address)
        if with_train:
            words = [sys.executable, "-m", "bench.clusters", "--train", name, made.address]
        with command(words) as process:
            until(lambda: any(step == LOST_AFTER for step, _ in steps_of(folder, 0)), process)
            taken = next(one for one in made.others if has_rank(one, folder))
            lost = time.monotonic()
            made.remove_node(taken, allow_graceful=False)
            until(lambda: steps_of(folder, 0)[-1][0] == STEPS, process)
        written = steps_of(folder, 0)
        new = [at for place, (step, at) in enumerate(written) if all(step > other for other, _ in written[:place])]
        gaps = [(after - before, after) for before, after in pairwise(new)]
        return {
            "pause": max(gap for gap, at in gaps if at > lost), "step": statistics.median(gap for gap, _ in gaps),
            "steps_lost": len(written) - STEPS, "total": written[-1][1] - written[0][1],
        }  # fmt: skip


def has_rank(node: Any, folder: Path) -> bool:
    """Whether a node has a rank other than 0, which writes the diary that is read."""
    import psutil

    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    opened = [file.path for one in raylet.children(recursive=True) for file in one.open_files()]
    return any(path.startswith(f"{folder}/steps-") and not path.endswith("-0") for path in opened)


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        codedreduce_rank(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        return
    if sys.argv[1:2] == [BY_TCP]:
        by_tcp(*sys.argv[2:5])
        return
    if sys.argv[1:2] == ["--train"]:
        ray_train_driver(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with cluster(RANKS) as one, cluster(5, 5, 5, 5) as four:
        sides = {"here": "", "one node": one.address, "here by TCP": BY_TCP, "four nodes": four.address}
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, address in sides.items():
                found[side].append(rounds(address))
                print(f"{side:12} start-up {found[side][-1][0]:6.1f} s, round {found[side][-1][1]:.4f} s", flush=True)
    results: dict[str, Any] = {"ranks": RANKS, "compute": COMPUTE}
    for side, beside in (
        ("here", "here"),
        ("one node", "here"),
        ("here by TCP", "here"),
        ("four nodes", "here by TCP"),
    ):
        ups, each = ([pair[which] for pair in found[side]] for which in (0, 1))
        other_ups, other = ([pair[which] for pair in found[beside]] for which in (0, 1))
        results[side] = {
            "start_up": statistics.median(ups), "round": statistics.median(each), "beside": beside,
            "start_up_over": ratio(ups, other_ups), "round_over": ratio(each, other),
        }  # fmt: skip
        print(side, results[side])
    for name, with_train in (("codedreduce", False), ("Ray Train", True)):
        lost = [a_node_is_lost(with_train) for _ in range(options.repeats)]
        results[f"a node lost, {name}"] = {key: statistics.median(one[key] for one in lost) for key in lost[0]}
        print(name, results[f"a node lost, {name}"], flush=True)
    save(options.out, results)


if __name__ == "__main__":
    main()
