"""The remote end of an ssh connection: starts processes on this host, passes on their output and reports, ends them.

    python -m codedreduce.launch.ssh.agent

It takes commands on its standard input, and has no arguments. When that input ends, or is silent for a minute, the
kernel ends all processes that the agent has started, whatever happened to the launcher, to ssh or to the network.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from typing import IO

import msgspec

from codedreduce.errors import UsageError
from codedreduce.launch.ssh.reaching import Listening, unreached
from codedreduce.launch.ssh.words import (
    MARK,
    SILENCE,
    AgentAnswer,
    AgentHello,
    Close,
    Enter,
    FromAgent,
    FromLauncher,
    Heard,
    Listen,
    Printed,
    ProcessEnded,
    Reach,
    Signal,
    Spawn,
    Stopped,
    from_launcher,
    line_of,
    own_version,
)
from codedreduce.process.processes import Processes

#: Seconds between two checks for processes that have ended or are paused.
LOOK_EVERY = 0.1


class Agent:
    """Executes commands from one pipe, and writes the results to another."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._unread = b""
        self._processes = Processes()
        self._printed: dict[int, IO[bytes]] = {}
        self._stopped: set[int] = set()
        self._listening = Listening()
        self._selector = selectors.DefaultSelector()
        self._selector.register(reads, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the launcher has ended; then end all processes."""
        self._say(AgentHello(own_version(), _address()), ahead=MARK)
        try:
            while True:
                for key, _ in self._selector.select(timeout=LOOK_EVERY):
                    if key.data is not None:
                        self._pass_on(key.data)
                    elif not self._hear():
                        return
                self._look()
        finally:
            self._listening.close()
            self._processes.end(0.0)

    def _say(self, word: FromAgent, ahead: bytes = b"") -> None:
        data = memoryview(ahead + line_of(word))
        while data:
            data = data[os.write(self._writes, data) :]

    def _hear(self) -> bool:
        """Execute the commands that have arrived; return whether more may follow."""
        data = os.read(self._reads, 1 << 16)
        signal.alarm(SILENCE)  # ends this process, and with it all others
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._do(from_launcher(line))
        return bool(data)

    def _do(self, word: FromLauncher) -> None:
        if isinstance(word, Spawn):
            self._spawn(word)
        elif isinstance(word, Signal):
            if word.number in self._printed:
                self._processes.signal(word.number, word.what)
        elif isinstance(word, Enter):
            self._say(_enter(word.folder))
        elif isinstance(word, Listen):
            self._say(self._listening.at(word.port))
        elif isinstance(word, Reach):
            self._say(AgentAnswer(unreached=unreached(word.places)))
        elif isinstance(word, Close):
            self._listening.close()
            self._say(AgentAnswer())

    def _spawn(self, word: Spawn) -> None:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **word.environment}
        try:
            printed = self._processes.spawn(word.number, word.command, environment)
        except UsageError as error:
            self._say(ProcessEnded(word.number, 1, str(error)))
            return
        os.set_blocking(printed.fileno(), False)
        self._printed[word.number] = printed
        self._selector.register(printed, selectors.EVENT_READ, word.number)

    def _pass_on(self, number: int) -> None:
        printed = self._printed[number]
        data = printed.read()
        if data:
            self._say(Printed(number, data))
        elif data == b"":
            self._selector.unregister(printed)

    def _look(self) -> None:
        for word in self._processes.take_told():
            self._say(Heard(word))
        for number, code in self._processes.newly_ended():
            for word in self._processes.take_told():
                self._say(Heard(word))
            self._forget(number)
            self._say(ProcessEnded(number, code))
        for number in self._printed:
            is_stopped = self._processes.is_stopped(number)
            if is_stopped != (number in self._stopped):
                self._stopped ^= {number}
                self._say(Stopped(number, is_stopped))

    def _forget(self, number: int) -> None:
        """Pass on the rest of its output; later output of its own children is dropped."""
        printed = self._printed[number]
        if printed in self._selector.get_map():
            self._pass_on(number)
        if printed in self._selector.get_map():
            self._selector.unregister(printed)
        del self._printed[number]
        printed.close()
        self._stopped.discard(number)


def _enter(folder: str) -> AgentAnswer:
    try:
        os.chdir(folder)
    except OSError as error:
        return AgentAnswer(refused=f"cannot use the working folder {folder} ({(error.strerror or '').lower()})")
    return AgentAnswer()


def _address() -> str:
    """The address at which ssh reached this host, from SSH_CONNECTION: client, its port, server, its port."""
    said = os.environ.get("SSH_CONNECTION", "").split()
    return said[2] if len(said) == 4 else ""


def main() -> None:
    """Serve the process that started this one, over standard input and output."""
    reads, writes = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # so that stray output is not read as a message
    signal.alarm(SILENCE)
    try:
        Agent(reads, writes).run()
    except (BrokenPipeError, msgspec.MsgspecError) as error:
        sys.exit(f"codedreduce agent: {error}")


if __name__ == "__main__":
    main()
