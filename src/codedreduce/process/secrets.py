"""The secret of a run admits a process: where it is found, how it is made, and what is derived from it.

It is passed on by the environment or in a file, and never shown: not in arguments, logs, tracebacks or results of
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

#: Variables that are searched for it, in this order; after them the default file.
VARIABLE, FILE_VARIABLE = "CODEDREDUCE_SECRET", "CODEDREDUCE_SECRET_FILE"

#: Disables the secret: a run admits any process that reaches a port.
INSECURE_VARIABLE = "CODEDREDUCE_INSECURE"

#: Minimum length of a secret: a shorter one could be guessed.
LEAST_CHARACTERS = 20

#: Random bytes in a secret that is made here.
RANDOM_BYTES = 32


class Secret:
    """Known to all processes of a run only. `source` describes where it was found.

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
                f"the secret of {source} has {len(self._text)} characters, and needs at least {LEAST_CHARACTERS}; "
                "make one with: codedreduce secret"
            )

    @classmethod
    def fresh(cls) -> Secret:
        """A new random secret."""
        return cls(base64.urlsafe_b64encode(os.urandom(RANDOM_BYTES)).decode().rstrip("="))

    def derived(self, purpose: str, *said: bytes) -> bytes:
        """32 bytes that need the secret to compute, different for every purpose and every `said`."""
        key = hashlib.blake2b(self._text.encode(), person=b"codedreduce").digest()
        found = hashlib.blake2b(key=key, digest_size=32)
        for part in (purpose.encode(), *said):
            found.update(len(part).to_bytes(8, "big") + part)
        return found.digest()

    def proves(self, proof: bytes, purpose: str, *said: bytes) -> bool:
        """Whether `proof` equals the derived bytes; compared in constant time."""
        return hmac.compare_digest(proof, self.derived(purpose, *said))

    def reveal(self) -> str:
        """The secret itself, to pass on to a process or write to a file."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self.derived("hash"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled: pass it on with reveal()")


def default_file() -> str:
    """The default file of a user's secret."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "codedreduce", "secret")


def is_insecure(environment: Mapping[str, str]) -> bool:
    """Whether a run is set to use no secret."""
    text = environment.get(INSECURE_VARIABLE, "0")
    if text not in ("0", "1"):
        raise UsageError(f"{INSECURE_VARIABLE} must be 0 or 1, got {text!r}")
    return text == "1"


def find_secret(environment: Mapping[str, str], *, make: bool = False) -> Secret | None:
    """The secret for this process, if there is one; `make` creates the default file if it is missing."""
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
    """The secret in a file; only its owner may read the file."""
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
            raise UsageError(f"the secret in {path} belongs to another user ({status.st_uid})")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"others may read the secret in {path} (mode {stat.S_IMODE(status.st_mode):04o}): make another with "
                f"codedreduce secret, or if they did not read it: chmod 600 {path}"
            )
        return Secret(opened.read(4096), path)


def write_secret(path: str, secret: Secret, *, replaces: bool = False) -> None:
    """Write a secret to a file that only its owner may read, atomically: on an error the old file is unchanged."""
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
                os.link(beside, path)  # unlike a rename it never replaces an existing file
        finally:
            if os.path.lexists(beside):
                os.unlink(beside)
    except FileExistsError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot write a secret to {path} ({error.strerror}); pass one to all processes with {VARIABLE} or "
            f"{FILE_VARIABLE}"
        ) from None
