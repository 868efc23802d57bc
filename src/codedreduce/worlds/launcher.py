"""Starts a script once for each process of a run, and looks after them until the run is over.

Over a tree it is over when the root has ended. In stripes any rank may be the one that leads when the run ends, and may
have more to do then (save, evaluate) than the others: it is over when all have ended. Rank 0 leads unless it died or
left: if it never did, the others have a moment after it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.worlds.gpu_sharing import sharing_gpus
from codedreduce.worlds.output import Output
from codedreduce.worlds.placement import Placement, Starter
from codedreduce.worlds.private import tidy
from codedreduce.worlds.reasons import Reasons
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
from codedreduce.worlds.showing import Show
from codedreduce.worlds.telling import What, Word

#: Seconds that the rest have to leave when the run is over, and that the last words of a failed one may take.
GRACE = 5.0
LAST_WORDS = 0.2

#: Who was started so many seconds before the first was through may have come too late to find anybody.
LATE = 60.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started: a command in so many processes, ranks 0 to `count` less one.

    All on this machine, or where a placement says. Over a tree rank 0 is the `root`. `at_first` are started, the
    others may be by hand. `times` bounds how often processes that died are started again: None does not, 0 is never;
    `only_lost` are those that were killed, and not those that ended with an error.
    Told to end by SIGTERM, all have `grace` seconds to hand over. The first interrupt is rank 0's to end the run by,
    or with `ends_at_interrupt` ends all at once, and is raised.
    """

    command: Sequence[str]
    count: int
    variables: Mapping[str, str] = field(default_factory=dict)
    has_root: bool = False
    at_first: int | None = None
    port: int = 0
    placement: Placement | None = None
    times: int | None = 0
    only_lost: bool = False
    grace: float = 30.0
    ends_at_interrupt: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"a run needs at least one process, got {self.count}")
        if self.at_first is not None and not 1 <= self.at_first <= self.count:
            raise UsageError(f"of {self.count} processes 1 to {self.count} are started at first, not {self.at_first}")
        if self.placement is not None and len(self.placement.addresses) != self.count:
            raise UsageError(f"{self.count} processes need as many places, got {len(self.placement.addresses)}")

    @property
    def places(self) -> Placement:
        """Where they are."""
        return self.placement or Placement.here(self.count)

    def environment(self, run: str) -> dict[str, str]:
        """What all processes are told."""
        said = {
            "WORLD_SIZE": str(self.count), **self.places.meets_at(self.port), "CODEDREDUCE_RUN": run,
            "CODEDREDUCE_GRACE": f"{self.grace:g}",
        }  # fmt: skip
        return {**said, **self.variables}

    def names_of(self, rank: int) -> dict[str, str]:
        """What a process is told of itself, as torchrun does."""
        return {"RANK": str(rank), **self.places.names_of(rank)}

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


#: Told what processes tell beside what they print.
Hear = Callable[[Word], None]


def launch(what: Launch, show: Show, hear: Hear = lambda word: None) -> None:
    """Run it; `show` gets what the processes print. An error says why it failed, once for all that say the same."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    processes = what.places.starter()
    output = Output(show)
    try:
        said = what.environment(run)
        with sharing_gpus(what.places.here_alone, {**os.environ, **said}, lambda words: show.note(0, words)) as told:
            try:
                _LookingAfter(what, processes, output, {**said, **told}, hear).until_it_is_over()
            finally:
                processes.end(0.0)
    finally:
        output.close()
        tidy()


class _LookingAfter:
    """What a launcher knows of its processes, and does about them."""

    def __init__(
        self, what: Launch, processes: Starter, output: Output, variables: dict[str, str], hear: Hear
    ) -> None:  # fmt: skip
        self._what = what
        self._processes = processes
        self._output = output
        self._variables = variables
        self._hear = hear
        self._reasons = Reasons(what.count)
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
        self._listen()
        if self._failure is not None:
            raise self._reasons.of_all() or self._failure
        if self._told_to_end:
            raise SystemExit(128 + signal.SIGTERM)
        if self._first_through is not None and not self._interrupts:
            self._reasons.check_that_some_trained()
        if self._first_through is None:
            raise CodedReduceError("all processes were killed or have left before the run was over")

    # Starting

    def _start(self, rank: int) -> None:
        times = self._restarts.times(rank)
        again = {"CODEDREDUCE_RESTARTED": str(times)} if times else {}
        usual = {"OMP_NUM_THREADS": "1", **os.environ} if self._what.places.inherits else {}
        environment = {
            **usual, "PYTHONUNBUFFERED": "1", **self._variables, **self._secret, **self._what.names_of(rank), **again,
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
        self._output.show.note(0, f"(more processes may join: {' '.join(words)} {' '.join(self._what.command)})")
        if VARIABLE in self._secret:
            self._output.show.note(0, f"(with the secret that this user has here: {self._how_to_have_it()})")

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
        ended = self._processes.newly_ended()
        self._listen()
        for rank, code in ended:
            self._judge(rank, code, lived=time.monotonic() - self._began.pop(rank))
        self._start_again()
        if self._is_awaited_in_vain():
            self._end_with(self._reasons.ended_before_it_came(), LAST_WORDS)

    def _listen(self) -> None:
        """Take what processes have told."""
        for word in self._processes.take_told():
            if word.what is What.LEAVES:
                self._left.add(word.rank)
            else:
                self._reasons.hear(word)
            self._hear(word)

    def _is_awaited_in_vain(self) -> bool:
        """Whether a process has ended well without coming to where the others wait for it."""
        needs_all = not self._what.has_root and "CODEDREDUCE_LEAST" not in self._variables
        is_open = self._failure is None and not self._told_to_end and not self._interrupts
        return needs_all and is_open and self._reasons.some_wait_in_vain

    def _patience(self) -> float:
        return max(0.0, min([0.1, *(at - time.monotonic() for at in self._due.values())]))

    def _judge(self, rank: int, code: int, lived: float) -> None:
        """Who failed or was killed is started again; else it ends the run if it failed, and is missed if killed."""
        if self._told_to_end or self._failure is not None:
            return
        if code == 0 and rank not in self._left:
            self._reasons.ended_well(rank)
            self._is_through(rank)
            return
        if rank == 0 and not self._what.has_root:
            self._output.show.lost_first()
        self._zero_was_away |= rank == 0
        if code == 0:
            self._output.show.note(rank, "(left on purpose; the run goes on without it)")
            return
        how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        how = self._reasons.said_by(rank) or how
        if self._first_through is not None:
            self._judge_after_the_end(rank, code, how)
            return
        try:
            may_help = not self._interrupts and (code < 0 or not self._what.only_lost)
            pause = self._restarts.pause_after(rank, lived) if may_help else None
            if pause is not None:
                self._output.show.last_words(rank)
        except CodedReduceError as error:
            self._output.show.last_words(rank)
            self._end_with(error, LAST_WORDS)
            return
        if pause is not None:
            self._due[rank] = time.monotonic() + pause
            self._output.show.note(rank, f"({how}; started again, the {ordinal(self._restarts.times(rank))} time)")
        elif code > 0 or (rank == 0 and self._what.has_root):
            self._fail(rank, code)
        else:
            self._output.show.note(rank, f"({how}; the run goes on without it)")

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
            self._output.show.note(rank, f"({how}, after the run was over)")

    def _fail(self, rank: int, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if (about := self._reasons.blame(rank)) is not None:
            self._output.show.last_words(about)
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
            stopped = self._processes.is_stopped
            if all(begin > begun_late or stopped(rank) for rank, begin in self._began.items()):
                self._deadline = now + 3 * GRACE
        return self._deadline is not None and now > self._deadline

    def _interrupt(self) -> None:
        """The first Ctrl-C is rank 0's to end the run by, or whoever's is left; the second ends it at once."""
        self._interrupts += 1
        if self._what.ends_at_interrupt:
            raise KeyboardInterrupt
        if self._interrupts > 1:
            raise CodedReduceError("interrupted")
        self._due.clear()
        for rank in [0] if 0 in self._began else list(self._began):
            self._processes.signal(rank, signal.SIGINT)

    def _tell_others_to_end(self) -> None:
        self._told_others = True
        self._due.clear()
        self._deadline = time.monotonic() + self._what.grace
        for rank in self._began:
            self._processes.signal(rank, signal.SIGTERM)

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


def python_command(script: str, arguments: Sequence[str], *, is_module: bool = False) -> list[str]:
    """How to run a script, or a module."""
    if is_module:
        if not _can_be_found(script):
            raise UsageError(f"there is no module {script!r}, seen from {os.getcwd()}")
        return [sys.executable, "-m", script, *arguments]
    if not os.path.isfile(script):
        hint = f"; for a module write -m {script}" if not script.endswith(".py") and _can_be_found(script) else ""
        raise UsageError(f"there is no script {script!r}{hint}")
    return [sys.executable, script, *arguments]


def _can_be_found(module: str) -> bool:
    """Whether there is such a module, without running anything of it."""
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    for name in module.split("."):
        if not name or path is None:
            return False
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None:
            return False
        path = found.submodule_search_locations
    return True
