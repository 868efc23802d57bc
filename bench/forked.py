"""Runs a function as every rank of a run, in processes forked from this one, which has everything loaded.

For benchmarks and tests of what scripts do: each process has the environment that a launcher would give it.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from codedreduce.process.addresses import free_port
from codedreduce.process.nursery import Nursery


class Outcome(NamedTuple):
    """How each rank ended: its exit code (None: it had to be ended), and what it raised."""

    codes: dict[int, int | None]
    errors: dict[int, str]


def run_forked(
    function: Callable[[], object], size: int, variables: Mapping[str, str] | None = None, *, within: float = 120.0
) -> Outcome:
    """Call a function in `size` processes; wait for all, and end those that take longer."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    shared = {
        "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1",
        "CODEDREDUCE_RUN": run, **(variables or {}),
    }  # fmt: skip
    codes: dict[int, int | None] = dict.fromkeys(range(size))
    with tempfile.TemporaryDirectory() as folder:
        processes = Nursery(lambda rank: _rank(function, {**shared, "RANK": str(rank)}, folder))
        try:
            for rank in range(size):
                processes.start(rank)
            deadline = time.monotonic() + within
            while None in codes.values() and time.monotonic() < deadline:
                codes.update(processes.newly_ended())
                time.sleep(0.005)
        finally:
            processes.end(0.0)
        errors = {rank: path.read_text() for rank in codes if (path := Path(folder) / str(rank)).exists()}
    return Outcome(codes, errors)


def _rank(function: Callable[[], object], environment: Mapping[str, str], folder: str) -> None:
    os.environ.update(environment)
    try:
        function()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        (Path(folder) / environment["RANK"]).write_text(text)
        raise
