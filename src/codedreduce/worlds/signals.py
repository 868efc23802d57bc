"""What processes do when they are asked to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_sigterm(do: Callable[[], object]) -> Iterator[None]:
    """Have something done, in a thread of its own, when SIGTERM comes; only where signals arrive, in the main thread.

    What was in the middle of something when the signal came, maybe with a lock, goes on first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=do, daemon=True).start()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
