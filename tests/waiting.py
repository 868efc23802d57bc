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


def linger(seen: str, left: int, pause: float = 0.1) -> None:
    """In the loop body of a rank: keep the run going until its test has seen what it waits for, and made a file.

    Steps take `pause` seconds. The last ten of them wait so long that a rank that joins has a part in one of them,
    however busy the machine is. Once the file is there they take no time at all.
    """
    import os
    import time

    deadline = time.monotonic() + (20.0 if left < 10 else pause)
    while not os.path.exists(seen) and time.monotonic() < deadline:
        time.sleep(0.02)


#: For scripts that know nothing of tests.
LINGER = inspect.getsource(linger)
