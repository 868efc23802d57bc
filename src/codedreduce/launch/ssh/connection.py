"""One host over ssh: the connection, commands to its agent, and the answers."""

from __future__ import annotations

import contextlib
import queue
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from codedreduce.errors import UsageError
from codedreduce.launch.ssh.hosts import SshHost
from codedreduce.launch.ssh.words import (
    ALIVE_EVERY,
    MARK,
    AgentAnswer,
    AgentHello,
    Alive,
    Enter,
    FromAgent,
    FromLauncher,
    from_agent,
    line_of,
    own_version,
)

#: Options beside the user's ssh configuration: never prompt, and detect a host that is gone.
OPTIONS = (
    "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o",
    "ServerAliveCountMax=3",
)  # fmt: skip

#: Timeouts in seconds: for ssh to connect and the agent to start, and for an answer.
HELLO_WITHIN, ANSWER_WITHIN = 60.0, 30.0

#: Grace period in seconds for an agent to end its processes when the connection closes.
ENDS_WITHIN = 5.0

#: Messages of ssh or the remote shell, and hints.
HINTS = (
    ("could not resolve hostname", "check the name, or write an address"),
    ("connection refused", "is sshd running there, and at this port?"),
    ("connection timed out", "is it up, and can this host reach its port 22?"),
    ("no route to host", "is it up, and in the same network?"),
    ("network is unreachable", "is it up, and in the same network?"),
    ("permission denied", "set up a login without a password: ssh-copy-id {host}"),
    ("too many authentication failures", "specify the key: IdentityFile in ~/.ssh/config"),
    ("host key verification failed", "connect once by hand, to check that it is the right host: ssh {host}"),
)

#: The exit code of ssh for errors of its own, and of a shell that does not find a command, or may not run it.
SSH_FAILED, NOT_FOUND, NOT_RUN = 255, 127, 126


@dataclass(frozen=True, kw_only=True)
class Way:
    """How to reach hosts: the ssh command, the Python there, and the working folder."""

    ssh: tuple[str, ...] = ("ssh",)
    python: str
    folder: str

    def command(self, host: SshHost) -> list[str]:
        """The command that runs here."""
        remote = f"exec {shlex.quote(self.python)} -m codedreduce.launch.ssh.agent"
        return [*self.ssh, *OPTIONS, host.name, remote]


class ConnectionEnded(msgspec.Struct, frozen=True):
    """A connection has ended; `why` is the last output of ssh."""

    why: str


#: Receives the messages of the agent of a connection.
Hear = Callable[["Connection", FromAgent | ConnectionEnded], None]


class Connection:
    """A host that is connected, or about to be. `hear` gets its agent's messages in a thread of the connection."""

    def __init__(self, host: SshHost, way: Way, hear: Hear) -> None:
        self.host = host
        self._way = way
        self._hear = hear
        self.hello: AgentHello | None = None
        self.is_gone = False
        self._answers: queue.SimpleQueue[FromAgent | ConnectionEnded] = queue.SimpleQueue()
        self._words: deque[str] = deque(maxlen=20)  # the last output of ssh itself, or of the remote shell
        self._writing = threading.Lock()
        try:
            self._process = subprocess.Popen(
                way.command(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"cannot start {way.ssh[0]!r}: {(error.strerror or '').lower()}") from None
        self._listener = threading.Thread(target=self._listen_to_words, daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._listener.start()
        self._reader.start()

    # Starting

    def wait_for_hello(self) -> AgentHello:
        """Wait until the agent answers; else raise an error of one line with the reason."""
        word = self._next(HELLO_WITHIN)
        if not isinstance(word, AgentHello):
            raise UsageError(self._why_not(word))
        if word.version != own_version():
            raise UsageError(
                f"{self.host.name} has codedreduce {word.version} for {self._way.python}, and this host "
                f"{own_version()}: install the same version there, or set --python"
            )
        self.hello = word
        threading.Thread(target=self._show_life, daemon=True).start()
        self.ask(Enter(self._way.folder))
        return word

    def ask(self, word: FromLauncher) -> AgentAnswer:
        """Send a command, and wait for the answer; raise if the agent refuses it."""
        self.say(word)
        answer = self._next(ANSWER_WITHIN)
        if not isinstance(answer, AgentAnswer):
            raise UsageError(self._why_not(answer))
        if answer.refused:
            raise UsageError(f"{self.host.name}: {answer.refused}")
        return answer

    def _next(self, within: float) -> FromAgent | ConnectionEnded:
        try:
            return self._answers.get(timeout=within)
        except queue.Empty:
            return ConnectionEnded(f"no answer within {within:g} s")

    def _why_not(self, word: FromAgent | ConnectionEnded) -> str:
        code = self._process.poll()
        said = word.why if isinstance(word, ConnectionEnded) else f"it sent {type(word).__name__}"
        return why_not(self.host.name, self._way.python, own_version(), code, said)

    # Talking

    def say(self, word: FromLauncher) -> None:
        """Send a command; it is lost if the connection is gone."""
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line_of(word))
            self._process.stdin.flush()

    def _show_life(self) -> None:
        while not self.is_gone:
            self.say(Alive())
            time.sleep(ALIVE_EVERY)

    def _read(self) -> None:
        """Take the messages of the agent, until the connection ends."""
        assert self._process.stdout is not None
        is_met = False
        for line in self._process.stdout:
            if not is_met and MARK not in line:
                self._words.append(line.decode(errors="replace").strip())
                continue
            if not is_met:
                line = line.partition(MARK)[2]
            is_met = True
            try:
                word = from_agent(line)
            except msgspec.MsgspecError:
                continue  # truncated
            if isinstance(word, AgentHello | AgentAnswer):
                self._answers.put(word)
            else:
                self._hear(self, word)
        self._process.wait()
        self._listener.join(timeout=1.0)
        gone = ConnectionEnded(next((word for word in reversed(self._words) if word), ""))
        self._answers.put(gone)
        self._hear(self, gone)
        self.is_gone = True

    def _listen_to_words(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words.append(line.decode(errors="replace").strip())

    # The end

    def let_go(self) -> None:
        """Close the input of the agent: it ends all that it has started, and then itself."""
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> bool:
        """Close, and wait up to a timeout; return whether the reading thread has ended."""
        self.let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=ENDS_WITHIN)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(timeout=1.0)
        return not self._reader.is_alive()


def why_not(host: str, python: str, version: str, code: int | None, said: str) -> str:
    """Why there is no agent on a host.

    >>> why_not("b", "python3", "0.1.0", 255, "ssh: connect to host b port 22: Connection refused")
    'cannot use b: ssh: connect to host b port 22: Connection refused (is sshd running there, and at this port?)'
    """
    lower = said.lower()
    if code in (NOT_FOUND, NOT_RUN):
        return f"cannot use {host}: there is no {python} that can be run there; set another with --python"
    if "no module named" in lower and "codedreduce" in lower:
        return (
            f"cannot use {host}: {python} there has no codedreduce; install it (pip install codedreduce=={version}), "
            "or set another with --python"
        )
    hint = next((what for words, what in HINTS if words in lower), "")
    hint = f" ({hint.format(host=host)})" if hint else ""
    how = said or ("ssh ended without a message" if code == SSH_FAILED else f"it ended with exit code {code}")
    return f"cannot use {host}: {how}{hint}"


def close_all(connections: Sequence[Connection]) -> bool:
    """Close all connections at the same time."""
    for connection in connections:
        connection.let_go()
    closed = [connection.close() for connection in connections]
    return all(closed)
