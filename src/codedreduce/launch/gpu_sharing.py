"""One GPU for several processes: with NVIDIA's MPS they compute on it at the same time; without it they take turns.

A launcher starts MPS for its own processes, in a folder of theirs, and ends it with them. It uses an MPS that already
runs unchanged.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

from codedreduce.process.processes import die_with_parent

#: "0" disables MPS: processes take turns.
SAID = "CODEDREDUCE_MPS"

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
RUNNING = "/tmp/nvidia-mps/control"
DEVICES = "/dev/nvidia[0-9]*"

#: Timeout for an answer of the daemon, in seconds.
PATIENCE = 10.0


def would_share(processes: int, said: Mapping[str, str]) -> bool:
    """Whether this host has fewer GPUs than processes, and no MPS runs yet."""
    if said.get(SAID) == "0" or PIPES in said or os.path.exists(RUNNING) or shutil.which(CONTROL) is None:
        return False
    there = len(glob.glob(DEVICES))
    if "CUDA_VISIBLE_DEVICES" in said:
        there = min(there, len([one for one in said["CUDA_VISIBLE_DEVICES"].split(",") if one.strip()]))
    return 0 < there < processes


@contextlib.contextmanager
def sharing_gpus(processes: int, said: Mapping[str, str], note: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Start MPS if the processes have to share GPUs; yield the environment variables that they need for it."""
    if not would_share(processes, said):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="codedreduce-mps-", ignore_cleanup_errors=True) as folder:
        told = {PIPES: folder, LOGS: folder}
        parent = os.getpid()
        daemon = subprocess.Popen(
            [CONTROL, "-f"], env={**said, **told}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: die_with_parent(parent),
        )  # fmt: skip
        try:
            is_there = _has_come(daemon, {**said, **told})
            if not is_there:
                note(f"(processes take turns on the GPU: {CONTROL} does not answer)")
            yield told if is_there else {}
        finally:
            _ask("quit", {**said, **told})
            _end(daemon)


def _has_come(daemon: subprocess.Popen[bytes], environment: Mapping[str, str]) -> bool:
    """Wait until the daemon answers."""
    deadline = time.monotonic() + PATIENCE
    while daemon.poll() is None and time.monotonic() < deadline:
        if _ask("get_default_active_thread_percentage", environment) is not None:
            return True
        time.sleep(0.1)
    return False


def _ask(what: str, environment: Mapping[str, str]) -> str | None:
    """Send the daemon a command; return its answer, or None without one."""
    try:
        done = subprocess.run(
            [CONTROL], input=f"{what}\n", text=True, capture_output=True, timeout=PATIENCE, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _end(daemon: subprocess.Popen[bytes]) -> None:
    try:
        daemon.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
