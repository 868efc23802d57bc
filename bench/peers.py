"""Peers to compare with: torch.distributed over Gloo and MPI, as programs that print milliseconds of one all-reduce.

python -m bench.peers gloo RANK SIZE PORT LENGTH REPEATS
mpiexec -n SIZE python -m bench.peers mpi LENGTH REPEATS
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from codedreduce.process.addresses import free_port


def gloo(rank: int, size: int, port: int, length: int, repeats: int) -> list[float]:
    """All-reduce a vector in place over Gloo; milliseconds of each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=size)
    vector = torch.ones(length)
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(vector)
        dist.barrier()
        times.append(1000 * (time.perf_counter() - begin))
        vector.fill_(1)
    dist.destroy_process_group()
    return times


def mpi(length: int, repeats: int) -> tuple[int, list[float]]:
    """All-reduce a vector over MPI; this rank and milliseconds of each."""
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    vector, total = np.ones(length, np.float32), np.empty(length, np.float32)
    times = []
    for _ in range(repeats):
        world.Barrier()
        begin = time.perf_counter()
        world.Allreduce(vector, total)
        world.Barrier()
        times.append(1000 * (time.perf_counter() - begin))
    return int(world.rank), times


def run_gloo(size: int, length: int, repeats: int) -> float:
    """Median milliseconds of a Gloo all-reduce between `size` processes."""
    port = free_port()
    command = [sys.executable, "-m", "bench.peers", "gloo"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, *map(str, (rank, size, port, length, repeats))],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    return _median(outputs[0])


def run_mpi(size: int, length: int, repeats: int) -> float:
    """Median milliseconds of an MPI all-reduce between `size` processes."""
    launcher = Path(sys.executable).with_name("mpiexec")
    program = str(launcher) if launcher.exists() else shutil.which("mpiexec") or "mpiexec"
    command = [program, "-n", str(size), sys.executable, "-m", "bench.peers", "mpi", str(length), str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return _median(
        subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment).stdout
    )


def _median(output: str) -> float:
    return float(np.median([float(word) for word in output.split()]))


def main() -> None:
    kind, *numbers = sys.argv[1:]
    values = [int(number) for number in numbers]
    if kind == "gloo":
        rank, size, port, length, repeats = values
        times = gloo(rank, size, port, length, repeats)
    else:
        rank, times = mpi(*values)
    if rank == 0:
        print(*times)


if __name__ == "__main__":
    main()
