"""Runs on a Ray cluster of real raylets: nodes and actors are lost and added, and the bits are those of a local run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command import codedreduce
from tests.raylets import Raylets, raylets
from tests.waiting import LINGER, PATIENCE

pytest.importorskip("ray")
pytest.importorskip("torch")

STEPS = 400

#: Every rank leaves its bits in a file. Rounds last until the test says that they may hurry.
SCRIPT = f"""
import hashlib, os, sys, time
import torch
import torch.nn.functional as F
import codedreduce.torch as cr


{LINGER}

def train(folder):
    torch.manual_seed(1)
    model = torch.nn.Linear(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.randn(960, 20), torch.randint(0, 3, (960,)))

    def losses(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with cr.join() as cluster:
        times = os.environ.get("CODEDREDUCE_RESTARTED", "0")
        for step in cluster.train(model, data, losses, batch_size=96, steps={STEPS}, state=[optimizer], seed=3):
            optimizer.step()
            open(f"{{folder}}/in-{{cluster.rank}}-{{times}}", "w").close()
            linger(f"{{folder}}/hurry", {STEPS} - step.round)
            if step.round % 10 == 0 and cluster.is_root:
                print("round", step.round, flush=True)
    bits = hashlib.sha1(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
    open(f"{{folder}}/bits-{{cluster.rank}}", "w").write(bits)
    return bits


if __name__ == "__main__":
    train(sys.argv[1])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "trains.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def bits(script: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Those of one process on this machine that does the units of four."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "hurry").touch()
    done = codedreduce("run", "-n", "1", "--units", "4", str(script), str(folder), timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return (folder / "bits-0").read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    with raylets([{"labels": {"rack": f"r{node % 2}"}} for node in range(4)]) as found:
        yield found


class Command:
    """A command that runs beside the test, and what it has printed."""

    def __init__(self, *words: str, folder: Path, within: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*within, sys.executable, *words],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(iter(self._process.stdout.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def until(self, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self._process.poll() is None, f"it has ended: {self.text}"
            assert time.monotonic() < deadline, f"it did not happen: {self.text}"
            time.sleep(0.05)

    def until_in(self, rank: int, times: int = 0) -> None:
        """A rank has had a round, after it was started again so often."""
        self.until((self.folder / f"in-{rank}-{times}").exists)

    def ends(self) -> int:
        (self.folder / "hurry").touch()
        code = self._process.wait(timeout=PATIENCE)
        self._reader.join()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run(cluster: Raylets, folder: Path, *words: str) -> Command:
    return Command("-m", "codedreduce", "run", "--on", "ray", "--address", cluster.address, *words, folder=folder)


def rounds(text: str) -> int:
    """The last that was told of."""
    told = [int(line.split()[-1]) for line in text.splitlines() if "round " in line]
    return told[-1] if told else 0


def test_a_node_is_lost_one_is_added_and_rank_0_dies(cluster: Raylets, script: Path, bits: str, tmp_path: Path) -> None:
    command = run(cluster, tmp_path, "-n", "4", str(script), str(tmp_path))
    for rank in range(4):
        command.until_in(rank)
    found = {rank: cluster.rank(rank, str(tmp_path)) for rank in range(4)}
    nodes = {rank: cluster.node_of(process) for rank, process in found.items() if process is not None}
    assert sorted(nodes.values()) == [0, 1, 2, 3], "each rank is on a node of its own"
    lost = next(rank for rank in (1, 2, 3) if nodes[rank] != 0)
    cluster.remove(nodes[lost])
    command.until(lambda: f"[{lost}] (lost with its actor on node" in command.text)
    before = rounds(command.text)
    command.until(lambda: rounds(command.text) >= before + 20)
    assert f"[{lost}] (has a place" not in command.text, "rounds went on, with nobody in its place"

    cluster.add(labels={"rack": "r1"})
    command.until_in(lost, times=1)
    assert f"[{lost}] (has a place on node" in command.text

    first = cluster.rank(0, str(tmp_path))
    assert first is not None
    actor = first.parent()
    assert "RankActor" in actor.name() + " ".join(actor.cmdline())
    actor.kill()
    command.until_in(0, times=1)
    assert not first.is_running(), "it ends with its actor"
    assert command.ends() == 0, command.text
    assert {(tmp_path / f"bits-{rank}").read_text() for rank in range(4)} == {bits}
    for rank in range(4):
        assert cluster.rank(rank, str(tmp_path)) is None


LAUNCHES = """
import json, sys, time, urllib.request
import ray
from codedreduce.ray import launch

sys.path.insert(0, sys.argv[1])
from trains import train

if __name__ == "__main__":
    ray.init(address=sys.argv[2], log_to_driver=False)
    stalls = "rank:1:0.5:0.2s"
    print("returned", launch(train, sys.argv[3], workers=(2, 4), live=False, inject=stalls), flush=True)
    run = f'run="{ray.get_runtime_context().get_job_id()}-'
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = urllib.request.urlopen(sys.argv[4]).read().decode()
        found = {line.partition("{")[0]: float(line.split()[-1]) for line in text.splitlines() if run in line}
        if found.get("ray_codedreduce_rounds_total") == int(sys.argv[5]):
            break
        time.sleep(0.3)
    print("metrics", json.dumps(found), flush=True)
"""


def test_two_runs_at_once_of_which_one_grows(cluster: Raylets, script: Path, bits: str, tmp_path: Path) -> None:
    folders = [tmp_path / "fixed", tmp_path / "grows"]
    for folder in folders:
        folder.mkdir()
    fixed = run(cluster, folders[0], "-n", "2", "--units", "4", str(script), str(folders[0]))
    for rank in range(2):
        fixed.until_in(rank)
    path = tmp_path / "launches.py"
    path.write_text(LAUNCHES)
    words = [str(script.parent), cluster.address, str(folders[1]), cluster.metrics(), str(STEPS)]
    grows = Command(str(path), *words, folder=folders[1])
    for rank in range(2):
        grows.until_in(rank)
    added = cluster.add()
    grows.until_in(2)
    assert "[2] (has a place on node" in grows.text
    assert fixed.ends() == 0, fixed.text
    assert (folders[0] / "bits-0").read_text() == bits, "as many units, as many bits"
    grows.until_in(3)
    assert grows.ends() == 0, grows.text
    assert f"returned {bits}" in grows.text
    metrics = json.loads(grows.text.rpartition("metrics ")[2])
    assert metrics["ray_codedreduce_rounds_total"] == STEPS
    for name in ("round_seconds_count", "seconds_saved_total", "late_total"):
        assert metrics[f"ray_codedreduce_{name}"] > 0
    cluster.remove(added)


TUNES = """
import os, sys
import ray
from ray import tune

sys.path.insert(0, sys.argv[1])


def trial(config):
    from codedreduce.ray import launch
    from trains import train

    half, units = {"CPU": 0.5}, {"CODEDREDUCE_UNITS": "4"}
    tune.report({"bits": launch(train, config["folder"], workers=2, resources=half, variables=units)})


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = sys.argv[1]
    ray.init(address=sys.argv[2], log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": sys.argv[1]}})
    space = {"folder": tune.grid_search(sys.argv[4:])}
    run = tune.RunConfig(storage_path=sys.argv[3], verbose=0)
    found = tune.Tuner(tune.with_resources(trial, {"CPU": 0.01}), param_space=space, run_config=run).fit()
    print("found", *sorted(one.metrics["bits"] for one in found), flush=True)
"""


def test_trials_of_tune_launch_runs_at_once(cluster: Raylets, script: Path, bits: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    path = tmp_path / "tunes.py"
    path.write_text(TUNES)
    words = [str(script.parent), cluster.address, str(tmp_path / "kept"), *map(str, folders)]
    command = Command(str(path), *words, folder=folders[0])
    for folder in folders:
        command.until((folder / "in-1-0").exists)
    (folders[1] / "hurry").touch()
    assert command.ends() == 0, command.text
    assert f"found {bits} {bits}" in command.text


def test_placements_and_what_cannot_be_had(cluster: Raylets, script: Path, tmp_path: Path) -> None:
    on = ("run", "--on", "ray", "--address", cluster.address)
    shown = codedreduce(*on, "--tree", "2x1", "--dry-run", "--spread-over", "rack", str(script), timeout=PATIENCE)
    assert shown.returncode == 0, shown.stderr
    racks = [line.split()[-2] for line in shown.stdout.splitlines() if "192" in line or "(" in line]
    assert sorted(racks[1:]) == ["r0", "r1"], shown.stdout
    never = codedreduce(*on, "--tree", "2x1", "--dry-run", "--resources", "one=1", "--within", "1s", str(script))
    assert never.returncode == 2
    assert "3 ranks need CPU=1, one=1 each; there is room for 0, and no node has any one" in never.stderr
    assert "CPU=1 free" in never.stderr
    nobody = codedreduce(*on, "-n", "2", "--spread-over", "zone", "--dry-run", str(script))
    assert "no node of the cluster has a label 'zone' (they have: rack)" in nobody.stderr
    raises = tmp_path / "raises.py"
    raises.write_text(LAUNCHES.split("deadline")[0].replace("launch(train", "launch(fails").replace(
        "if __name__", "def fails(folder):\n    raise RuntimeError(f'my own bug in {folder}')\n\nif __name__"
    ))  # fmt: skip
    command = Command(str(raises), str(script.parent), cluster.address, str(tmp_path), folder=tmp_path)
    assert command.ends() == 1
    assert "CodedReduceError: RuntimeError: my own bug in" in command.text
    assert "started again" not in command.text


def test_a_node_with_another_version_is_named(cluster: Raylets, script: Path, tmp_path: Path) -> None:
    import codedreduce as package

    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["cp", "-r", str(Path(package.__file__).parent), str(other)], check=True)
    init = other / "codedreduce" / "__init__.py"
    init.write_text(init.read_text().replace(f'__version__ = "{package.__version__}"', '__version__ = "0.0.9"'))
    added = cluster.add(env_vars={"PYTHONPATH": str(other)}, resources={"other": 1})
    words = ("--on", "ray", "--address", cluster.address, "--resources", "other=1")
    done = codedreduce("run", "-n", "1", *words, str(script), timeout=PATIENCE)
    assert done.returncode == 2
    assert f"has codedreduce 0.0.9, but the driver has {package.__version__}" in done.stderr
    cluster.remove(added)


def test_no_cluster_is_there(script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = codedreduce("run", "--on", "ray", "--address", "127.0.0.1:9", str(script))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("codedreduce: there is no Ray cluster at 127.0.0.1:9 (connection refused)")
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400 no\r\n\r\n"), daemon=True).start()
        done = codedreduce("run", "--on", "ray", "--address", f"127.0.0.1:{other.getsockname()[1]}", str(script))
    assert done.returncode == 2
    assert "the process there is not ray" in done.stderr
    for words, said in (
        (("--on", "moon"), "`--on`: unknown cluster 'moon'; use ray"),
        (("--address", "a:1"), "--address needs a cluster"),
        (("--on", "ray", "--address", "ray://a:1"), "not a client's"),
        (("--on", "ray", "--address", "here"), "must be HOST:PORT"),
        (("--on", "ray", "--resources", "GPU"), "NAME=NUMBER"),
        (("--on", "ray", "--address", "127.0.0.1:9", "--resources", "GPU=1.5"), "must be a whole number, or below 1"),
    ):
        done = codedreduce("run", *words, str(script))
        assert done.returncode == 2
        assert said in done.stderr
