"""The command line that trains: scripts under the launcher, and what goes wrong in them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from codedreduce import MasterWorker, Striped
from codedreduce.errors import UsageError
from codedreduce.launch.environment import read_membership
from codedreduce.memory.arena import arenas_of
from codedreduce.process.private_folder import run_folder
from codedreduce.training import SGD, LogisticRegression, synthetic
from codedreduce.training.loop import Job
from tests.command import codedreduce
from tests.waiting import PATIENCE, wait_until

SCRIPT = """
import os, sys
from codedreduce.training import LogisticRegression, SGD, synthetic, train
{before}
def on_round(log):
    if log.round == 5:
        open(__file__ + ".five", "w").close()

result = train(LogisticRegression(), synthetic(600, 50), rounds={rounds}, optimizer=SGD(1.0), on_round=on_round)
if os.environ["RANK"] == "0":
    print("loss", result.history[-1].loss, "rounds", len(result.history), "interrupted", result.interrupted)
"""


def script(folder: Path, before: str = "", rounds: int = 8) -> str:
    path = folder / "script.py"
    path.write_text(SCRIPT.format(before=before, rounds=rounds))
    return str(path)


def nobody_runs(name: str) -> bool:
    return wait_until(lambda: not [p for p in psutil.process_iter(["cmdline"]) if name in (p.info["cmdline"] or [])])


@pytest.mark.parametrize("scheme", ["coded-reduce", "master-worker", "gradient-coding"])
def test_a_script_runs_as_root_and_workers(tmp_path: Path, scheme: str) -> None:
    path = script(tmp_path)
    run = codedreduce(
        "run", "--tree", "2x2", "--scheme", scheme, "--inject", "stalls:0.1:0.1s", "--output", "all", path
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "[root] loss 0.3" in run.stdout
    assert "rounds 8" in run.stdout
    assert nobody_runs(path)


def test_a_module_whose_output_goes_to_files(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    path = script(tmp_path / "package", 'print("local", os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"])', 2)
    command = [sys.executable, "-m", "codedreduce", "run", "-n", "2", "--output", str(tmp_path / "logs"), "-m"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [*command, "package.script"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("local 0 2\nloss"), "rank 0's is shown, as it is"
    assert (tmp_path / "logs" / "rank-0.log").read_text() == run.stdout
    assert (tmp_path / "logs" / "rank-1.log").read_text() == "local 1 2\n"
    wrong = codedreduce("run", "-m", "package.nothing")
    assert (wrong.returncode, "there is no module 'package.nothing'" in wrong.stderr) == (2, True)
    assert nobody_runs(path)


@pytest.mark.parametrize(("rank", "who"), [(0, "rank 0"), (2, "rank 2")])
def test_a_script_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, who: str) -> None:
    if rank == 0:  # the others are given time to end
        monkeypatch.setenv("CODEDREDUCE_TIMING", "0.2")
    path = script(tmp_path, f'if os.environ["RANK"] == "{rank}": raise RuntimeError("my own bug")')
    run = codedreduce("run", "-n", "3", path)
    assert run.returncode == 1
    assert "RuntimeError: my own bug" in run.stdout
    assert f"{who} ended with exit code 1; its last words are above" in run.stderr
    assert nobody_runs(path)


def test_a_killed_worker_does_not_end_the_run(tmp_path: Path) -> None:
    before = """
import threading, signal
if os.environ["RANK"] == "3":
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
"""
    path = script(tmp_path, before, rounds=600)
    run = codedreduce("run", "-n", "4", "--inject", "stalls:0.02:0.05s", path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "[3] (killed by signal 9; the run goes on without it)" in run.stdout
    assert "rounds 600" in run.stdout


def test_a_worker_with_another_seed_is_refused_on_both_sides(tmp_path: Path) -> None:
    path = script(tmp_path, rounds=3)
    text = Path(path).read_text().replace("rounds=3", 'rounds=3, batch=60, seed=1 if os.environ["RANK"] == "3" else 0')
    Path(path).write_text(text)
    run = codedreduce("run", "--tree", "2x2", path)
    assert run.returncode == 2
    for said in (run.stdout, run.stderr):  # the root logs it at once, and would wait for the right one; rank 3 ends
        assert said.count("rank 3 has seed 1, and the root seed 0") == 1, run.stdout + run.stderr
    assert "Traceback" not in run.stdout


def test_memory_is_not_shared_where_that_is_not_wanted(tmp_path: Path) -> None:
    """Whatever starts the processes: no such memory while rounds run."""
    before = """
from codedreduce.memory.arena import arenas_of
def seen():
    return arenas_of(os.environ["CODEDREDUCE_RUN"] + "-")
"""
    path = script(tmp_path, before, rounds=3)
    text = Path(path).read_text()
    for shared, expected in (("True", 3), ("False", 0)):
        changed = text.replace(
            "on_round=on_round", f"on_round=lambda log: print('arenas', len(seen())), shared_memory={shared}"
        )
        Path(path).write_text(changed)
        run = codedreduce("run", "--tree", "2x1", path)
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.count(f"arenas {expected}\n") == 3, run.stdout


def test_a_process_in_another_pid_namespace_is_told_why_it_cannot_join(tmp_path: Path) -> None:
    """It could not open the others' memory. Without shared memory it can take part."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    path = script(tmp_path, rounds=3)
    for shared, code, message in (
        ("1", 2, "rank 1 shares memory of PID namespace"),
        ("0", 0, "rounds 3"),
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        base = {
            **os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "CODEDREDUCE_TREE": "1x1", "CODEDREDUCE_STRAGGLERS": "0", "CODEDREDUCE_SHARED_MEMORY": shared,
        }  # fmt: skip
        worker = subprocess.Popen(
            [*apart, sys.executable, path], env={**base, "RANK": "1"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        root = subprocess.run(
            [sys.executable, path],
            env={**base, "RANK": "0"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        out, _ = worker.communicate(timeout=PATIENCE)
        assert (root.returncode, worker.returncode) == (code, code), root.stdout + root.stderr + out
        assert message in root.stdout + root.stderr


def test_a_run_over_machines_has_chunks_for_a_network() -> None:
    job = Job(
        objective=LogisticRegression(),
        source=synthetic(60, 99_999),
        rounds=1,
        scheme=MasterWorker(2),
        optimizer=SGD(1.0),
    )
    base = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_PORT": "29500"}
    near, far = (read_membership({**base, "MASTER_ADDR": host}) for host in ("127.0.0.1", "10.77.0.1"))
    assert near is not None
    assert far is not None
    assert job.run(near.meeting, job.plan()).settings.chunks == 1
    assert job.run(far.meeting, job.plan()).settings.chunks > 1
    assert not job.run(far.meeting, job.plan()).shares_memory


def test_more_stopped_than_tolerated_and_the_rest_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    run = codedreduce(
        "train", "--tree", "2x1", "--stragglers", "0", "--rounds", "3", "--on-excess", "approximate",
        "--say-waiting-after", "0.2s", "--inject", "worker:2:1.0:600s", "--log", str(log),
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    residuals = [json.loads(line)["residual"] for line in log.read_text().splitlines()]
    assert residuals == [pytest.approx(0.5**0.5)] * 3
    assert "3 rounds continued without the whole batch; residual up to 0.707" in run.stdout
    assert "goes on without all of [2]" in run.stdout


@pytest.mark.parametrize("options", [("--tree", "2x2"), ("-n", "3", "--restart")])
def test_interrupting_leaves_a_result_and_nobody_behind(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = script(tmp_path, rounds=10**6)
    command = [sys.executable, "-c", "from codedreduce.cli import main; main()", "run", *options, path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(Path(path + ".five").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, out + err
    found = re.fullmatch(r"loss \S+ rounds (\d+) interrupted True\n", out)
    assert found, out
    interrupted = re.fullmatch(r"codedreduce: interrupted in round (\d+)\n", err)
    assert interrupted, err
    assert int(interrupted[1]) - int(found[1]) in (0, 1), "the round that was under way"
    assert nobody_runs(path)


def test_a_busy_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEDREDUCE_TIMING", "0.2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = codedreduce("run", "--tree", "2x1", "--port", str(port), script(tmp_path))
    assert run.returncode == 2
    assert f"cannot listen at tcp://127.0.0.1:{port}: address already in use" in run.stderr


def test_a_worker_without_a_root(tmp_path: Path) -> None:
    environment = {
        **os.environ, "RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
        "CODEDREDUCE_ROOT_WITHIN": "0.3",
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, script(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 2
    assert "got no answer from the root at tcp://127.0.0.1:1 within 0.3 s" in run.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "x"}, "RANK must be a number, got 'x'"),
        ({"RANK": "5"}, "RANK=5 is out of range for WORLD_SIZE=3"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, "RANK=0 is out of range for WORLD_SIZE=0"),
    ],
)
def test_environments_that_cannot_be(environment: dict[str, str], message: str) -> None:
    base = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError, match=message):
        read_membership({**base, **environment})


def test_a_membership_without_hints_names_no_scheme() -> None:
    base = {"RANK": "1", "WORLD_SIZE": "21", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    membership = read_membership(base)
    assert membership is not None
    assert membership.scheme is None
    assert (membership.size, membership.workers) == (21, 20)
    assert membership.meeting.same_machine
    said = read_membership({**base, "CODEDREDUCE_SCHEME": "striped", "CODEDREDUCE_TREE": "21x1"})
    assert said is not None
    assert said.scheme == Striped(21)


def test_launchers_that_do_not_say_where_the_root_is() -> None:
    with pytest.raises(UsageError, match="set MASTER_ADDR and MASTER_PORT"):
        read_membership({"PMI_RANK": "0", "PMI_SIZE": "4"})
    with pytest.raises(UsageError, match="set MASTER_ADDR and MASTER_PORT"):
        read_membership({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"})
    assert read_membership({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None, "a batch script is one process"


def test_launches_at_one_port_are_told_apart_where_a_launcher_says_which_it_is() -> None:
    at = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "CODEDREDUCE_INSECURE": "1"}
    slurm = {**at, "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}

    def name(**environment: str) -> str:
        membership = read_membership(environment)
        assert membership is not None
        return membership.meeting.run

    assert name(SLURM_PROCID="0", **slurm) == name(SLURM_PROCID="3", **slurm)
    assert name(SLURM_PROCID="0", **slurm) != name(SLURM_PROCID="0", **{**slurm, "SLURM_STEP_ID": "1"})
    assert name(SLURM_PROCID="0", **slurm) != name(SLURM_PROCID="0", **{**slurm, "SLURM_JOB_ID": "78"})
    parts = [{**slurm, "SLURM_HET_SIZE": "2", "SLURM_JOB_ID": job} for job in ("77", "78")]
    assert name(SLURM_PROCID="0", **parts[0]) == name(SLURM_PROCID="3", **parts[1]), "one job in parts"
    mpi = {**at, "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-host-12@1"}
    assert name(OMPI_COMM_WORLD_RANK="0", **mpi) == name(OMPI_COMM_WORLD_RANK="3", **mpi)
    assert name(OMPI_COMM_WORLD_RANK="0", **mpi) != name(
        OMPI_COMM_WORLD_RANK="0", **{**mpi, "PMIX_NAMESPACE": "prterun-host-13@1"}
    )
    by_hand = {"RANK": "2", "WORLD_SIZE": "4"}
    assert name(SLURM_PROCID="0", **slurm, **by_hand) == name(**at, **by_hand), "it may come from anywhere"
    assert name(SLURM_PROCID="0", **slurm, CODEDREDUCE_RUN="mine") == "mine"


def test_torchrun_listens_at_its_port_itself() -> None:
    base = {
        "RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "host", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
    here = read_membership({**base, "LOCAL_WORLD_SIZE": "3"})
    assert here is not None
    assert here.meeting.address == f"ipc://{run_folder('codedreduce-none-29500')}/book"
    several = read_membership({**base, "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1"})
    assert several is not None
    assert several.meeting.address == "tcp://10.0.0.1:29501"


def test_train_writes_model_and_log(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0] > 0).astype(np.float32))
    model, log = tmp_path / "model.npz", tmp_path / "run.jsonl"
    run = codedreduce(
        "train", "--data", str(tmp_path / "d.npz"), "--tree", "2x2", "--rounds", "30", "--lr", "1", "--batch", "100",
        "--inject", "stalls:0.1:0.1s", "--save", str(model), "--log", str(log),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "trained for 30 rounds" in run.stdout
    parameters = np.load(model)["parameters"]
    assert parameters[0] > 3 * np.abs(parameters[1:]).max()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 31))
    assert all({"seconds", "loss", "late", "lateness", "saved"} <= set(line) for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert "stragglers seen" in run.stdout


def test_interrupted_training_leaves_a_usable_model(tmp_path: Path) -> None:
    model = tmp_path / "model.npz"
    command = [sys.executable, "-c", "from codedreduce.cli import main; main()", "train", "--tree", "2x2"]
    command += ["--rounds", "1000000", "--save", str(model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(arenas_of(f"codedreduce-{process.pid}-")) == 7)  # root and workers are up
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, out + err
    assert "interrupted after" in out
    assert "Traceback" not in err
    assert np.isfinite(np.load(model)["parameters"]).all()


def test_race(tmp_path: Path) -> None:
    target = tmp_path / "race.json"
    run = codedreduce(
        "race", "--tree", "2x2", "--rounds", "4", "--compute", "0.2s", "--delays", "stalls:0.1:0.1s",
        "--samples", "120", "--parameters", "30", "--json", str(target), "--report", str(tmp_path / "report"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    results = json.loads(target.read_text())["results"]
    assert len(results) == 7
    for result in results:
        assert len(result["round_seconds"]) == 4
        if "live" not in result["scheme"]:
            assert result["bit_identical"], f"{result['scheme']} does not agree with the reference to the bit"
            assert result["max_error"] < 1e-5
            assert result["work"] > 0.9
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("<svg") == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing.py"], "there is no script 'nothing.py'"),
        (["run", "-n", "7", "--tree", "2x2", __file__], "`-n 7`: the tree 2x2 has 6 workers"),
        (["train", "--data", "nothing.csv"], "there is no file 'nothing.csv'"),
        (["train", "--model", "magic"], "unknown model 'magic'"),
        (["train", "--optimizer", "magic"], "unknown optimizer 'magic'"),
        (["train", "--lr", "0"], "`--lr 0`: the learning rate must be a number above 0"),
        (["train", "--batch", "7"], "7 samples cannot be shared by 20 workers"),
        (["train", "--inject", "magic"], "unknown delays 'magic'"),
        (["train", "--save", "/nowhere/m.npz"], "cannot write '/nowhere/m.npz'"),
        (["train", "--data", "[/x]"], "there is no file '[/x]'"),
        (["train", "--seed", "-1"], "`--seed -1`: must be at least 0"),
        (["race", "--samples", "-5"], "`--samples -5`: must be at least 1"),
        (["race", "--delays", "magic"], "unknown delays 'magic'"),
        (["race", "--samples", "5"], "5 samples cannot be shared"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    run = codedreduce(*arguments)
    assert run.returncode == 2, run.stdout + run.stderr
    assert message in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


def test_divergence_is_one_line(tmp_path: Path) -> None:
    run = codedreduce("train", "--model", "linear", "--lr", "1e9", "--tree", "2x1", "--rounds", "100")
    assert run.returncode == 1
    assert "the gradient is not finite" in run.stderr
    assert "Traceback" not in run.stderr
