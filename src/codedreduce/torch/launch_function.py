"""`launch`: run a function in several processes, from a notebook's cell or a script, with a table of the rounds."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from codedreduce._extras import require
from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.launch.environment import timing_said
from codedreduce.launch.launcher import Launch
from codedreduce.launch.launcher import launch as start
from codedreduce.launch.showing import OnlyFirst, Show
from codedreduce.process.telling import STEPS
from codedreduce.run.delays import parse_delays
from codedreduce.torch.live_table import watching

T = TypeVar("T")


def launch(
    function: Callable[..., T],
    *args: Any,
    workers: int = 6,
    inject: str | None = None,
    live: bool = True,
    output: str = "root",
    variables: dict[str, str] | None = None,
) -> T:
    """Call a function in `workers` processes that train together, and return the result of rank 0.

    The function calls `join` and `train` as a script does, and may be defined in a notebook's cell. cloudpickle copies
    the function, its arguments and the notebook's objects that it uses to every process. The environment of each
    process has RANK, LOCAL_RANK and so on, as with torchrun. `inject` delays some processes on purpose.

    A table shows the latest rounds, unless `live` is False. The output of rank 0 is shown, or that of all ranks with
    `output="all"`. An error in one process ends all of them and is raised here; so does an interrupt.

    In a script, call it below `if __name__ == "__main__":`.
    """
    cloudpickle = require("cloudpickle", extra="torch")
    if workers < 1:
        raise UsageError(f"workers={workers}: launch() needs at least 1 process")
    if output not in ("root", "all"):
        raise UsageError(f"output={output!r}: use 'root' or 'all'")
    if inject is not None:
        parse_delays(inject, workers=workers, unit=1.0, seed=0)
    with tempfile.TemporaryDirectory(prefix="codedreduce-") as folder:
        given, returned = Path(folder) / "given", Path(folder) / "returned"
        given.write_bytes(cloudpickle.dumps((function, args)))
        said = {
            "CODEDREDUCE_TREE": f"{workers}x1", "CODEDREDUCE_SCHEME": "striped", "CODEDREDUCE_STRAGGLERS": "1",
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]), STEPS: "1" if live else "0",
            **({"CODEDREDUCE_INJECT": inject} if inject is not None else {}), **(variables or {}),
        }  # fmt: skip
        command = [sys.executable, "-m", "codedreduce.torch.launched_process", str(given), str(returned)]
        timing = timing_said({**os.environ, **said})
        what = Launch(command=command, count=workers, variables=said, ends_at_interrupt=True, timing=timing)
        with watching(live) as watch:
            start(what, Show(watch.say) if output == "all" else OnlyFirst(watch.write, watch.say), watch.hear)
        if not returned.exists():
            raise CodedReduceError("rank 0 failed, so the result of the function is lost; the other ranks finished")
        result: T = cloudpickle.loads(returned.read_bytes())
        return result
