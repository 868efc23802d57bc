"""How chunks travel by TCP in a run that has a secret: encrypted, or in the clear with a digest that has a key.

What a user calls `--wire`. (`wire="bfloat16"` of PyTorch is something else: what numbers travel as.)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from codedreduce.errors import UsageError

#: Where it is said.
VARIABLE = "CODEDREDUCE_WIRE"


class Protection(Enum):
    """Of chunks; small messages are encrypted in any case."""

    ENCRYPTED = "encrypted"
    AUTHENTICATED = "authenticated"


def parse_protection(text: str, said_by: str = "--wire") -> Protection:
    """As people write it.

    >>> parse_protection("authenticated")
    <Protection.AUTHENTICATED: 'authenticated'>
    """
    try:
        return Protection(text)
    except ValueError:
        names = " or ".join(one.value for one in Protection)
        raise UsageError(
            f"{said_by} must be {names}, got {text!r}; what numbers travel as is said in the script: wire='bfloat16'"
        ) from None


def find_protection(environment: Mapping[str, str]) -> Protection:
    """What this process is told to use.

    >>> find_protection({})
    <Protection.ENCRYPTED: 'encrypted'>
    """
    return parse_protection(environment.get(VARIABLE) or Protection.ENCRYPTED.value, VARIABLE)
