"""A training that was killed goes on from its last checkpoint, with the bits of one that never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bench.forked import run_forked

import codedreduce as cr
from codedreduce.errors import UsageError
from codedreduce.schemes import Scheme
from codedreduce.training import SGD, LogisticRegression, synthetic
from tests.waiting import PATIENCE

SCHEMES = {
    "tree": cr.CodedReduce(cr.Tree.regular(fanout=2, depth=2), 1),
    "striped": cr.Striped(3),
    "ring": cr.RingAllReduce(3),
}
ROUNDS = 30


def trained(scheme: Scheme, folder: Path | None = None, rounds: int = ROUNDS, **more: object) -> cr.TrainingResult:
    return cr.train(
        LogisticRegression(), synthetic(120, 40), scheme=scheme, rounds=rounds, optimizer=SGD(0.2, momentum=0.9),
        batch=60, checkpoint=folder, every=4, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_in_two_halves_as_in_one(scheme: Scheme, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = trained(scheme).parameters
    first = trained(scheme, tmp_path, rounds=14)
    assert first.parameters.tobytes() != expected.tobytes()
    assert "Resumed" not in caplog.text
    second = trained(scheme, tmp_path, resume=True)
    assert second.resumed_after == 14
    assert caplog.text.count("Resumed from round 14") == 1
    assert [log.round for log in second.history] == list(range(15, ROUNDS + 1))
    assert second.parameters.tobytes() == expected.tobytes()


def test_when_all_is_done_there_is_nothing_to_do(tmp_path: Path) -> None:
    expected = trained(SCHEMES["striped"], tmp_path, rounds=5).parameters
    again = trained(SCHEMES["striped"], tmp_path, rounds=5, resume=True)
    assert again.history == ()
    assert again.parameters.tobytes() == expected.tobytes()


SCRIPT = """
import sys
from pathlib import Path
from tests.integration.test_resume import SCHEMES, trained
import numpy as np
name, folder, out = sys.argv[1:]
result = trained(SCHEMES[name], Path(folder), rounds=30, resume=True, inject="stalls:1:0.05s")
np.save(out, result.parameters)
"""


@pytest.mark.parametrize("name", ["tree", "striped"])
def test_killed_and_started_again_until_it_is_through(name: str, tmp_path: Path) -> None:
    """The process of the first node is killed with all of its workers, three times; every time it gets further."""
    expected = trained(SCHEMES[name]).parameters
    folder, out = tmp_path / "checkpoints", tmp_path / "out.npy"
    command = [sys.executable, "-c", SCRIPT, name, str(folder), str(out)]

    def reached() -> int:
        return max((int(path.stem[6:]) for path in folder.glob("round-*.json")), default=0)

    for _ in range(3):
        before = reached()
        process = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + PATIENCE
        while reached() <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert reached() > before
    subprocess.run(command, check=True, timeout=PATIENCE)
    assert np.load(out).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["tree", "striped"])
def test_told_to_end_it_keeps_what_it_has(name: str, tmp_path: Path) -> None:
    """Its workers end with it, so there is nobody to hand over to."""
    expected = trained(SCHEMES[name]).parameters
    folder, out = tmp_path / "checkpoints", tmp_path / "out.npy"
    command = [sys.executable, "-c", SCRIPT, name, str(folder), str(out)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + PATIENCE
    while not list(folder.glob("round-*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    process.terminate()
    assert process.wait(PATIENCE) == 143
    assert not out.exists()
    assert max(int(path.stem[6:]) for path in folder.glob("round-*.json")) > 4
    subprocess.run(command, check=True, timeout=PATIENCE)
    assert np.load(out).tobytes() == expected.tobytes()


def test_another_scheme_or_seed_is_refused_by_name(tmp_path: Path) -> None:
    trained(SCHEMES["striped"], tmp_path, rounds=4)
    with pytest.raises(UsageError, match="scheme 'striped, units=3', now 'ring"):
        trained(SCHEMES["ring"], tmp_path, resume=True)
    with pytest.raises(UsageError, match="seed '0', now '1'"):
        trained(SCHEMES["striped"], tmp_path, resume=True, seed=1)


def test_another_number_of_ranks_goes_on_if_the_units_are_as_many(tmp_path: Path) -> None:
    expected = trained(cr.Striped(6)).parameters
    trained(cr.Striped(6), tmp_path, rounds=14)
    with pytest.raises(UsageError, match="scheme 'striped, units=6', now 'striped, units=4'"):
        trained(cr.Striped(4), tmp_path, resume=True)
    trained(cr.Striped(4, units=6), tmp_path, rounds=21, resume=True)
    last = trained(cr.Striped(1, units=6, reach=1), tmp_path, resume=True)
    assert [log.round for log in last.history] == list(range(22, ROUNDS + 1))
    assert last.parameters.tobytes() == expected.tobytes()


def test_another_cut_of_a_tree_is_refused_by_name(tmp_path: Path) -> None:
    """Who is given more of the batch decides what is added to what."""
    tree = cr.Tree.regular(fanout=2, depth=1)
    trained(cr.CodedReduce(tree, 1), tmp_path, rounds=2)
    with pytest.raises(UsageError, match=r"now '.* over a tree .*, capacity=\(1.0, 2.0\)'"):
        trained(cr.CodedReduce(tree, 1, capacity=(1, 2)), tmp_path, resume=True)


def test_to_resume_without_a_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="resume needs checkpoints: set their folder"):
        trained(SCHEMES["striped"], resume=True)


def test_under_a_launcher_ranks_take_the_state_of_rank_0(tmp_path: Path) -> None:
    """The others have no checkpoint, and begin with the model and optimizer that the script made."""
    scheme, kept = SCHEMES["striped"], tmp_path / "kept"
    expected = trained(scheme).parameters

    def script(rounds: int, *, resume: bool) -> Callable[[], None]:
        def run() -> None:
            result = trained(scheme, kept if os.environ["RANK"] == "0" else None, rounds, resume=resume and is_first())
            np.save(tmp_path / f"{os.environ['RANK']}.npy", result.parameters)

        return run

    def is_first() -> bool:
        return os.environ["RANK"] == "0"

    for rounds, resume in ((14, False), (ROUNDS, True)):
        outcome = run_forked(script(rounds, resume=resume), 3, {})
        assert outcome.codes == dict.fromkeys(range(3), 0), outcome.errors
    for rank in range(3):
        assert np.load(tmp_path / f"{rank}.npy").tobytes() == expected.tobytes()
