"""Workers forked from this process, also later, when it has threads and sockets that must not be forked.

The first fork, at the very start, is the nursery: a process that only forks workers on request, and reports how they
ended. It stays as this process was then, with one thread and all data loaded, so that a restarted worker starts as the
first one did. It ends with its parent, and the workers with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

from threadpoolctl import threadpool_limits

from codedreduce.errors import CodedReduceError, WorkerFailed
from codedreduce.process.error_lines import wants_tracebacks
from codedreduce.process.processes import Place, die_with_parent
from codedreduce.process.termination import Terminated

#: Timeouts in seconds: for the nursery to end its workers and itself, and to fork a worker on a very busy host.
ENDS_WITHIN, FORKS_WITHIN = 5.0, 60.0

#: Maximum length of a report of an error of a worker.
WORDS = 4096


class Nursery:
    """Each started number gets a process, which calls `place(number)` to move to its place and then `live(number)`."""

    def __init__(self, live: Callable[[int], object], place: Place | None = None) -> None:
        self._pids: dict[int, int] = {}
        self._waiting: set[int] = set()  # numbers that have not been forked yet
        self._alive: set[int] = set()
        self._ended: list[tuple[int, int]] = []
        self._unread = b""
        self._words, words = os.pipe()  # errors that workers raised
        self._socket, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._process = os.fork()
        if not self._process:
            try:
                self._socket.close()
                os.close(self._words)
                _Minding(theirs, words, live, place).until_parent_is_gone(parent)
            finally:
                os._exit(1)
        theirs.close()
        os.close(words)

    @property
    def pids(self) -> dict[int, int]:
        """The id of the latest process of each number."""
        deadline = time.monotonic() + FORKS_WITHIN
        while self._waiting:
            self._hear(max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise CodedReduceError(
                    f"workers {sorted(self._waiting)} could not be started within {FORKS_WITHIN:g} s"
                )
        return dict(self._pids)

    def start(self, number: int) -> None:
        """Fork a worker; a number can be started again once its worker has ended."""
        self._waiting.add(number)
        self._alive.add(number)
        with contextlib.suppress(OSError):  # the nursery has ended; the next read notices that
            self._socket.sendall(f"start {number}\n".encode())

    def raise_what_was_raised(self) -> None:
        """Raise if a worker has raised an error."""
        if select.select([self._words], [], [], 0)[0]:
            number, _, message = os.read(self._words, WORDS).decode(errors="replace").partition("\t")
            if number.isdigit():
                raise WorkerFailed(int(number), message.strip().partition("\n")[0])

    def newly_ended(self) -> list[tuple[int, int]]:
        """Workers that have ended since the last call, with exit codes; negative: the signal that killed it."""
        self._hear(0.0)
        ended, self._ended = self._ended, []
        return ended

    def _hear(self, patience: float) -> None:
        """Take the messages of the nursery: wait for the first one, and take all others that are there."""
        while select.select([self._socket], [], [], patience)[0]:
            patience = 0.0
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            if not data:
                self._lose_all()
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                what, number, value = line.decode().split()
                if what == "started":
                    self._waiting.discard(int(number))
                    self._pids[int(number)] = int(value)
                else:
                    self._alive.discard(int(number))
                    self._ended.append((int(number), int(value)))

    def _lose_all(self) -> None:
        """The nursery has ended, and with it all workers."""
        self._ended += [(number, -signal.SIGKILL) for number in sorted(self._alive)]
        self._alive.clear()
        self._waiting.clear()

    def end(self, grace: float) -> None:
        """Give all workers `grace` seconds to end, then kill the rest."""
        deadline = time.monotonic() + grace
        while self._alive and time.monotonic() < deadline:
            self._hear(max(0.0, deadline - time.monotonic()))
        self._socket.close()
        os.close(self._words)
        deadline = time.monotonic() + ENDS_WITHIN
        while not os.waitpid(self._process, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
                return
            time.sleep(0.002)


class _Minding:
    """The nursery's own process."""

    def __init__(self, pipe: socket.socket, words: int, live: Callable[[int], object], place: Place | None) -> None:
        self._socket = pipe
        self._words = words
        self._live = live
        self._place = place
        self._pids: dict[int, tuple[int, int]] = {}  # by process descriptor: the number, and the process id
        self._unread = b""

    def until_parent_is_gone(self, parent: int) -> None:
        for one in (signal.SIGINT, signal.SIGHUP):  # from a terminal to all processes: the parent decides when to end
            signal.signal(one, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while True:
            for file, _ in poller.poll():
                if file in self._pids:
                    poller.unregister(file)
                    self._reap(file)
                    continue
                data = self._socket.recv(65536)
                if not data:
                    self._end_all()
                    os._exit(0)
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    poller.register(self._fork(int(line.split()[1])), select.POLLIN)

    def _say(self, what: str, number: int, value: int) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(f"{what} {number} {value}\n".encode())

    def _fork(self, number: int) -> int:
        nursery = os.getpid()
        process = os.fork()
        if not process:
            self._be(number, nursery)
        file = os.pidfd_open(process)
        self._pids[file] = (number, process)
        self._say("started", number, process)
        return file

    def _reap(self, file: int) -> None:
        number, process = self._pids.pop(file)
        os.close(file)
        _, status = os.waitpid(process, 0)
        self._say("ended", number, os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        for _, process in self._pids.values():
            os.kill(process, signal.SIGKILL)  # not reaped yet, so no other process has its id
        for _, process in self._pids.values():
            os.waitpid(process, 0)

    def _be(self, number: int, nursery: int) -> None:
        """Run a worker in this process, and then end it; an error goes only into the pipe."""
        code = 1
        try:
            die_with_parent(nursery)
            self._socket.close()
            for file in self._pids:
                os.close(file)
            sys.setswitchinterval(0.0005)  # the thread that talks must not wait for the one that computes
            if self._place is not None:
                self._place(number)
            with threadpool_limits(1):  # one core per worker, or all workers compete for all cores
                self._live(number)
            code = 0
        except Terminated as leaving:
            code = int(leaving.code or 0)
        except BaseException as error:
            if wants_tracebacks():
                print(traceback.format_exc(), file=sys.stderr, end="", flush=True)
            text = f"{type(error).__name__}: {error}".replace("\n", " ")
            os.write(self._words, f"{number}\t{text}\n".encode()[:WORDS])
        finally:
            os._exit(code)
