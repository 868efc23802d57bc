"""How tests wait: until something is so, for as long as a busy machine may need; never for a time that should do."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

#: Seconds after which a test takes it that something will never happen. No result depends on it.
PATIENCE = 120.0


def wait_until(condition: Callable[[], object], within: float = PATIENCE) -> bool:
    """Whether something came to be; nothing is decided by how long it took."""
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def linger(seen: str, left: int) -> None:
    """In the loop body of a rank: keep the run going until its test has seen what it waits for, and made a file.

    The fewer steps are left, the longer each takes: 0.1 s at first, 0.75 s with 40 left, 3 s with 10 left, 30 s the
    last. So a run of 40 steps or more lasts for minutes, and one of hundreds does not, as long, and steps go on in all
    that time: a rank that joins, however late, has a part in one of them. Once the file is there they take no time.
    """
    import os
    import time

    deadline = time.monotonic() + max(0.1, 30.0 / (left + 1))
    while not os.path.exists(seen) and time.monotonic() < deadline:
        time.sleep(0.02)


#: For scripts that know nothing of tests.
LINGER = inspect.getsource(linger)
