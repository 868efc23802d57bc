"""Starts a script once for each process of a run, and looks after them until the run is over.

Over a tree it is over when the root has ended. In stripes any rank may be the one that leads when the run ends, and may
have more to do then (save, evaluate) than the others: it is over when all have ended. Rank 0 leads unless it died or
left: if it never did, the others have a moment after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.worlds.addresses import free_port
from codedreduce.worlds.output import Output, Say
from codedreduce.worlds.private import tidy
from codedreduce.worlds.processes import Processes, is_stopped
from codedreduce.worlds.restarts import Restarts, ordinal
from codedreduce.worlds.secrets import (
    FILE_VARIABLE,
    INSECURE_VARIABLE,
    VARIABLE,
    Secret,
    default_file,
    find_secret,
    is_insecure,
)
from codedreduce.worlds.site import Site, meeting_at

#: Seconds that the rest have to leave when the run is over, and that the last words of a failed one may take.
GRACE = 5.0
LAST_WORDS = 0.2

#: Who was started so many seconds before the first was through may have come too late to find anybody.
LATE = 60.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started: a command in so many processes, ranks 0 to `count` less one.

    All on this machine, or each on its node of a site. Over a tree rank 0 is the `root`. `at_first` are started, the
    others may be by hand. `times` bounds how often processes that died are started again: None does not, 0 is never.
    Told to end by SIGTERM, all have `grace` seconds to hand over.
    """

    command: Sequence[str]
    count: int
    variables: Mapping[str, str] = field(default_factory=dict)
    has_root: bool = False
    at_first: int | None = None
    port: int = 0
    site: Site | None = None
    times: int | None = 0
    grace: float = 30.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"a run needs at least one process, got {self.count}")
        if self.at_first is not None and not 1 <= self.at_first <= self.count:
            raise UsageError(f"of {self.count} processes 1 to {self.count} are started at first, not {self.at_first}")

    def environment(self, run: str) -> dict[str, str]:
        """What all processes are told."""
        if self.site is None:
            host, port = "127.0.0.1", self.port or free_port()
        else:
            host, port = self.site.host, self.port or meeting_at(self.site).port
        said = {
            "WORLD_SIZE": str(self.count), "MASTER_ADDR": host, "MASTER_PORT": str(port), "CODEDREDUCE_RUN": run,
            "CODEDREDUCE_GRACE": f"{self.grace:g}",
        }  # fmt: skip
        if self.site is not None:
            said["CODEDREDUCE_ALSO_AT"] = ",".join(self.site.address(rank) for rank in range(self.count))
        return {**said, **self.variables}

    @property
    def may_grow(self) -> bool:
        """Whether processes may join that are started by hand."""
        return self.at_first is not None and self.at_first < self.count

    def secret(self) -> dict[str, str]:
        """What processes are told beside that, and nobody else: a secret of the run's own, unless there is one.

        Who starts a process by hand has the user's secret, not that of a run.
        """
        said = {**os.environ, **self.variables}
        if is_insecure(said):
            return {INSECURE_VARIABLE: "1"}
        given = bool(said.get(VARIABLE) or said.get(FILE_VARIABLE)) or self.may_grow
        found = find_secret(said, make=True) if given else None
        return {VARIABLE: (found or Secret.fresh()).reveal()}


def launch(what: Launch, say: Say) -> None:
    """Run it; `say(rank, line)` gets what the processes print. An error says who failed."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    processes = Processes(what.site.enter if what.site is not None else None)
    output = Output(say)
    try:
        _LookingAfter(what, processes, output, what.environment(run)).until_it_is_over()
    finally:
        processes.end(0.0)
        output.close()
        tidy()


class _LookingAfter:
    """What a launcher knows of its processes, and does about them."""

    def __init__(self, what: Launch, processes: Processes, output: Output, variables: dict[str, str]) -> None:
        self._what = what
        self._processes = processes
        self._output = output
        self._variables = variables
        self._secret = what.secret()
        self._restarts = Restarts(what.times)
        self._began: dict[int, float] = {}  # the lives of those that run
        self._due: dict[int, float] = {}  # when those that died are started again
        self._left: set[int] = set()  # who left on purpose
        self._first_through: float | None = None
        self._zero_was_away = False
        self._deadline: float | None = None
        self._failure: CodedReduceError | None = None
        self._interrupts = 0
        self._told_to_end = False
        self._told_others = False

    def until_it_is_over(self) -> None:
        """Start all, and raise if the run fails."""
        with self._told_by_signal():
            for rank in range(self._what.at_first or self._what.count):
                self._start(rank)
            self._say_how_to_join()
            while not self._is_over():
                try:
                    self._look()
                except KeyboardInterrupt:
                    self._interrupt()
            self._output.pass_on_rest()
        if self._failure is not None:
            raise self._failure
        if self._told_to_end:
            raise SystemExit(128 + signal.SIGTERM)
        if self._first_through is None:
            raise CodedReduceError("all processes were killed or have left before the run was over")

    # Starting

    def _start(self, rank: int) -> None:
        times = self._restarts.times(rank)
        again = {"CODEDREDUCE_RESTARTED": str(times)} if times else {}
        environment = {
            "OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1", **self._variables, **self._secret,
            "RANK": str(rank), **again,
        }  # fmt: skip
        self._output.add(rank, self._processes.spawn(rank, self._what.command, environment))
        self._began[rank] = time.monotonic()

    def _start_again(self) -> None:
        now = time.monotonic()
        for rank in [rank for rank, at in self._due.items() if at <= now]:
            del self._due[rank]
            self._start(rank)

    def _say_how_to_join(self) -> None:
        """For whoever adds processes by hand."""
        first = self._what.at_first
        if first is None or not self._what.may_grow:
            return
        ranks = str(first) if first + 1 == self._what.count else f"{first}..{self._what.count - 1}"
        words = [f"RANK={ranks}", *(f"{name}={value}" for name, value in self._variables.items())]
        self._output.say(0, f"(more processes may join: {' '.join(words)} {' '.join(self._what.command)})")
        if VARIABLE in self._secret:
            self._output.say(0, f"(with the secret that this user has here: {self._how_to_have_it()})")

    def _how_to_have_it(self) -> str:
        """In words, without saying it."""
        if os.environ.get(VARIABLE):
            return f"as {VARIABLE}"
        return f"{FILE_VARIABLE}={os.environ.get(FILE_VARIABLE) or default_file()}, copied to other machines"

    # Looking

    def _look(self) -> None:
        self._output.pass_on(timeout=self._patience())
        if self._told_to_end and not self._told_others:
            self._tell_others_to_end()
        for rank, code in self._processes.newly_ended():
            self._left |= self._processes.who_left()
            self._judge(rank, code, lived=time.monotonic() - self._began.pop(rank))
        self._start_again()

    def _patience(self) -> float:
        return max(0.0, min([0.1, *(at - time.monotonic() for at in self._due.values())]))

    def _judge(self, rank: int, code: int, lived: float) -> None:
        """Who failed or was killed is started again; else it ends the run if it failed, and is missed if killed."""
        if self._told_to_end or self._failure is not None:
            return
        if code == 0 and rank not in self._left:
            self._is_through(rank)
            return
        self._zero_was_away |= rank == 0
        if code == 0:
            self._output.say(rank, "(left on purpose; the run goes on without it)")
            return
        how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if self._first_through is not None:
            self._judge_after_the_end(rank, code, how)
            return
        try:
            pause = self._restarts.pause_after(rank, lived) if not self._interrupts else None
        except CodedReduceError as error:
            self._end_with(error, LAST_WORDS)
            return
        if pause is not None:
            self._due[rank] = time.monotonic() + pause
            self._output.say(rank, f"({how}; started again, the {ordinal(self._restarts.times(rank))} time)")
        elif code > 0 or (rank == 0 and self._what.has_root):
            self._fail(rank, code)
        else:
            self._output.say(rank, f"({how}; the run goes on without it)")

    def _is_through(self, rank: int) -> None:
        """A process has ended well. On a tree only the root's end is that of the run."""
        if self._first_through is None and (rank == 0 or not self._what.has_root):
            self._first_through = time.monotonic()
        if rank == 0 and (self._what.has_root or not self._zero_was_away):
            self._deadline = time.monotonic() + GRACE

    def _judge_after_the_end(self, rank: int, code: int, how: str) -> None:
        """Others have a result. A process that came too late for it has not failed; one that has more to do may."""
        may_matter = rank == 0 or (self._zero_was_away and not self._what.has_root)
        if self._deadline is None and code > 0 and may_matter and not self._restarts.times(rank):
            self._fail(rank, code)
        else:
            self._output.say(rank, f"({how}, after the run was over)")

    def _fail(self, rank: int, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        error = CodedReduceError(f"rank {rank} {how}; its last words are above")
        self._end_with(error, LAST_WORDS if rank else GRACE)

    def _end_with(self, error: CodedReduceError, grace: float) -> None:
        """The run has failed. The others may say why, too, as far as they know."""
        self._failure = error
        self._deadline = time.monotonic() + grace
        self._due.clear()

    # The end

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._first_through is not None:
            self._due.clear()
        if not self._began and not self._due:
            return True
        if self._deadline is None and self._first_through is not None and not self._what.has_root:
            begun_late = self._first_through - LATE
            pids = self._processes.pids
            if all(begin > begun_late or is_stopped(pids[rank]) for rank, begin in self._began.items()):
                self._deadline = now + 3 * GRACE
        return self._deadline is not None and now > self._deadline

    def _interrupt(self) -> None:
        """The first Ctrl-C is rank 0's to end the run by, or whoever's is left; the second ends it at once."""
        self._interrupts += 1
        if self._interrupts > 1:
            raise CodedReduceError("interrupted")
        self._due.clear()
        for rank in [0] if 0 in self._began else list(self._began):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes.pids[rank], signal.SIGINT)

    def _tell_others_to_end(self) -> None:
        self._told_others = True
        self._due.clear()
        self._deadline = time.monotonic() + self._what.grace
        for rank in self._began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes.pids[rank], signal.SIGTERM)

    @contextlib.contextmanager
    def _told_by_signal(self) -> Iterator[None]:
        """SIGTERM is passed on to all: they have some seconds to hand over and leave. The second ends them at once."""

        def end(number: int, frame: FrameType | None) -> None:
            if self._told_to_end:
                raise SystemExit(128 + number)
            self._told_to_end = True

        try:
            before = signal.signal(signal.SIGTERM, end)
        except ValueError:  # not in the main thread, which alone hears signals
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def python_command(script: str, arguments: Sequence[str]) -> list[str]:
    """How to run a script."""
    if not os.path.isfile(script):
        raise UsageError(f"there is no script {script!r}")
    return [sys.executable, script, *arguments]
