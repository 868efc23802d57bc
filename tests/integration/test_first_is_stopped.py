"""The first process of a striped training is stopped for seconds: the others go on, and it goes on where they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from codedreduce import Striped
from codedreduce.training import LogisticRegression, synthetic, train
from tests.waiting import PATIENCE, wait_until

ROUNDS = 200

#: Of more rounds than sums are held of: it cannot step through what it missed.
MISSED = 70

SCRIPT = """
import os, sys
import numpy as np
from codedreduce import Striped
from codedreduce.training import LogisticRegression, synthetic, train

class Noting(LogisticRegression):
    # each process writes down in how many rounds it has computed something: each has another model
    latest = b""

    def evaluate(self, model, *given):
        if model.tobytes() != self.latest:
            self.latest = model.tobytes()
            with open(f"{sys.argv[3]}/rounds-{os.getpid()}", "a") as file:
                file.write(".")
        return super().evaluate(model, *given)

def say(log):
    print("round", log.round, flush=True)

found = train(
    Noting(), synthetic(240, 20, seed=1), scheme=Striped(4), rounds=int(sys.argv[1]), batch=120, seed=2,
    inject="stalls:0.9:0.05s", on_round=say,
)
np.save(sys.argv[2], found.parameters)
"""


def rounds_of(folder: Path) -> int:
    """In how many rounds one process, whichever had most, has computed."""
    return max(path.stat().st_size for path in folder.glob("rounds-*"))


def test_the_first_process_is_stopped_and_goes_on_where_the_others_are(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(ROUNDS), str(tmp_path / "model.npy"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(int(line.split()[1]))
            if len(seen) == 5:
                os.kill(process.pid, signal.SIGSTOP)
                before = rounds_of(tmp_path)
                gone_on = wait_until(lambda before=before: rounds_of(tmp_path) > before + MISSED)
                assert gone_on, "the others go on, with another leader"
                os.kill(process.pid, signal.SIGCONT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert seen[-1] == ROUNDS
    assert len(seen) < ROUNDS, "the others went on meanwhile"
    calm = train(LogisticRegression(), synthetic(240, 20, seed=1), scheme=Striped(4), rounds=ROUNDS, batch=120, seed=2)
    assert np.load(tmp_path / "model.npy").tobytes() == calm.parameters.tobytes()
