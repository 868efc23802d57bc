"""The first process of a striped training is stopped for seconds: the others go on, and it goes on where they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from codedreduce import Striped
from codedreduce.training import LogisticRegression, synthetic, train

ROUNDS = 150

SCRIPT = """
import sys
import numpy as np
from codedreduce import Striped
from codedreduce.training import LogisticRegression, synthetic, train

def say(log):
    print("round", log.round, flush=True)

found = train(
    LogisticRegression(), synthetic(240, 20, seed=1), scheme=Striped(4), rounds=int(sys.argv[1]), batch=120, seed=2,
    inject="stalls:0.9:0.05s", on_round=say,
)
np.save(sys.argv[2], found.parameters)
"""


def test_the_first_process_is_stopped_and_goes_on_where_the_others_are(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(ROUNDS), str(tmp_path / "model.npy")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(int(line.split()[1]))
            if len(seen) == 5:
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(8)
                os.kill(process.pid, signal.SIGCONT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert seen[-1] == ROUNDS
    assert len(seen) < ROUNDS, "the others went on meanwhile"
    calm = train(LogisticRegression(), synthetic(240, 20, seed=1), scheme=Striped(4), rounds=ROUNDS, batch=120, seed=2)
    assert np.load(tmp_path / "model.npy").tobytes() == calm.parameters.tobytes()
