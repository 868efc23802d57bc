"""Peers in the same lab: torch.distributed over Gloo, and MPI over TCP. The same model, data and injected delays.

Ranks are workers 1..N; each computes its part of the batch, all-reduces the gradient and takes the step. Gloo's ranks
are forked from one process that has everything loaded; MPI's are started by mpiexec, and move to their nodes before
they load MPI.

mpiexec -n N python -m bench.paper.peers EXPERIMENT LAB DELAYS ROUNDS FOLDER
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.paper.experiments import EXPERIMENTS, WARM_UP, Experiment, delay_model
from bench.paper.measured import summed_up
from codedreduce.lab import Lab
from codedreduce.process.processes import die_with_parent
from codedreduce.run.configuration import Configuration
from codedreduce.run.injected_delays import DelayInjector
from codedreduce.schemes import RingAllReduce
from codedreduce.training.data import Arrays
from codedreduce.training.gradient import BatchGradient
from codedreduce.training.loop import Job
from codedreduce.training.optimizers import SGD

Array = np.ndarray[Any, np.dtype[np.float32]]

#: Seconds a peer may take beyond what its rounds should.
PATIENCE = 300.0


class Rank:
    """What one rank of a peer does in a round, but for the all-reduce."""

    def __init__(self, experiment: Experiment, data: Arrays, rank: int, delays: str) -> None:
        self.job = Job(
            objective=experiment.objective, source=data, scheme=RingAllReduce(experiment.workers), rounds=1,
            optimizer=SGD(experiment.learning_rate), configuration=Configuration(inject=delay_model(delays)),
            compute=experiment.compute(delays),
        )  # fmt: skip
        plan = self.job.scheme.plan(samples=self.job.samples)
        (self._unit,) = plan.units(rank + 1)
        self._gradient = BatchGradient(self.job.objective, data, plan, batch=None, seed=0)
        injection = self.job.injection()
        self._injector = None if injection is None else DelayInjector(injection, rank)
        self._node = rank + 1
        self.model = self.job.model()
        self.vector = np.empty(len(self.model) + 1, dtype=np.float32)

    def compute(self, round_: int) -> None:
        """Write this rank's gradient into `vector`, as late as the condition makes it."""
        never = threading.Event()
        if self._injector is not None:
            self._injector.before(round_, time.monotonic(), never)
        begin = time.monotonic()
        (piece,) = self._unit.pieces
        self._gradient(piece, self.model, round_, self.vector, self._node)
        if self._injector is not None:
            samples = sum(len(part) for part in piece)
            self._injector.after(round_, samples, time.monotonic() - begin, never)

    def step(self) -> None:
        """Apply the sum that `vector` now is."""
        mean = self.vector / np.float32(self.job.samples)
        self.job.optimizer.step(self.model, mean[:-1])

    def run(self, rounds: int, all_reduce: Callable[[Array], None]) -> list[float]:
        """All rounds; the seconds of each."""
        seconds = []
        for round_ in range(1, rounds + WARM_UP + 1):
            begin = time.monotonic()
            self.compute(round_)
            all_reduce(self.vector)
            self.step()
            seconds.append(time.monotonic() - begin)
        return seconds


def run_gloo(experiment: Experiment, data: Arrays, lab: Lab, delays: str, rounds: int, truth: Array) -> dict[str, Any]:
    """Gloo in forked ranks."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # or every rank says that addresses of the lab have no names
    import torch  # noqa: F401  loaded once, inherited by all ranks

    with tempfile.NamedTemporaryFile() as file:
        ranks = []
        for rank in range(experiment.workers):
            process = os.fork()
            if not process:
                _gloo_rank(experiment, data, lab, rank, (delays, rounds), file.name)
            ranks.append(process)
        _wait(ranks, PATIENCE + 60 * rounds)
        return _result("Gloo all_reduce", Path(file.name), experiment, truth)


def _gloo_rank(experiment: Experiment, data: Arrays, lab: Lab, rank: int, condition: tuple[str, int], out: str) -> None:
    code = 1
    try:
        die_with_parent()
        lab.enter(rank + 1)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        where = f"tcp://{lab.address(1)}:29500"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=experiment.workers)
        delays, rounds = condition
        mine = Rank(experiment, data, rank, delays)
        seconds = mine.run(rounds, lambda vector: dist.all_reduce(torch.from_numpy(vector)))
        if rank == 0:
            _save(out, seconds, mine.model)
        dist.barrier()
        code = 0
    except BaseException as error:
        print(f"Gloo rank {rank}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _wait(ranks: list[int], within: float) -> None:
    """Wait for forked ranks; when one fails, or time is up, end them all."""
    deadline = time.monotonic() + within
    running = set(ranks)
    failed = False
    while running and not failed and time.monotonic() < deadline:
        for rank in list(running):
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                running.discard(rank)
                failed |= status != 0
        time.sleep(0.05)
    for rank in running:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)


def run_mpi(experiment: Experiment, data: Arrays, lab: Lab, delays: str, rounds: int, truth: Array) -> dict[str, Any]:
    """MPICH, its shared memory switched off, over TCP."""
    launcher = Path(sys.executable).with_name("mpiexec")
    program = str(launcher) if launcher.exists() else shutil.which("mpiexec") or "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        x, y, out = Path(folder) / "x.npy", Path(folder) / "y.npy", Path(folder) / "out.npz"
        np.save(x, data.x)
        np.save(y, data.y)
        command = [
            program, "-n", str(experiment.workers), sys.executable, "-m", "bench.paper.peers", experiment.name,
            lab.name, delays, str(rounds), folder,
        ]  # fmt: skip
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1",
            "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "MPIR_CVAR_ENABLE_GPU": "0",
        }  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=PATIENCE + 60 * rounds, check=False
            )
        except subprocess.TimeoutExpired:
            return {"scheme": "MPICH Allreduce", "failed": "did not end"}
        if done.returncode:
            return {"scheme": "MPICH Allreduce", "failed": (done.stderr or done.stdout).strip()[-300:]}
        return _result("MPICH Allreduce", out, experiment, truth)


def _mpi_rank() -> None:
    name, lab, delays, rounds, folder = sys.argv[1:]
    rank = int(os.environ["PMI_RANK"])
    experiment = next(one for one in EXPERIMENTS if one.name == name)
    Lab(lab, experiment.workers + 1).enter(rank + 1)
    from mpi4py import MPI

    data = Arrays(np.load(f"{folder}/x.npy", mmap_mode="r"), np.load(f"{folder}/y.npy"))
    mine = Rank(experiment, data, rank, delays)

    def all_reduce(vector: Array) -> None:
        """Without spinning: ranks share the cores of one machine here."""
        request = MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, vector)
        while not request.Test():
            time.sleep(0.002)

    seconds = mine.run(int(rounds), all_reduce)
    if rank == 0:
        _save(f"{folder}/out.npz", seconds, mine.model)


def _save(path: str, seconds: list[float], model: Array) -> None:
    with open(path, "wb") as file:
        np.savez(file, seconds=np.array(seconds), model=model)


def _result(name: str, path: Path, experiment: Experiment, truth: Array) -> dict[str, Any]:
    if not path.exists() or not path.stat().st_size:
        return {"scheme": name, "failed": "a rank ended without a result"}
    with np.load(path) as archive:
        seconds, model = archive["seconds"][WARM_UP:], archive["model"]
    error = float(np.linalg.norm(model - truth) / np.linalg.norm(truth))
    return {"scheme": name, **summed_up(seconds), "work": 1.0, "exact": error < 1e-4, "max_error": error}


if __name__ == "__main__":
    _mpi_rank()
