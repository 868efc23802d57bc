"""Quantities with units, parsed from text (60mbit, 0.5ms, 20s) and formatted for people."""

from __future__ import annotations

import math
import re

from codedreduce.errors import UsageError

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_BYTES_PER_SECOND = {
    "bit": 1 / 8,
    "kbit": 1e3 / 8,
    "mbit": 1e6 / 8,
    "gbit": 1e9 / 8,
    "kb/s": 1e3,
    "mb/s": 1e6,
    "gb/s": 1e9,
}

#: The longest time in seconds: about 30 years.
LONGEST = 1e9


def seconds(text: str) -> float:
    """A time in seconds.

    >>> seconds("0.5ms"), seconds("20s"), seconds("2")
    (0.0005, 20.0, 2.0)
    """
    value = _parse(text, _SECONDS, "a time", "20s, 0.5ms")
    if value > LONGEST:
        raise UsageError(f"a time must be at most {LONGEST:g} s, got {text!r}")
    return value


def rate(text: str) -> float:
    """A rate in bytes per second.

    >>> rate("60mbit"), rate("1gbit")
    (7500000.0, 125000000.0)
    """
    value = _parse(text, _BYTES_PER_SECOND, "a rate", "60mbit, 1gbit, 100MB/s")
    if not value > 0:
        raise UsageError(f"a rate must be above zero, got {text!r}; write it as 60mbit, 1gbit, 100MB/s")
    return value


def human_seconds(value: float) -> str:
    """Seconds with a suitable unit.

    >>> human_seconds(0.0123), human_seconds(2.5)
    ('12.3ms', '2.50s')
    """
    if value >= 1:
        return f"{value:.2f}s"
    return f"{1000 * value:.3g}ms"


def human_bytes(value: float) -> str:
    """Bytes with a suitable unit.

    >>> human_bytes(23_200), human_bytes(5_000_000)
    ('23.2kB', '5MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.3g}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def _parse(text: str, units: dict[str, float], what: str, examples: str) -> float:
    match = re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([a-zA-Z/]*)\s*", text)
    if match and match[2].lower() in units:
        try:
            value = float(match[1]) * units[match[2].lower()]
        except ValueError:
            value = float("inf")
        if math.isfinite(value):
            return value
    raise UsageError(f"{what} is written as {examples}; got {text!r}")
