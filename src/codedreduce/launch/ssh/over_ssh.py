"""Starts the processes of a run on connected hosts, and reconnects hosts that were lost."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from codedreduce.errors import UsageError
from codedreduce.launch.ssh.connection import Connection, ConnectionEnded, Hear, close_all
from codedreduce.launch.ssh.words import FromAgent, Heard, Printed, ProcessEnded, Signal, Spawn, Stopped
from codedreduce.process.secrets import FILE_VARIABLE, VARIABLE
from codedreduce.process.telling import PIPE, What, Word

#: Prefixes of variables passed on: options, and what arithmetic depends on, for bit-identical results on all hosts.
HANDED_ON = ("CODEDREDUCE_", "OMP_", "OPENBLAS_", "MKL_", "NPY_", "TORCH_", "PYTORCH_", "CUBLAS_", "NVIDIA_TF32_")

#: Variables that are about this process itself and not about the run.
OWN = (VARIABLE, FILE_VARIABLE, PIPE, "CODEDREDUCE_RESTARTED", "CODEDREDUCE_SSH")

#: Connects to the host of an index, and passes its messages to a callback.
Connect = Callable[[int, Hear], Connection]

#: Seconds between two attempts to reconnect to a host that was lost.
TRY_AGAIN_EVERY = 5.0


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of a launcher's environment that processes on other hosts get, beside the variables it sets.

    >>> handed_on({"CODEDREDUCE_DEBUG": "1", "CODEDREDUCE_SECRET": "x", "OMP_NUM_THREADS": "2", "HOME": "/root"})
    {'CODEDREDUCE_DEBUG': '1', 'OMP_NUM_THREADS': '2'}
    """
    return {name: value for name, value in environment.items() if name.startswith(HANDED_ON) and name not in OWN}


class OverSsh:
    """A `Starter`: `hosts` is the host of each rank. It retries a lost host until the connection is back."""

    def __init__(self, connect: Connect, hosts: tuple[int, ...]) -> None:
        self._connect = connect
        self._hosts = hosts
        self._connections: dict[int, Connection] = {}
        self._came: queue.SimpleQueue[tuple[Connection, FromAgent | ConnectionEnded]] = queue.SimpleQueue()
        self._writes: dict[int, int] = {}  # pipes for the output of each process
        self._stopped: set[int] = set()
        self._told: list[Word] = []
        self._ended: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Spawn]] = {}  # by host: processes to start once it is connected again
        self._is_over = False

    def open(self) -> list[Connection]:
        """Start connecting to all hosts, without waiting for them."""
        for index in sorted(set(self._hosts)):
            self._connections[index] = self._connect(index, self._hear)
        return list(self._connections.values())

    def _hear(self, connection: Connection, word: FromAgent | ConnectionEnded) -> None:
        """In the thread of a connection: pass output on at once, so that a slow reader slows down the connection."""
        if isinstance(word, Printed):
            with contextlib.suppress(OSError, KeyError):
                _write_all(self._writes[word.number], word.data)
        else:
            self._came.put((connection, word))

    # What a launcher asks for

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> IO[bytes]:
        """Run a command on the host of that number; if its connection was lost, after it has reconnected."""
        said = Spawn(number, tuple(command), {**handed_on(os.environ), **environment})
        index = self._hosts[number]
        is_gone = self._connections[index].is_gone  # then all processes of that host are lost, too
        self._take()
        reads, self._writes[number] = os.pipe()
        self._stopped.discard(number)
        with self._lock:
            if not is_gone:
                self._connections[index].say(said)
            elif index in self._waiting:
                self._waiting[index].append(said)
            else:
                self._waiting[index] = [said]
                threading.Thread(target=self._come_back, args=(index,), daemon=True).start()
        return os.fdopen(reads, "rb")

    def _come_back(self, index: int) -> None:
        """In a separate thread: reconnect, and start the processes that wait for this host."""
        while not self._is_over:
            connection = self._connect(index, self._hear)
            try:
                connection.wait_for_hello()
            except UsageError:
                connection.close()
                time.sleep(TRY_AGAIN_EVERY)
                continue
            with self._lock:
                self._connections[index] = connection
                for said in self._waiting.pop(index):
                    connection.say(said)
            return

    def signal(self, number: int, what: int) -> None:
        """Send a signal to a process, if it exists."""
        self._connections[self._hosts[number]].say(Signal(number, int(what)))

    def is_stopped(self, number: int) -> bool:
        """Whether a process is paused."""
        self._take()
        return number in self._stopped

    def is_waiting(self, number: int) -> bool:
        """Whether a process waits for its host to reconnect."""
        with self._lock:
            return any(said.number == number for waiting in self._waiting.values() for said in waiting)

    def take_told(self) -> list[Word]:
        """Reports of processes since the last call."""
        self._take()
        told, self._told = self._told, []
        return told

    def newly_ended(self) -> list[tuple[int, int]]:
        """Processes that have ended since the last call; with a lost host, all its processes."""
        self._take()
        ended, self._ended = self._ended, []
        return ended

    def end(self, grace: float) -> None:
        """Disconnect all hosts. Their processes end at once: those that had time to leave have left."""
        self._is_over = True
        with self._lock:
            is_quiet = close_all(list(self._connections.values()))
        if is_quiet:
            for writes in self._writes.values():
                os.close(writes)
        self._writes.clear()

    # What has come

    def _take(self) -> None:
        while True:
            try:
                connection, word = self._came.get_nowait()
            except queue.Empty:
                return
            if isinstance(word, Heard):
                self._told.append(word.word)
            elif isinstance(word, Stopped):
                self._stopped = self._stopped | {word.number} if word.is_so else self._stopped - {word.number}
            elif isinstance(word, ProcessEnded):
                self._over(word.number, word.code, word.why)
            elif isinstance(word, ConnectionEnded):
                self._lose(connection, word.why)

    def _over(self, number: int, code: int, why: str = "") -> None:
        if number not in self._writes:
            return
        os.close(self._writes.pop(number))
        self._stopped.discard(number)
        if why:
            self._told.append(Word(number, What.ERRS, why))
        self._ended.append((number, code))

    def _lose(self, connection: Connection, why: str) -> None:
        """Report all processes of a lost host as ended: its agent ends them when it hears nothing more."""
        text = f"the connection to {connection.host.name} was lost" + (f": {why}" if why else "")
        for number in list(self._writes):
            if self._connections[self._hosts[number]] is connection:
                self._over(number, -signal.SIGHUP, text)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
