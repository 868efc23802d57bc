"""A Ray cluster of several raylets on this machine, in a process of its own: a test's process forks, and Ray may not be
in one that does.

The process is told what to do by lines of JSON, answers each, and takes all away when nobody can tell it any more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil

from codedreduce.lab import Lab

#: Bytes of a raylet's store of objects: as little as Ray lets it have. No vector goes through it.
STORE = 80_000_000


class Raylets:
    """The test's end. `address` is where the cluster is; nodes are numbered from 0, the head."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self.folder = folder
        self.address = str(self._answer())

    def add(self, **said: Any) -> int:
        """Another node; its number."""
        return int(self._ask(["add", said]))

    def remove(self, node: int) -> None:
        """Take a node away, as if its machine had gone."""
        self._ask(["remove", node])

    def metrics(self) -> str:
        """Where the head's metrics are."""
        return str(self._ask(["metrics"]))

    def rank(self, number: int, words: str) -> psutil.Process | None:
        """The process of a rank that runs a command with these words in it."""
        for one in psutil.Process(self._process.pid).children(recursive=True):
            try:
                if words in " ".join(one.cmdline()) and one.environ().get("RANK") == str(number):
                    return one
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return None

    def node_of(self, process: psutil.Process) -> int:
        """On which node a process is."""
        above = {parent.pid for parent in process.parents()}
        (found,) = [node for node, raylet in self._ask(["raylets"]) if raylet in above]
        return int(found)

    def _ask(self, what: list[Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                return json.loads(line[2:])
        raise AssertionError(f"the cluster has ended: {(self.folder / 'errors').read_text()[-3000:]}")


@contextmanager
def raylets(nodes: list[dict[str, Any]], *, site: str = "") -> Iterator[Raylets]:
    """A cluster of such nodes, the first of which is the head; in a lab of that name each at its own node."""
    folder = Path(tempfile.mkdtemp(prefix="cdr-", dir="/tmp"))
    (folder / "ray").mkdir()
    environment = {
        **os.environ, "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0",
        "RAY_metrics_report_interval_ms": "500", "RAY_DEDUP_LOGS": "0", "RAY_raylet_start_wait_time_s": "120",
    }  # fmt: skip
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.raylets", json.dumps(nodes), site], text=True, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=Path(__file__).parents[1],
        )  # fmt: skip
    try:
        yield Raylets(process, folder)
    finally:
        left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for one in left:  # what was this cluster's, by its ids, should any of it be there still
            if one.is_running():
                one.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main(nodes: list[dict[str, Any]], site: str) -> None:
    """Have a cluster, and do what is said."""
    lab = Lab.find(site) if site else None
    if lab is not None:
        lab.enter(0)
        for number, one in enumerate(nodes):
            one["node_ip_address"] = lab.address(number)

    import ray
    from ray.cluster_utils import Cluster

    head, *others = nodes
    usual = {"object_store_memory": STORE, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**usual, "include_dashboard": False, **head})
    there = [cluster.head_node]
    try:
        for number, one in enumerate(others, start=1):
            with lab.at(number) if lab is not None else nullcontext():
                there.append(cluster.add_node(**{**usual, **one}))
        _say(cluster.address)
        for line in sys.stdin:
            match json.loads(line):
                case ["add", said]:
                    there.append(cluster.add_node(**{**usual, **said}))
                    _say(len(there) - 1)
                case ["remove", node]:
                    cluster.remove_node(there[node], allow_graceful=False)
                    _say(None)
                case ["raylets"]:
                    _say([[number, one.all_processes["raylet"][0].process.pid]
                          for number, one in enumerate(there) if "raylet" in one.all_processes])  # fmt: skip
                case ["metrics"]:
                    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
                    (first,) = [one for one in ray.nodes() if one["NodeID"] == cluster.head_node.node_id]
                    _say(f"http://{first['NodeManagerAddress']}:{first['MetricsExportPort']}/metrics")
                    ray.shutdown()
    finally:
        cluster.shutdown()


def _say(what: Any) -> None:
    print(">", json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
