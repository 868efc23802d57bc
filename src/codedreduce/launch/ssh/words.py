"""Messages between a launcher and its agent on a host over ssh: lines of JSON in both directions.

They carry the environment of processes with the secret, so that it does not appear in arguments.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import msgspec

from codedreduce.process.telling import Word

#: Start of the first line of an agent: output of the host's shell before it is ignored.
MARK = b"codedreduce agent: "

#: Seconds between two heartbeats of a launcher; seconds without one after which an agent ends all that it started.
ALIVE_EVERY, SILENCE = 5.0, 60


class _Said(msgspec.Struct, frozen=True, tag=True):
    """One of these messages."""


# Messages of a launcher


class Enter(_Said, frozen=True):
    """Change to this folder, and answer."""

    folder: str


class Listen(_Said, frozen=True):
    """Listen at one more port for a while (0: any free port); answer with its number."""

    port: int


class Reach(_Said, frozen=True):
    """Connect to each of these addresses and ports, and answer which cannot be reached."""

    places: tuple[tuple[str, int], ...]


class Close(_Said, frozen=True):
    """Stop listening, and answer."""


class Spawn(_Said, frozen=True):
    """Start a process."""

    number: int
    command: tuple[str, ...]
    environment: dict[str, str]


class Signal(_Said, frozen=True):
    """Send a process a signal."""

    number: int
    what: int


class Alive(_Said, frozen=True):
    """Heartbeat of the launcher."""


# Messages of an agent


class AgentHello(_Said, frozen=True, tag="Hello"):
    """The agent has started: its version, and the address at which ssh reached the host."""

    version: str
    address: str


class AgentAnswer(_Said, frozen=True, tag="Answer"):
    """A command is done, or was refused for a reason."""

    refused: str = ""
    port: int = 0
    unreached: tuple[tuple[str, int, str], ...] = ()


class Printed(_Said, frozen=True):
    """A process has printed `data`."""

    number: int
    data: bytes


class Heard(_Said, frozen=True):
    """A report of a process, apart from its output."""

    word: Word


class Stopped(_Said, frozen=True):
    """A process is paused, or was continued."""

    number: int
    is_so: bool


class ProcessEnded(_Said, frozen=True, tag="Over"):
    """A process has ended, with an exit code; negative: the signal that killed it."""

    number: int
    code: int
    why: str = ""


FromLauncher = Enter | Listen | Reach | Close | Spawn | Signal | Alive
FromAgent = AgentHello | AgentAnswer | Printed | Heard | Stopped | ProcessEnded

#: Decode a line.
from_launcher: Callable[[bytes], FromLauncher] = msgspec.json.Decoder(FromLauncher).decode
from_agent: Callable[[bytes], FromAgent] = msgspec.json.Decoder(FromAgent).decode


def line_of(word: FromLauncher | FromAgent) -> bytes:
    """A message as a line.

    >>> from_launcher(line_of(Signal(3, 15)))
    Signal(number=3, what=15)
    """
    return msgspec.json.encode(word) + b"\n"


def own_version() -> str:
    """The version of codedreduce that is installed here."""
    try:
        return importlib.metadata.version("codedreduce")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
