"""Who writes a checkpoint when a process is told to leave."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codedreduce.process.termination import TOLD_TO_END, Terminated
from codedreduce.run.journal import Journal
from codedreduce.training.checkpoints import saving_to
from codedreduce.training.kept import Kept
from codedreduce.vectors import Vector


class Replica:
    def copy(self) -> Callable[[], Vector]:
        return lambda: np.arange(3, dtype=np.uint8)

    def unpack(self, state: Vector) -> None:
        raise AssertionError("nothing is resumed")


@pytest.mark.parametrize(("code", "written"), [(TOLD_TO_END, ["round-00000007.json"]), (0, [])])
def test_a_rank_that_came_to_lead_a_moment_ago_writes_if_the_run_ends_with_it(
    tmp_path: Path, code: int, written: list[str]
) -> None:
    """It has not led a round yet, so that it does not have the folder; and whom it hands over to, will."""
    saving = saving_to(tmp_path / "kept", 10**6, resume=False)
    assert saving is not None
    with contextlib.suppress(Terminated), Kept(saving, {}, Replica(), Journal(), is_first=False) as kept:
        kept.after(7, is_last=False, leads=False)
        raise Terminated(code)
    assert [path.name for path in (tmp_path / "kept").glob("*.json")] == written
