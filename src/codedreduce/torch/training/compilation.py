"""Models and losses with `torch.compile`: one process of a host compiles, and the others use its cache.

Torch keeps compiled code in a folder that all processes of a user share (TORCHINDUCTOR_CACHE_DIR). Processes that start
at the same time would find it empty, and all compile the same code. So before the first round one of them makes a pass
of each size that it will compute, while the others wait. Then the others do the same, and find the compiled code.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from codedreduce.process.private_folder import alone_in_it, user_folder
from codedreduce.schemes.plan import Piece
from codedreduce.torch.model.layout import Layout
from codedreduce.torch.model.seeding import random_state_kept, seed_everything

if TYPE_CHECKING:
    from codedreduce.torch.training.training import Training

#: The lock file in the user's folder, by which processes of this host take turns.
TURNS = "compiling"


def is_compiled(training: Training) -> bool:
    """Whether a pass compiles something, as far as can be detected."""
    return hasattr(training.losses, "_torchdynamo_orig_callable") or any(
        hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) is not None
        for one in training.model.modules()
    )


def without_compiling() -> contextlib.AbstractContextManager[Any]:
    """Disable compilation in here: after a pass under a dispatch mode, torch would never compile that code again."""
    stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
    return stance("force_eager") if stance is not None else contextlib.nullcontext()


def compile_in_turn(
    training: Training, layout: Layout, pieces: Sequence[Piece], round_: int, planned: int | None = None
) -> None:  # fmt: skip
    """Compile everything that these pieces need; all processes of this host but the first wait for the first."""
    if not is_compiled(training):
        return
    sizes: set[int] = set()
    with _in_turn(), random_state_kept():
        parts = [part for piece in pieces for part in piece]
        for order in (order for part in parts for order in training.orders(part, round_, planned)):
            if len(order.indices) in sizes:
                continue
            sizes.add(len(order.indices))
            batch = training.reading(order)
            seed_everything(training.seed, round_, order.places.start)
            kept = [one.detach().clone() for one in training.model.buffers()]
            with layout.statistics.watched():
                training.evaluate(batch, len(order.indices), round_).losses.sum().backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for one, was in zip(training.model.buffers(), kept, strict=True):
                    one.copy_(was)
            layout.forget_gradients()


@contextlib.contextmanager
def _in_turn() -> Iterator[None]:
    """The first process holds the lock alone; processes that arrive meanwhile wait for it, and then run together."""
    with alone_in_it():
        file = os.open(f"{user_folder()}/{TURNS}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
