"""What a kill costs: codedreduce, torchft and torchrun's elastic restarts, the same training on the same machine.

python -m bench.recovery [--out bench/results/recovery.json] [--repeats 3]

6 processes, 0.2 s of computing a step each, killed with SIGKILL when step 20 is over: one of the workers, or whoever
coordinates (rank 0 in stripes, the root of a tree, torchft's lighthouse, rank 0 under torchrun). Whatever was killed is
started again at once: by `codedreduce run --restart`, by torchrun's agent, and for torchft, which has no launcher of
its own, by this benchmark. A peer's script does what its documentation shows: torchft takes the next batch after a step
that did not commit; under torchrun all processes begin again from the last checkpoint, written every 10 steps.

Seconds lost: how much longer 60 steps took than calm. Pause: the longest time between two steps after the kill. Samples
lost: those of the 60 batches that went into no step. Of a process that was started again: seconds from the kill until
it has imported all and is about to join (`until_ready`, which is the machine's), and from then until a round ends
anywhere (`until_a_round`) and until it has had one itself (`until_its_own`), which are the run's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.measure import save
from codedreduce.process.addresses import free_port

WORKERS = 6
BATCH = 10 * WORKERS
SAMPLES = 20 * BATCH
COMPUTE = 0.2
STEPS, KILLED_AT, UNLUCKY = 60, 20, 2
CHECKPOINT_EVERY = 10
WITHIN = 180.0

SIDES = ("striped", "tree", "torchft", "torchrun")


class Diary:
    """What a process writes down: its process id, and every step with the samples that went into it."""

    def __init__(self, folder: Path, rank: int) -> None:
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        self._lines = (folder / f"steps-{rank}").open("a", buffering=1)

    def is_ready(self) -> None:
        """All is imported and made; what comes next is to join."""
        self._lines.write(f"ready {time.monotonic():.4f} 0\n")

    def step(self, number: int, samples: int) -> None:
        self._lines.write(f"{number} {time.monotonic():.4f} {samples}\n")


def training() -> tuple[Any, Any, Any]:
    """A model, its data and its optimizer."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 64)
    data = TensorDataset(x, x[:, :10].argmax(1))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def codedreduce_rank(folder: Path) -> None:
    """As a user writes it."""
    from torch.nn.functional import cross_entropy

    import codedreduce.torch as cr

    model, data, optimizer = training()
    diary = Diary(folder, int(os.environ["RANK"]))

    def losses(model: Any, batch: Any) -> Any:
        x, y = batch
        time.sleep(COMPUTE * len(y) * WORKERS / BATCH)
        return cross_entropy(model(x), y, reduction="none")

    diary.is_ready()
    with cr.join() as cluster:
        for step in cluster.train(
            model, data, losses, BATCH, STEPS, state=[optimizer], checkpoint=folder / "checkpoints",
            every=CHECKPOINT_EVERY, resume=True,
        ):  # fmt: skip
            optimizer.step()
            diary.step(step.round, BATCH)


def torchft_rank(folder: Path, rank: int, lighthouse: str) -> None:
    """A replica of its own, as torchft's example has it."""
    import logging
    from datetime import timedelta

    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    logging.disable(logging.CRITICAL)
    model, data, plain = training()
    diary = Diary(folder, rank)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)), load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=WORKERS // 2, timeout=timedelta(seconds=10), rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse, replica_id=f"replica_{rank}",
        hostname="127.0.0.1",
    )  # fmt: skip
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, plain)
    import codedreduce.torch as cr

    mine = BATCH // WORKERS
    attempt = 0
    while manager.current_step() < STEPS:
        attempt = max(attempt + 1, manager.current_step() + 1)
        optimizer.zero_grad()
        before = manager.current_step()
        x, y = data[cr.batch_indices(SAMPLES, BATCH, attempt)[rank * mine : (rank + 1) * mine]]
        time.sleep(COMPUTE)
        cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if manager.current_step() > before:
            diary.step(manager.current_step(), mine * manager.num_participants())
        else:
            diary.step(-attempt, 0)
    manager.shutdown(wait=False)


def torchrun_rank(folder: Path) -> None:
    """DistributedDataParallel with checkpoints, as the tutorial on fault tolerance has it."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import codedreduce.torch as cr

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, data, optimizer = training()
    diary = Diary(folder, rank)
    snapshot = folder / "snapshot.pt"
    done = 0
    if snapshot.exists():
        state = torch.load(snapshot, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    wrapped = DistributedDataParallel(model)
    mine = BATCH // WORKERS
    for step in range(done + 1, STEPS + 1):
        x, y = data[cr.batch_indices(SAMPLES, BATCH, step)[rank * mine : (rank + 1) * mine]]
        optimizer.zero_grad()
        time.sleep(COMPUTE)
        cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        diary.step(step, BATCH)
        if rank == 0 and step % CHECKPOINT_EVERY == 0:
            beside = snapshot.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
            beside.rename(snapshot)


# -- how each is started; each gives a function that keeps it going, and says whether it runs


@contextlib.contextmanager
def command(line: list[str], **variables: str) -> Iterator[Callable[[], bool]]:
    """A launcher that looks after its processes itself."""
    process = subprocess.Popen(
        line, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield lambda: process.poll() is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def torchft(folder: Path) -> Iterator[Callable[[], bool]]:
    """A lighthouse and replicas, started again when they were killed."""
    port = free_port()
    program = Path(sys.executable).with_name("torchft_lighthouse")
    lighthouse = [
        str(program), "--min_replicas", str(WORKERS // 2), "--bind", f"127.0.0.1:{port}", "--join_timeout_ms", "1000",
        "--quorum_tick_ms", "50", "--heartbeat_timeout_ms", "2000",
    ]  # fmt: skip
    lines = [lighthouse] + [
        [sys.executable, "-m", "bench.recovery", "rank", "torchft", str(folder), str(rank), f"http://127.0.0.1:{port}"]
        for rank in range(WORKERS)
    ]

    def start(line: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            line, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    processes = []
    for line in lines:
        processes.append(start(line))
        (folder / "pid-lighthouse").write_text(str(processes[0].pid))

    def keep_going() -> bool:
        for place, process in enumerate(processes):
            if process.poll() is not None and process.returncode:
                processes[place] = start(lines[place])
        return any(process.poll() is None for process in processes[1:])

    try:
        yield keep_going
    finally:
        for process in processes:
            process.kill()
            process.wait()


def started(side: str, folder: Path) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    script = [str(Path(__file__)), "rank", side, str(folder)]
    here = {"PYTHONPATH": f"{Path(__file__).parent.parent}:{os.environ.get('PYTHONPATH', '')}"}
    run = [sys.executable, "-m", "codedreduce", "run", "--restart"]
    if side == "striped":
        return command([*run, "-n", str(WORKERS), *script], **here)
    if side == "tree":
        return command([*run, "--tree", "2x2", *script], **here)
    if side == "torchrun":
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(WORKERS)]
        return command([*torchrun, "--standalone", "--max-restarts", "5", *script], **here)
    return torchft(folder)


def killed_process(side: str, what: str, folder: Path) -> int:
    """The process id of whom to kill."""
    return int((folder / f"pid-{killed_name(side, what)}").read_text())


def killed_name(side: str, what: str) -> str:
    """Who is killed."""
    return {"worker": str(UNLUCKY), "coordinator": "lighthouse" if side == "torchft" else "0"}[what]


def read_steps(folder: Path) -> list[tuple[int, float, int]]:
    found = []
    for path in folder.glob("steps-*"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                step, at, samples = line.split()
                found.append((int(step), float(at), int(samples)))
    return sorted(found, key=lambda one: one[1])


def one(side: str, what: str) -> dict[str, Any]:
    """A training of 60 steps with a kill, or calm."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        killed_at = None
        with started(side, folder) as keep_going:
            begin = time.monotonic()
            while True:
                running = keep_going()
                found = read_steps(folder)
                reached = max((step for step, _, _ in found), default=0)
                if what != "calm" and killed_at is None and reached >= KILLED_AT:
                    os.kill(killed_process(side, what, folder), signal.SIGKILL)
                    killed_at = time.monotonic()
                if reached >= STEPS or not running or time.monotonic() > begin + WITHIN:
                    break
                time.sleep(0.01)
            again = read_again(folder, killed_name(side, what), killed_at) if killed_at is not None else {}
    return {**_measured(found, killed_at, reached), **again}


def read_again(folder: Path, name: str, killed_at: float) -> dict[str, float]:
    """Of a process that was killed: how soon another of it was ready, and how soon rounds ended then."""
    path = folder / f"steps-{name}"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    ready = [float(at) for word, at, _ in lines if word == "ready" and float(at) > killed_at]
    if not ready:
        return {}
    own = [float(at) for word, at, _ in lines if word != "ready" and float(at) > ready[0]]
    ends = [at for _, at, _ in read_steps(folder) if at > ready[0]]
    found = {"until_ready": ready[0] - killed_at}
    found |= {"until_a_round": min(ends) - ready[0]} if ends else {}
    return found | ({"until_its_own": min(own) - ready[0]} if own else {})


def _measured(found: list[tuple[int, float, int]], killed_at: float | None, reached: int) -> dict[str, Any]:
    first: dict[int, float] = {}
    samples: dict[int, int] = {}
    for step, at, count in found:
        if step > 0:
            first.setdefault(step, at)
            samples[step] = max(samples.get(step, 0), count)
    times = [first[step] for step in sorted(first)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    after = [b - a for a, b in itertools.pairwise(times) if killed_at is not None and b > killed_at]
    not_committed = len({step for step, _, _ in found if step < 0})
    lost = sum(BATCH - count for count in samples.values()) + BATCH * not_committed
    done_again = sum(1 for step, _, _ in found if step > 0) // WORKERS - len(first) if found else 0
    return {
        "reached": reached, "seconds": times[-1] - times[0] if times else None,
        "median_step": statistics.median(gaps) if gaps else None, "pause": max(after, default=None),
        "samples_lost": lost, "steps_done_again": max(0, done_again),
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        side, folder, rest = sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
        if side == "torchft":
            torchft_rank(folder, int(rest[0]), rest[1])
        elif side == "torchrun":
            torchrun_rank(folder)
        else:
            codedreduce_rank(folder)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        for side in options.sides:
            for what in ("calm", "worker", "coordinator"):
                row = {"side": side, "killed": what, "repeat": repeat, **one(side, what)}
                rows.append(row)
                print(row, flush=True)
                save(options.out, {"recovery": rows}, quietly=True)
    for side in options.sides:
        calm = [row["seconds"] for row in rows if row["side"] == side and row["killed"] == "calm"]
        for what in ("worker", "coordinator"):
            mine = [row for row in rows if row["side"] == side and row["killed"] == what]
            lost = [row["seconds"] - statistics.median(calm) for row in mine if row["reached"] >= STEPS]
            ended = f"{len(lost)} of {len(mine)} finished"
            print(
                f"{side:9} {what:12} {ended}"
                + (f", {statistics.median(lost):.1f} s lost" if lost else "")
                + f", longest pause {max(row['pause'] or 0.0 for row in mine):.1f} s"
                + f", {statistics.median(row['samples_lost'] for row in mine):.0f} samples lost"
                + "".join(
                    f", {statistics.median(row[part] for row in mine if part in row):.2f} s {part.replace('_', ' ')}"
                    for part in ("until_ready", "until_a_round", "until_its_own")
                    if any(part in row for row in mine)
                )
            )


if __name__ == "__main__":
    main()
