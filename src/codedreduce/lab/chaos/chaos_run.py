"""A run in a lab under a schedule of faults, and its outcome."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from codedreduce.errors import CodedReduceError
from codedreduce.lab import Lab
from codedreduce.lab.chaos.diary import Diaries, RoundDone
from codedreduce.lab.chaos.disturbing import Disturbing
from codedreduce.lab.chaos.jobs import numpy_job
from codedreduce.lab.chaos.schedule import ChaosFault
from codedreduce.schemes import Scheme
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.training.loop import reference_run

#: Seconds: limit for the first round; time without faults before the run must stop; limit for the stop.
FIRST_WITHIN, CALM_BEFORE_END, STOPS_WITHIN = 120.0, 4.0, 120.0

#: Seconds between two checks of the run.
LOOK_EVERY = 0.05

Kind = Literal["numpy", "torch"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What runs, and where. `shape` is the tree, which has a root in addition to the workers."""

    workers: int
    shape: str | None  # None: striped
    kind: Kind
    rate: float
    folder: Path
    lab: str = "chaos"
    seed: int = 0
    early: bool = False  # times of faults count from the start of the processes, not from the first round

    @property
    def processes(self) -> int:
        """Number of processes, and of nodes of the lab."""
        return self.workers + (self.shape is not None)

    @property
    def script(self) -> Path:
        """The script that every process runs."""
        return Path(__file__).with_name(f"in_{self.kind}.py")

    def scheme(self) -> Scheme:
        """The scheme that `codedreduce run` uses."""
        tree = parse_tree(self.shape or f"{self.workers}x1", 1)
        return parse_scheme("coded-reduce" if self.shape else "striped", tree=tree, stragglers=1, order="progressive")

    def command(self, *options: str, folder: Path, rounds: int | None = None) -> list[str]:
        """The command that starts the run."""
        scheme = ["--scheme", "striped", "-n", str(self.workers)] if self.shape is None else ["--tree", self.shape]
        script = [str(self.script), str(folder), *([] if rounds is None else [str(rounds)])]
        return [sys.executable, "-m", "codedreduce", "run", *scheme, *options, *script]


@dataclass
class ChaosProgress:
    """The progress of a run, for the live view; at the end the source of the result."""

    planned: int
    seconds: float
    elapsed: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, str] = field(default_factory=dict)
    leader: int = 0
    first_at: dict[int, float] = field(default_factory=dict)  # when the first rank finished each round
    again: int = 0  # rounds that a leader repeated after a restart from a checkpoint
    _led: set[int] = field(default_factory=set)

    def add(self, done: RoundDone) -> None:
        """Record that a rank finished a round."""
        before = self.first_at.get(done.round)
        self.first_at[done.round] = done.at if before is None else min(before, done.at)
        if done.leads:
            self.leader = done.rank
            self.again += done.round in self._led
            self._led.add(done.round)

    @property
    def rounds(self) -> int:
        """The last finished round."""
        return max(self.first_at, default=0)

    @property
    def lost(self) -> int:
        """Rounds that no rank finished."""
        return self.rounds - len(self.first_at)

    def pauses(self) -> list[float]:
        """Seconds between one round and the next."""
        times = [self.first_at[number] for number in sorted(self.first_at)]
        return [max(0.0, later - earlier) for earlier, later in itertools.pairwise(times)]

    def after(self, at: float) -> float | None:
        """Seconds from the time `at` until the end of the next round."""
        return min((over - at for over in self.first_at.values() if over >= at), default=None)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run under chaos."""

    scheme: str
    kind: str
    workers: int
    seconds: float
    rounds: int
    rounds_lost: int
    rounds_again: int
    faults: dict[str, int]
    median_round: float
    longest_pause: float
    root_kills: int
    longest_after_root_kill: float
    finished: int  # ranks that ended with a model
    same_bits: bool
    left_processes: int
    left_files: int

    @property
    def survived(self) -> int:
        """Number of injected faults."""
        return sum(self.faults.values())

    @property
    def is_good(self) -> bool:
        """Whether the run lost no round, left nothing behind, and its model is bit-identical."""
        return self.same_bits and not (self.rounds_lost or self.left_processes or self.left_files)


def run(setup: Setup, schedule: Sequence[ChaosFault], seconds: float, look: Callable[[ChaosProgress], None]) -> Outcome:
    """Run for `seconds` seconds under the scheduled faults; `look` gets the progress."""
    before = _memory_files()
    progress = ChaosProgress(planned=len(schedule), seconds=seconds)
    lab = Lab.up(nodes=setup.processes, rate=setup.rate, name=setup.lab)
    try:
        with _started(setup) as process:
            running = _ChaosRun(setup, process, progress, look)
            if not setup.early:
                running.wait_for_first_round()
            with contextlib.closing(Disturbing(lab, setup.rate, setup.seed)) as disturbing:
                running.disturb(disturbing, schedule, seconds)
                running.stop()
    finally:
        left = lab.down()
    finals = Diaries(setup.folder).finals()
    expected = undisturbed(setup, progress.rounds)
    same = bool(finals) and all(model.tobytes() == expected for model in finals.values())
    after_kills = [progress.after(at) or 0.0 for at in running.root_kills]
    return Outcome(
        scheme=setup.shape or "striped", kind=setup.kind, workers=setup.workers, seconds=progress.elapsed,
        rounds=progress.rounds, rounds_lost=progress.lost, rounds_again=progress.again, faults=dict(progress.faults),
        median_round=statistics.median(progress.pauses() or [0.0]), longest_pause=max(progress.pauses(), default=0.0),
        root_kills=len(running.root_kills), longest_after_root_kill=max(after_kills, default=0.0), finished=len(finals),
        same_bits=same, left_processes=left, left_files=len(_memory_files() - before),
    )  # fmt: skip


@contextlib.contextmanager
def _started(setup: Setup) -> Iterator[subprocess.Popen[bytes]]:
    command = setup.command("--lab", "--lab-name", setup.lab, "--restart", folder=setup.folder)
    with (setup.folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
            process.wait()


class _ChaosRun:
    """A run that has started: its diaries are read, its progress shown, and faults injected."""

    def __init__(
        self, setup: Setup, process: subprocess.Popen[bytes], progress: ChaosProgress,
        look: Callable[[ChaosProgress], None],
    ) -> None:  # fmt: skip
        self._process = process
        self._progress = progress
        self._look = look
        self._log = setup.folder / "log"
        self._diaries = Diaries(setup.folder)
        self.root_kills: list[float] = []  # when the leader was killed

    def _watch(self, *, may_end: bool = False) -> None:
        """Take what ranks recorded, and show it; an end of the run is an error unless it may end."""
        for done in self._diaries.news():
            self._progress.add(done)
        self._look(self._progress)
        code = self._process.poll()
        if code is not None and not (may_end and code == 0):
            words = self._log.read_text(errors="replace").splitlines()[-5:]
            raise CodedReduceError(
                f"the run ended with exit code {code} after round {self._progress.rounds}; its last lines "
                f"({self._log}): " + " | ".join(words)
            )
        time.sleep(LOOK_EVERY)

    def wait_for_first_round(self) -> None:
        """Wait until any rank has finished a round."""
        deadline = time.monotonic() + FIRST_WITHIN
        while not self._progress.rounds:
            self._watch()
            if time.monotonic() > deadline:
                raise CodedReduceError(f"no round ended within {FIRST_WITHIN:g} s; see {self._log}")

    def disturb(self, disturbing: Disturbing, schedule: Sequence[ChaosFault], seconds: float) -> None:
        """Inject the scheduled faults for `seconds` seconds, then end all of them and wait a little."""
        begin = time.monotonic()
        coming = sorted(schedule, key=lambda fault: fault.at)
        going: list[ChaosFault] = []
        progress = self._progress
        try:
            while (now := time.monotonic() - begin) < seconds:
                progress.elapsed = now
                while coming and coming[0].at <= now:
                    fault = coming.pop(0)
                    if disturbing.begin(fault):
                        progress.faults[fault.kind] += 1
                        going.append(fault)
                        if fault.kind == "kill" and progress.leader in fault.nodes:
                            self.root_kills.append(time.monotonic())
                for fault in [one for one in going if one.until <= now]:
                    going.remove(fault)
                    disturbing.end(fault)
                progress.wrong = dict(disturbing.wrong())
                self._watch()
        finally:
            disturbing.restore()
        progress.wrong = {}
        calm_until = time.monotonic() + CALM_BEFORE_END
        while time.monotonic() < calm_until:
            self._watch()

    def stop(self) -> None:
        """Make all processes stop, and wait until the run is over."""
        self._diaries.stop()
        deadline = time.monotonic() + STOPS_WITHIN
        while self._process.poll() is None:
            self._watch(may_end=True)
            if time.monotonic() > deadline:
                raise CodedReduceError(f"the run did not end within {STOPS_WITHIN:g} s; see {self._log}")
        self._watch(may_end=True)


def undisturbed(setup: Setup, rounds: int) -> bytes:
    """The model of the same training after `rounds` rounds, without lab or faults.

    In NumPy this process evaluates every gradient directly from the plan; in PyTorch a fault-free run does.
    """
    if setup.kind == "numpy":
        return reference_run(numpy_job(setup.scheme(), rounds), rounds)[0].tobytes()
    folder = setup.folder / "undisturbed"
    folder.mkdir(exist_ok=True)
    command = setup.command(folder=folder, rounds=rounds)
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    found = {model.tobytes() for model in Diaries(folder).finals().values()}
    if done.returncode or len(found) != 1:
        raise CodedReduceError(f"the fault-free run failed: {(done.stdout + done.stderr)[-1000:]}")
    return found.pop()


def _memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("codedreduce")}
