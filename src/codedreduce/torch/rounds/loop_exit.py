"""Detects whether an error in its body ends a loop, or `break`: the generator gets `GeneratorExit` in both cases.

The interpreter drops the iterator of a `for` loop before any `except` or `with` sees the error. But the error's
traceback exists already: it refers to the frame of the loop, with the frame's current instruction.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from types import FrameType, TracebackType


def is_unwinding() -> bool:
    """Whether an error ends the function that dropped the calling generator, directly or through other generators.

    >>> def steps():
    ...     try:
    ...         yield 1
    ...     finally:
    ...         print(is_unwinding())
    >>> for step in steps():
    ...     break
    False
    >>> try:
    ...     for step in steps():
    ...         raise ValueError("no")
    ... except ValueError:
    ...     pass
    True
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    if frame is None:
        return False
    if dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("RAISE_VARARGS", "RERAISE"):  # as at the end of a `finally`
        return True
    found = gc.get_referrers(frame)
    return any(isinstance(one, TracebackType) and one.tb_lasti == frame.f_lasti for one in found)
