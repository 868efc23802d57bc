"""Starts the script of a run once per process, and watches the processes until the run is over.

The run is over when all admitted processes have ended: any of them may save or evaluate without a time limit after the
others have ended. The launcher then asks a process that was too late to be admitted to leave. It reports a process that
it has to kill, or that fails after others have a result, and the run has failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from codedreduce.errors import CodedReduceError, Interrupted, UsageError
from codedreduce.launch.gpu_sharing import sharing_gpus
from codedreduce.launch.placement import Placement, Starter
from codedreduce.launch.progress import Progress
from codedreduce.launch.reasons import Reasons, named
from codedreduce.launch.showing import Output, Show
from codedreduce.process.private_folder import tidy
from codedreduce.process.restarts import Restarts, ordinal
from codedreduce.process.secrets import (
    FILE_VARIABLE,
    INSECURE_VARIABLE,
    VARIABLE,
    Secret,
    default_file,
    find_secret,
    is_insecure,
)
from codedreduce.process.telling import What, Word
from codedreduce.process.termination import TOLD_BY
from codedreduce.timing import TIMING, Timing


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started: a command in `count` processes, ranks 0 to `count` - 1.

    All processes are on this host, or where `placement` puts them. Over a tree rank 0 is the root (`has_root`).
    `at_first` processes are started; users may start the others by hand. `times` limits the restarts of failed
    processes (None: no limit, 0: no restarts). With `only_lost` killed processes are restarted, but not those that
    ended with an error. After SIGTERM or SIGHUP all have `grace` seconds to hand over. At the first interrupt rank 0
    ends the run; with `ends_at_interrupt` it ends all processes at once, and is raised.
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
    timing: Timing = TIMING

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"a run needs at least one process, got {self.count}")
        if self.at_first is not None and not 1 <= self.at_first <= self.count:
            raise UsageError(f"of {self.count} processes 1 to {self.count} can start at first, not {self.at_first}")
        if self.placement is not None and len(self.placement.addresses) != self.count:
            raise UsageError(f"{self.count} processes need as many addresses, got {len(self.placement.addresses)}")

    @property
    def places(self) -> Placement:
        """The placement of the processes; the default is this host."""
        return self.placement or Placement.here(self.count)

    def environment(self, run: str) -> dict[str, str]:
        """Variables for all processes."""
        said = {
            "WORLD_SIZE": str(self.count), **self.places.meets_at(self.port), "CODEDREDUCE_RUN": run,
            "CODEDREDUCE_GRACE": f"{self.grace:g}",
        }  # fmt: skip
        if self.times != 0 and not self.only_lost:
            said["CODEDREDUCE_RESTARTS"] = "1"
        return {**said, **self.variables}

    def names_of(self, rank: int) -> dict[str, str]:
        """Variables about a process itself, as torchrun sets them."""
        return {"RANK": str(rank), **self.places.names_of(rank)}

    @property
    def may_grow(self) -> bool:
        """Whether processes that users start by hand may join."""
        return self.at_first is not None and self.at_first < self.count

    def secret(self) -> dict[str, str]:
        """Further variables, for the processes only: the user's secret if one is set, else a new one for this run.

        Processes that users start by hand have the user's secret, so a run that may grow uses that.
        """
        said = {**os.environ, **self.variables}
        if is_insecure(said):
            return {INSECURE_VARIABLE: "1"}
        given = bool(said.get(VARIABLE) or said.get(FILE_VARIABLE)) or self.may_grow
        found = find_secret(said, make=True) if given else None
        return {VARIABLE: (found or Secret.fresh()).reveal()}


#: Receives the reports of processes, apart from their output.
Hear = Callable[[Word], None]


def launch(what: Launch, show: Show, hear: Hear = lambda word: None) -> None:
    """Run it; `show` gets the output. An error states why the run failed; equal errors of several ranks are one."""
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    processes = what.places.starter()
    output = Output(show)
    try:
        said = what.environment(run)
        with sharing_gpus(
            what.places.here_alone, {**os.environ, **said}, lambda words: output.show.note(0, words)
        ) as told:
            try:
                _LookingAfter(what, processes, output, {**said, **told}, hear).until_it_is_over()
            finally:
                processes.end(0.0)
    finally:
        output.close()
        tidy()


class _LookingAfter:
    """Watches the processes of a run, and reacts to their reports and to their end."""

    def __init__(
        self, what: Launch, processes: Starter, output: Output, variables: dict[str, str], hear: Hear
    ) -> None:  # fmt: skip
        self._what = what
        self._processes = processes
        self._output = output
        self._variables = variables
        self._hear = hear
        self._reasons = Reasons(what.count)
        self._progress = Progress()
        self._secret = what.secret()
        self._timing = what.timing
        self._restarts = Restarts(what.times)
        self._began: dict[int, float] = {}  # start times of the processes that run
        self._due: dict[int, float] = {}  # restart times of failed processes
        self._left: set[int] = set()  # ranks that left on purpose
        self._some_ended = False  # without an error: there is a result, and no restarts
        self._unfinished: dict[int, str] = {}  # how each rank ended that lost its work after the training
        self._is_lost = False  # an unfinished rank: the run has failed, and waits for ranks that save
        self._zero_was_away = False
        self._deadline: float | None = None
        self._failure: CodedReduceError | None = None
        self._interrupted = ""  # in which round
        self._signalled: set[int] = set()  # ranks that got the interrupt
        self._told_to_end = 0  # by which signal
        self._told_others = False

    def until_it_is_over(self) -> None:
        """Start all, and raise if the run fails."""
        with self._told_by_signal():
            for rank in range(self._what.at_first or self._what.count):
                self._start(rank)
            self._say_how_to_join()
            while True:
                try:
                    if self._is_over():
                        break
                    self._look()
                except KeyboardInterrupt:
                    self._interrupt()
            self._output.pass_on_rest()
        self._listen()
        self._raise_what_failed()

    def _raise_what_failed(self) -> None:
        """Raise the error of a run that is over: the first of these that applies."""
        if self._failure is not None:
            raise self._reasons.of_all() or self._failure
        if self._interrupted:
            others = "rank 0" if self._signalled == {0} else "the others"
            killed = f"; {self._killed(f'when {others} had')}" if self._running else ""
            raise Interrupted(self._where_interrupted() + killed)
        if self._told_to_end:
            if self._running:
                self._output.show.note(min(self._running), f"({self._killed(f'within {self._what.grace:g} s')})")
            raise SystemExit(128 + self._told_to_end)
        if self._unfinished:
            raise self._what_is_lost()
        if self._running:
            raise CodedReduceError(self._killed("when all others had"))
        if not self._some_ended:
            raise CodedReduceError("all processes were killed or have left before the run was over")
        self._reasons.check_that_some_trained()

    def _killed(self, when: str) -> str:
        """A text about the processes that are killed now."""
        left = self._running
        return f"{named(left)} had not ended {when}, and {'were' if len(left) > 1 else 'was'} killed"

    def _what_is_lost(self) -> CodedReduceError:
        """The error of the lowest rank that did not finish the script."""
        rank = min(self._unfinished)
        if self._reasons.said_by(rank):
            return self._reasons.of_all() or CodedReduceError(self._reasons.said_by(rank))
        words = "; its last words are above" if "exit code" in self._unfinished[rank] else " after the training"
        return CodedReduceError(f"rank {rank} {self._unfinished[rank]}{words}")

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
        self._progress.is_new(rank)

    def _start_again(self) -> None:
        now = time.monotonic()
        for rank in [rank for rank, at in self._due.items() if at <= now]:
            del self._due[rank]
            self._start(rank)

    def _say_how_to_join(self) -> None:
        """Show the variables for processes that are started by hand."""
        first = self._what.at_first
        if first is None or not self._what.may_grow:
            return
        ranks = str(first) if first + 1 == self._what.count else f"{first}..{self._what.count - 1}"
        words = [f"RANK={ranks}", *(f"{name}={value}" for name, value in self._variables.items())]
        self._output.show.note(0, f"(more processes may join: {' '.join(words)} {' '.join(self._what.command)})")
        if VARIABLE in self._secret:
            self._output.show.note(0, f"(with this user's secret: {self._how_to_have_it()})")

    def _how_to_have_it(self) -> str:
        """Where the secret is found, without the secret itself."""
        if os.environ.get(VARIABLE):
            return f"as {VARIABLE}"
        return f"{FILE_VARIABLE}={os.environ.get(FILE_VARIABLE) or default_file()}, copied to other hosts"

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
            self._end_with(self._reasons.ended_before_it_came(), self._timing.last_output)

    def _listen(self) -> None:
        """Take the reports of processes."""
        for word in self._processes.take_told():
            if word.what is What.LEAVES:
                self._left.add(word.rank)
            else:
                self._reasons.hear(word)
                self._progress.hear(word)
                if word.what is What.ADMITTED and not self._is_lost:  # the run continues with another training
                    self._unfinished.clear()
            self._hear(word)

    def _is_awaited_in_vain(self) -> bool:
        """Whether a process has ended without an error before the training in which the others wait for it."""
        needs_all = not self._what.has_root and "CODEDREDUCE_LEAST" not in self._variables
        is_open = self._failure is None and not self._told_to_end and not self._interrupted
        return needs_all and is_open and self._reasons.some_wait_in_vain

    def _patience(self) -> float:
        return max(0.0, min([0.1, *(at - time.monotonic() for at in self._due.values())]))

    def _judge(self, rank: int, code: int, lived: float) -> None:
        """Restart a process that failed or was killed; without restarts an error ends the run, a kill does not."""
        if self._told_to_end or self._failure is not None:
            return
        if self._interrupted:
            self._judge_interrupted(rank, code)
            return
        if code == 0 and rank not in self._left:
            self._ended_well(rank)
            return
        if rank == 0 and not self._what.has_root:
            self._output.show.lost_first()
        self._zero_was_away |= rank == 0
        if code == 0:
            self._output.show.note(rank, "(left on purpose; the run goes on without it)")
            return
        how = _how_it_ended(code)
        if self._progress.has_trained(rank) and (code > 0 or self._progress.has_led(rank)):
            self._unfinished[rank] = how
        how = self._reasons.said_by(rank) or how.removeprefix("was ")
        if self._some_ended:
            self._judge_after_the_end(rank, code, how)
        else:
            self._judge_loss(rank, code, how, lived)

    def _judge_loss(self, rank: int, code: int, how: str, lived: float) -> None:
        """A process has failed or was killed, and no process has a result."""
        try:
            may_help = code < 0 or not self._what.only_lost
            failed_in = self._progress.reached(rank) if code > 0 else 0
            pause = self._restarts.pause_after(rank, lived, failed_in) if may_help else None
            if pause is not None:
                self._output.show.last_words(rank)
        except CodedReduceError as error:
            self._output.show.last_words(rank)
            self._end_with(error, self._timing.last_output)
            return
        if pause is not None:
            self._due[rank] = time.monotonic() + pause
            self._output.show.note(rank, f"({how}; started again, the {ordinal(self._restarts.times(rank))} time)")
        elif rank in self._unfinished and self._some_save and (code > 0 or self._what.has_root):
            self._is_lost = True
            self._show_last_words(rank)
        elif code > 0 or (rank == 0 and self._what.has_root):
            self._fail(rank, code)
        else:
            self._output.show.note(rank, f"({how}; the run goes on without it)")

    def _ended_well(self, rank: int) -> None:
        """A process has finished the script. A worker of a tree counts only once the root has trained."""
        self._reasons.ended_well(rank)
        self._unfinished.pop(rank, None)
        root_has_trained = 0 in self._unfinished or self._progress.has_trained(0)
        self._some_ended |= rank == 0 or not self._what.has_root or root_has_trained

    def _judge_after_the_end(self, rank: int, code: int, how: str) -> None:
        """Others have a result, and may still save it: an error of this process does not end them.

        A process that was too late, or behind when the run ended, has not failed; an error in the script is a failure.
        """
        if code > 0 and self._progress.was_admitted(rank) and self._reasons.blame(rank) == rank:
            self._unfinished[rank] = _how_it_ended(code)
        if rank in self._unfinished:
            self._output.show.last_words(rank)
        else:
            self._output.show.note(rank, f"({how}, after the run was over)")

    def _show_last_words(self, rank: int) -> None:
        """Show the last output of the rank that caused the failure, if the process has not reported a reason."""
        if (about := self._reasons.blame(rank)) is not None:
            self._output.show.last_words(about)

    def _fail(self, rank: int, code: int) -> None:
        self._show_last_words(rank)
        error = CodedReduceError(f"rank {rank} {_how_it_ended(code)}; its last words are above")
        self._end_with(error, self._timing.last_output if rank else self._timing.failure_grace)

    def _end_with(self, error: CodedReduceError, grace: float) -> None:
        """The run has failed. Within the grace period other ranks may report reasons, too."""
        self._failure = error
        self._deadline = time.monotonic() + grace
        self._due.clear()

    # The end

    def _is_over(self) -> bool:
        if self._some_ended:
            self._due.clear()
        if not (self._running if self._is_ending else self._began) and not self._due:
            return True
        if self._deadline is None and self._some_ended and not self._interrupted:
            self._tell_late_ones_to_leave()
            self._is_lost |= bool(self._unfinished)
        if self._is_lost and self._deadline is None and not self._interrupted and not self._some_save:
            self._deadline = time.monotonic() + self._timing.failure_grace
        return self._deadline is not None and time.monotonic() > self._deadline

    @property
    def _is_ending(self) -> bool:
        return self._some_ended or bool(self._interrupted or self._told_to_end) or self._failure is not None

    @property
    def _running(self) -> set[int]:
        """Ranks with a process. Others still wait for a place or a host, and need none once the run is over."""
        return {rank for rank in self._began if not self._processes.is_waiting(rank)}

    @property
    def _some_save(self) -> bool:
        """Whether a process has finished the training, and still runs the script."""
        return any(self._progress.has_trained(rank) for rank in self._began)

    def _tell_late_ones_to_leave(self) -> None:
        """Ask late processes to leave, once no process is left that was admitted and is not paused.

        Without any admitted process there was no training to be late for.
        """
        if not self._progress.some_admitted:
            return
        paused = {rank for rank in self._running if self._processes.is_stopped(rank)}
        if any(self._progress.was_admitted(rank) for rank in self._running - paused):
            return
        self._deadline = time.monotonic() + 3 * self._timing.failure_grace
        for rank in self._running - paused:
            self._processes.signal(rank, signal.SIGTERM)

    def _interrupt(self) -> None:
        """The first Ctrl-C goes to rank 0, which ends the run, or to all if another may lead; the second ends all."""
        if self._what.ends_at_interrupt:
            raise KeyboardInterrupt
        if self._interrupted:
            raise Interrupted(f"{self._where_interrupted()}; {self._killed('at the second')}")
        self._listen()
        if not self._progress.some_admitted:
            self._interrupted = "before round 1"
        elif self._progress.all_have_trained(self._began):
            self._interrupted = "after round"
        else:
            self._interrupted = "in round"
        self._due.clear()
        paused = {rank for rank in self._running if self._processes.is_stopped(rank)}
        leads = 0 in self._began and not self._zero_was_away and self._progress.was_admitted(0)
        self._signalled = {0} if leads and 0 not in paused else self._running - paused
        for rank in self._signalled:
            self._processes.signal(rank, signal.SIGINT)

    def _judge_interrupted(self, rank: int, code: int) -> None:
        """Ranks that got the interrupt have no time limit, to save; then the others have a grace period to end."""
        if rank in self._signalled and code > 0 and code != 128 + signal.SIGINT:
            self._output.show.note(rank, f"({self._reasons.said_by(rank) or _how_it_ended(code)})")
        if not self._signalled & self._running and self._deadline is None:
            self._deadline = time.monotonic() + self._timing.failure_grace

    def _where_interrupted(self) -> str:
        number = self._progress.last_round
        if not self._interrupted.endswith("round"):
            return f"interrupted {self._interrupted}"
        return f"interrupted {self._interrupted} {number}" if number else "interrupted"

    def _tell_others_to_end(self) -> None:
        self._told_others = True
        self._due.clear()
        self._deadline = time.monotonic() + self._what.grace
        for rank in self._began:
            self._processes.signal(rank, signal.SIGTERM)

    @contextlib.contextmanager
    def _told_by_signal(self) -> Iterator[None]:
        """Pass SIGTERM and SIGHUP on to all, which then have a grace period to hand over. A second signal ends them.

        A SIGHUP that is ignored stays ignored, as under nohup.
        """

        def end(number: int, frame: FrameType | None) -> None:
            if self._told_to_end:
                raise SystemExit(128 + number)
            self._told_to_end = number

        with contextlib.ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():  # only it receives signals
                for one in TOLD_BY:
                    if signal.getsignal(one) is not signal.SIG_IGN:
                        stack.callback(signal.signal, one, signal.signal(one, end))
            yield


def _how_it_ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
