"""The secret of a run: who knows it may be in. Where it is found, how it is made, and what is derived from it.

It is handed on by the environment or in a file, and never shown: not in arguments, logs, tracebacks or answers of
`repr`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from typing import NoReturn

from codedreduce.errors import UsageError

#: Where it is looked for, in this order; then in the default file.
VARIABLE, FILE_VARIABLE = "CODEDREDUCE_SECRET", "CODEDREDUCE_SECRET_FILE"

#: Says that a run shall do without: anybody who reaches a port is let in.
INSECURE_VARIABLE = "CODEDREDUCE_INSECURE"

#: What a secret has at least: a shorter one could be found by trying.
LEAST_CHARACTERS = 20

#: Random bytes in a secret that is made here.
RANDOM_BYTES = 32


class Secret:
    """What all processes of a run know, and nobody else. `source` says in words where it was found.

    >>> Secret("correct horse battery staple")
    Secret(hidden)
    >>> f"{Secret.fresh()}"
    'Secret(hidden)'
    """

    __slots__ = ("_text", "source")

    def __init__(self, text: str, source: str = "made for this run") -> None:
        self.source = source
        self._text = text.strip()
        if len(self._text) < LEAST_CHARACTERS:
            raise UsageError(
                f"a secret has at least {LEAST_CHARACTERS} characters, and that of {source} has {len(self._text)}; "
                "make one with: codedreduce secret"
            )

    @classmethod
    def fresh(cls) -> Secret:
        """One that nobody has had before."""
        return cls(base64.urlsafe_b64encode(os.urandom(RANDOM_BYTES)).decode().rstrip("="))

    def derived(self, purpose: str, *said: bytes) -> bytes:
        """32 bytes that only who has the secret can tell, of their own for every purpose and what is said."""
        key = hashlib.blake2b(self._text.encode(), person=b"codedreduce").digest()
        found = hashlib.blake2b(key=key, digest_size=32)
        for part in (purpose.encode(), *said):
            found.update(len(part).to_bytes(8, "big") + part)
        return found.digest()

    def proves(self, proof: bytes, purpose: str, *said: bytes) -> bool:
        """Whether these bytes are what is derived; looking takes as long whatever they are."""
        return hmac.compare_digest(proof, self.derived(purpose, *said))

    def reveal(self) -> str:
        """The secret itself, to be handed on to a process or into a file."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self.derived("hash"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere: hand it on by reveal()")


def default_file() -> str:
    """Where a user's secret lies, if nothing else is said."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "codedreduce", "secret")


def is_insecure(environment: Mapping[str, str]) -> bool:
    """Whether it is said that a run shall do without a secret."""
    text = environment.get(INSECURE_VARIABLE, "0")
    if text not in ("0", "1"):
        raise UsageError(f"{INSECURE_VARIABLE} must be 0 or 1, got {text!r}")
    return text == "1"


def find_secret(environment: Mapping[str, str], *, make: bool = False) -> Secret | None:
    """The secret that this process is to use, if there is one; the default file can be made if it is not there."""
    if environment.get(VARIABLE):
        return Secret(environment[VARIABLE], VARIABLE)
    if environment.get(FILE_VARIABLE):
        return read_secret(environment[FILE_VARIABLE])
    path = default_file()
    if make:
        with contextlib.suppress(FileExistsError):
            write_secret(path, Secret.fresh())
    return read_secret(path) if os.path.exists(path) else None


def read_secret(path: str) -> Secret:
    """The secret in a file, which nobody but its owner may read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {error.strerror}") from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise UsageError(f"the secret in {path} is not a file")
    with open(file, encoding="utf-8", errors="replace") as opened:
        if status.st_uid not in (os.getuid(), 0):
            raise UsageError(f"the secret in {path} is somebody else's file (user {status.st_uid})")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"others may read the secret in {path} (mode {stat.S_IMODE(status.st_mode):04o}): make another with "
                f"codedreduce secret, or if nobody has: chmod 600 {path}"
            )
        return Secret(opened.read(4096), path)


def write_secret(path: str, secret: Secret, *, replaces: bool = False) -> None:
    """Put a secret into a file that only its owner may read: all of it, or what was there stays as it was."""
    folder = os.path.dirname(path) or "."
    beside = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(secret.reveal() + "\n")
            if replaces:
                os.replace(beside, path)
            else:
                os.link(beside, path)  # unlike a renaming it never takes the place of one that is there
        finally:
            if os.path.lexists(beside):
                os.unlink(beside)
    except FileExistsError:
        raise
    except OSError as error:
        raise UsageError(
            f"no secret can be put into {path} ({error.strerror}); hand one to all processes by {VARIABLE} or "
            f"{FILE_VARIABLE}"
        ) from None
