"""torchft in the comparison: replicas of one rank each over Gloo on the CPU, with a lighthouse.

torchft tolerates lost replicas by leaving them out of the next step; a slow one is waited for until a timeout.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from codedreduce.process.addresses import free_port

#: Seconds torchft waits for a collective; longer than any stall here, as one would set it.
TIMEOUT = 60

#: A lighthouse at an address, for at least so many replicas, that says when it is up.
SERVE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind=sys.argv[1], min_replicas=int(sys.argv[2]), join_timeout_ms=1000, quorum_tick_ms=50, heartbeat_timeout_ms=2000
)
print("up", flush=True)
time.sleep(3600)
"""


@contextmanager
def lighthouse(replicas: int, host: str, enter: Callable[[], None] | None = None) -> Iterator[str]:
    """The process that replicas form a quorum with; its address. `enter` moves it to a host."""
    port = free_port()
    command = [sys.executable, "-c", SERVE, f"{host}:{port}", str(replicas - 1)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=enter, text=True
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "up\n":
                raise SystemExit("torchft's lighthouse did not start; is torchft installed?")
            yield f"http://{host}:{port}"
        finally:
            process.kill()


def train(
    model: Any,
    plain: Any,
    loss_of: Callable[[Any], Any],
    *,
    replicas: int,
    steps: int,
    host: str,
    connected: Callable[[], None],
    over: Callable[[bool], None],
) -> None:
    """One replica, as torchft's own example has it; `over` is told whether a step was committed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    logging.disable(logging.INFO)
    rank = int(os.environ["RANK"])
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=TIMEOUT)), load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=replicas - 1, timeout=timedelta(seconds=TIMEOUT), rank=0, world_size=1,
        store_addr=host, store_port=store.port, lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        replica_id=f"replica_{rank}", hostname=host, init_sync=False,
    )  # fmt: skip
    wrapped = DistributedDataParallel(manager, model)
    optimizer: Any = Optimizer(manager, plain)
    TCPStore(  # before the first quorum the lighthouse knows all, or it would begin with those that it knows
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), replicas, is_master=rank == 0, wait_for_workers=True
    )
    connected()
    for _ in range(steps):
        optimizer.zero_grad()
        before = manager.current_step()
        loss_of(wrapped).backward()
        optimizer.step()
        over(manager.current_step() > before)
    manager.shutdown(wait=False)
