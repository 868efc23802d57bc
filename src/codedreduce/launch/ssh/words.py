"""What a launcher and its agent on a host say to each other over ssh: lines of JSON, either way.

The environment of processes, with the secret in it, is among them, and so in nobody's arguments.
"""

from __future__ import annotations

import importlib.metadata

import msgspec

from codedreduce.process.telling import Word

#: How the first line of an agent begins: what a host's shell prints before it is not meant.
MARK = b"codedreduce agent: "

#: Seconds between two signs of life of a launcher; an agent that has had none for so long ends all that it started.
ALIVE_EVERY, SILENCE = 5.0, 60


class _Said(msgspec.Struct, frozen=True, tag=True):
    """One of these words."""


# What a launcher says


class Enter(_Said, frozen=True):
    """Work in this folder, and answer."""

    folder: str


class Listen(_Said, frozen=True):
    """Listen at that port for a while, or at 0 any that is free, beside those before; answer with its number."""

    port: int


class Reach(_Said, frozen=True):
    """Connect to each of these addresses and ports, and answer which cannot be reached."""

    places: tuple[tuple[str, int], ...]


class Close(_Said, frozen=True):
    """Listen no more, and answer."""


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
    """The launcher is there."""


# What an agent says


class AgentHello(_Said, frozen=True):
    """It is there: which version, and at which address of the machine ssh came in."""

    version: str
    address: str


class AgentAnswer(_Said, frozen=True):
    """What was asked for is done; or why it cannot be."""

    refused: str = ""
    port: int = 0
    unreached: tuple[tuple[str, int, str], ...] = ()


class Printed(_Said, frozen=True):
    """A process has printed this."""

    number: int
    data: bytes


class Heard(_Said, frozen=True):
    """A process has told this, beside what it prints."""

    word: Word


class Stopped(_Said, frozen=True):
    """A process is paused, or goes on."""

    number: int
    is_so: bool


class ProcessEnded(_Said, frozen=True):
    """A process has ended, with an exit code; negative: the signal that killed it."""

    number: int
    code: int
    why: str = ""


FromLauncher = Enter | Listen | Reach | Close | Spawn | Signal | Alive
FromAgent = AgentHello | AgentAnswer | Printed | Heard | Stopped | ProcessEnded

_from_launcher: msgspec.json.Decoder[FromLauncher] = msgspec.json.Decoder(FromLauncher)
_from_agent: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)


def line_of(word: FromLauncher | FromAgent) -> bytes:
    """A word as a line.

    >>> from_launcher(line_of(Signal(3, 15)))
    Signal(number=3, what=15)
    """
    return msgspec.json.encode(word) + b"\n"


def from_launcher(line: bytes) -> FromLauncher:
    """What a launcher has said."""
    return _from_launcher.decode(line)


def from_agent(line: bytes) -> FromAgent:
    """What an agent has said."""
    return _from_agent.decode(line)


def own_version() -> str:
    """Of the codedreduce that is installed here."""
    try:
        return importlib.metadata.version("codedreduce")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
