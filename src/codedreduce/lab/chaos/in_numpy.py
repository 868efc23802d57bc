"""A script for `codedreduce run`: trains in NumPy until the file `stop` exists, or for ROUNDS rounds.

python in_numpy.py FOLDER [ROUNDS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from codedreduce.lab.chaos.diary import Diary, Failing
from codedreduce.lab.chaos.jobs import ENDLESS, numpy_job
from codedreduce.launch.environment import read_membership
from codedreduce.run.journal import RoundLog
from codedreduce.training.loop import run_job


def main(folder: Path, rounds: int) -> None:
    """One process of the run."""
    membership = read_membership(os.environ)
    assert membership is not None, "this script is for `codedreduce run`"
    assert membership.scheme is not None, "the launcher sets the scheme"
    diary, failing = Diary(folder), Failing()

    def on_round(log: RoundLog) -> None:
        diary.round(log.round, leads=False)

    def until(log: RoundLog) -> bool:
        diary.round(log.round, leads=True)  # only the leader calls this
        return diary.is_to_stop()

    job = numpy_job(
        membership.scheme, rounds, checkpoints=folder / "checkpoints", membership=membership, look=failing.look,
        until=until,
    )  # fmt: skip
    result = run_job(job, on_round=on_round, membership=membership)
    if result.history:
        diary.end(result.parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ENDLESS)
