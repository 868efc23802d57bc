"""torchft in the comparison: replicas of one rank each over Gloo on the CPU, with a lighthouse.

torchft tolerates lost replicas by leaving them out of the next step; a slow one is waited for until a timeout.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from codedreduce.worlds.addresses import free_port
from codedreduce.worlds.delays import parse_delays
from codedreduce.worlds.inject import Injection, Injector

#: Seconds torchft waits for a collective; longer than any stall here, as one would set it.
TIMEOUT = 60


def available() -> bool:
    """Whether torchft is installed."""
    try:
        import torchft  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def lighthouse(replicas: int) -> Iterator[str]:
    """The process that replicas form a quorum with; its address."""
    port = free_port()
    program = Path(sys.executable).with_name("torchft_lighthouse")
    command = [
        str(program), "--min_replicas", str(replicas - 1), "--bind", f"127.0.0.1:{port}", "--join_timeout_ms", "1000",
        "--quorum_tick_ms", "50", "--heartbeat_timeout_ms", "2000",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def torchft_rank(
    model: nn.Module,
    loss_of: Callable[[nn.Module, int, int, int], torch.Tensor],
    *,
    replicas: int,
    steps: int,
    delays: str,
    killed: tuple[int, int] | None,
    write: Callable[[list[tuple[float, float]]], None],
) -> None:
    """One replica. `killed`: a replica and the step at which it ends; a step that did not commit is logged as lost."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it tells of every quorum
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    dist.TCPStore(  # type: ignore[attr-defined]  # all are here before the first quorum is formed
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), replicas, is_master=rank == 0, wait_for_workers=True
    )
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=TIMEOUT)), load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=replicas - 1, timeout=timedelta(seconds=TIMEOUT), rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        replica_id=f"replica_{rank}", hostname="127.0.0.1", init_sync=False,
    )  # fmt: skip
    wrapped = DistributedDataParallel(manager, model)
    optimizer: Any = Optimizer(manager, plain)
    injector = Injector(Injection(delays=parse_delays(delays, workers=replicas, unit=0.05, seed=0)), rank)
    never = threading.Event()
    begin, log = None, []
    for attempt in range(1, steps + 1):
        optimizer.zero_grad()
        injector.before(attempt, time.monotonic(), never)
        if killed is not None and rank + 1 == killed[0] and attempt == killed[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        before = manager.current_step()
        loss = loss_of(wrapped, attempt, rank, replicas)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        begin = begin or time.monotonic()
        committed = manager.current_step() > before
        log.append((time.monotonic() - begin, loss.item() if committed else float("nan")))
        if rank == 0:
            write(log)
    manager.shutdown(wait=False)
