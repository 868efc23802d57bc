"""Runs a function as every rank of a run, in processes forked from this one, which has everything loaded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from codedreduce.worlds.local import die_with_parent
from codedreduce.worlds.zeromq.arena import remove_arenas
from codedreduce.worlds.zeromq.node import free_port


class Outcome(NamedTuple):
    """How each rank ended: its exit code (None: it had to be ended), and what it raised."""

    codes: dict[int, int | None]
    errors: dict[int, str]


def run_forked(
    function: Callable[[], object], size: int, settings: Mapping[str, str] | None = None, *, patience: float = 120.0
) -> Outcome:
    """Call a function in `size` processes, each with the environment that a launcher would give it; wait for all."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    shared = {
        "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1",
        "CODEDREDUCE_RUN": run, **(settings or {}),
    }  # fmt: skip
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(function, {**shared, "RANK": str(rank)}, folder), daemon=True)
            for rank in range(size)
        ]
        deadline = time.monotonic() + patience
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(timeout=max(0.0, deadline - time.monotonic()))
            codes = {rank: process.exitcode for rank, process in enumerate(ranks)}
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()
            remove_arenas(run)
        errors = {rank: path.read_text() for rank in codes if (path := Path(folder) / str(rank)).exists()}
    return Outcome(codes, errors)


def _rank(function: Callable[[], object], environment: Mapping[str, str], folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    os.environ.update(environment)
    try:
        function()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        (Path(folder) / environment["RANK"]).write_text(text)
        os._exit(1)
    os._exit(0)
