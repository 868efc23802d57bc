"""Samples of the next rounds are loaded by other processes while this one computes.

Which samples a node computes when nobody is late follows from the seed and the plan, for any round: so they can be
loaded ahead, by the processes of torch's own `DataLoader`. What is asked of a node beside them (a late one's work, an
audit, a round again) is read where it is computed, as everything is without such processes; the batches are the same.

Rounds may be skipped, when a rank falls behind or takes another's state: what was ordered for them and not begun is
then not loaded. When such a process dies, its samples and all further ones are read here.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from codedreduce.errors import UsageError
from codedreduce.process.processes import die_with_parent
from codedreduce.schemes import Plan
from codedreduce.schemes.work import Piece
from codedreduce.torch.data.batch_bytes import packed, unpacked
from codedreduce.torch.data.samples import Name, Order, Reading

log = logging.getLogger("codedreduce")

#: Seconds between two looks whether a batch that is waited for is still wanted, and its process alive.
LOOK_EVERY = 0.05

#: Seconds that a process has to finish what it reads when nobody needs it any more.
GRACE = 1.0

#: How processes are started, unless the script has set it: what it reads need not be picklable. Python's own default
#: depends on its version.
FORK = "fork"

#: What is given instead of a batch that is not wanted any more.
STOPPED: Any = object()


@dataclass(frozen=True)
class Prefetch:
    """How many processes load samples, and how many rounds ahead at most."""

    processes: int = 0
    rounds: int = 2

    def __post_init__(self) -> None:
        if self.processes < 0:
            raise UsageError(
                f"num_workers is the number of processes that load samples, 0 or more; got {self.processes}"
            )
        if self.rounds < 1:
            raise UsageError(f"prefetch is how many rounds ahead samples are loaded, 1 or more; got {self.rounds}")


#: Gives the batch of an order, or `STOPPED` if it was told to stop meanwhile.
BatchSource = Callable[[Order, Callable[[], bool]], Any]


class _Loaded(NamedTuple):
    """What a process made of an order: a batch as bytes, the error that came of it, or nothing if it came too late."""

    name: Name
    batch: bytes | None = None
    error: Exception | None = None


class _Failed(NamedTuple):
    """In the place of a batch."""

    error: Exception


class _Loading:
    """What happens in the processes: torch asks it for orders as if they were samples."""

    def __init__(self, reading: Reading, now: Any) -> None:
        self._reading = reading
        self._now = now  # the round that is on, in memory that all of them see

    def __getitem__(self, order: Order) -> _Loaded:
        if order.round < self._now.value:
            return _Loaded(order.name)
        try:
            # here, and not on its way: what cannot be sent would otherwise be waited for without end
            return _Loaded(order.name, packed(self._reading(order)))
        except Exception as error:
            return _Loaded(order.name, error=_sendable(error, order.round))


def _sendable(error: Exception, round_: int) -> Exception:
    """An error as another process can raise it, with where it came from."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        found = pickle.loads(pickle.dumps(error))  # some can be packed, and not unpacked
        assert type(found) is type(error)
    except Exception:
        found = RuntimeError(f"{type(error).__qualname__}: {error}")
    found.__notes__ = [f"in a process that loads samples, for round {round_}:\n{trace}"]
    return found  # type: ignore[no-any-return]


class Loader:
    """Gives the batches of orders, those of `orders` ahead; used by one thread while it is entered."""

    def __init__(
        self, reading: Reading, orders: Callable[[int], Sequence[Order]], rounds: range, ahead: Prefetch
    ) -> None:  # fmt: skip
        self._reading = reading
        self._orders = orders
        self._last = rounds.stop - 1
        self._ahead = ahead
        self._ordering = rounds.start  # the round that is being ordered, and what is left of it
        self._left: deque[Order] = deque()
        self._coming: set[Name] = set()
        self._here: dict[Name, Any] = {}
        self._context = multiprocessing.get_context(multiprocessing.get_start_method(allow_none=True) or FORK)
        self._now: Any = self._context.RawValue("q", rounds.start)
        self._iterator: Iterator[_Loaded] | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        """Start the processes, in a thread that lives as long as they do.

        The kernel ends them with the thread that started them, so also when this process is killed. And in the main
        thread torch would handle signals by raising, wherever it is, when one of them dies.
        """
        a_round = max(1, len(self._orders(self._ordering)) if self._ordering <= self._last else 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what torch suggests is for one process a machine
            loader: DataLoader[_Loaded] = DataLoader(
                _Loading(self._reading, self._now),  # type: ignore[arg-type]
                batch_size=None, sampler=self._order_ahead(), collate_fn=_as_it_is, num_workers=self._ahead.processes,
                prefetch_factor=-(-a_round * self._ahead.rounds // self._ahead.processes), timeout=LOOK_EVERY,
                worker_init_fn=_begin, generator=torch.Generator(), multiprocessing_context=self._context,
            )  # fmt: skip
        started = threading.Event()
        failure: list[BaseException] = []

        def hold() -> None:
            try:
                self._iterator = iter(loader)
            except BaseException as error:
                failure.append(error)
            started.set()
            self._is_over.wait()

        threading.Thread(target=hold, name="codedreduce loading", daemon=True).start()
        try:
            started.wait()
        except BaseException:  # Ctrl-C
            started.wait()
            self.__exit__()
            raise
        if failure:
            self._is_over.set()
            raise failure[0]
        return self

    def __exit__(self, *error: object) -> None:
        self._now.value = self._last + 1  # what has not been begun is not loaded any more
        self._end_processes()
        self._here.clear()
        self._is_over.set()

    def _end_processes(self) -> None:
        """Torch does so when nobody has the iterator any more; an error that was raised in it may keep it for long.

        It also waits 5 s for each one that is in the middle of a read. Here all are told to end after a second.
        """
        iterator, self._iterator = self._iterator, None
        if iterator is None:
            return
        impatience = threading.Timer(GRACE, _terminate, [getattr(iterator, "_workers", ())])
        impatience.daemon = True
        impatience.start()
        getattr(iterator, "_shutdown_workers", int)()
        impatience.cancel()

    def __call__(self, order: Order, should_stop: Callable[[], bool]) -> Any:
        """The batch of an order: loaded ahead if it was foreseen, else read here; `STOPPED` if it was told to stop."""
        self._go_on_to(order.round)
        while order.name not in self._here:
            if not self._will_come(order):
                return self._reading(order)
            if should_stop():
                return STOPPED
            self._receive()
        found = self._here.pop(order.name)
        if isinstance(found, _Failed):
            raise found.error
        return found

    def _go_on_to(self, round_: int) -> None:
        if round_ > self._now.value:
            self._now.value = round_
            self._here = {name: batch for name, batch in self._here.items() if name.round >= round_}

    def _will_come(self, order: Order) -> bool:
        if self._iterator is None:
            return False
        if order.name in self._coming:
            return True
        if order.round > self._last or order.round < self._ordering:
            return False
        left = self._left if order.round == self._ordering else self._orders(order.round)
        return any(order.name == one.name for one in left)

    def _order_ahead(self) -> Iterator[Order]:
        """All orders, round by round; of rounds that are over, none."""
        while True:
            self._ordering = max(self._ordering, self._now.value)
            if self._ordering > self._last:
                return
            self._left = deque(self._orders(self._ordering))
            while self._left and self._ordering >= self._now.value:
                order = self._left.popleft()
                self._coming.add(order.name)
                yield order
            self._left.clear()
            self._ordering += 1

    def _receive(self) -> None:
        """Take what comes next, if it comes soon."""
        assert self._iterator is not None
        try:
            loaded = next(self._iterator)
            batch = unpacked(loaded.batch) if loaded.batch is not None else None
        except StopIteration:
            self._iterator = None
        except Exception as error:
            if not str(error).startswith("DataLoader timed out"):
                self._lose(error)
        else:
            self._coming.discard(loaded.name)
            if loaded.name.round < self._now.value:  # it is too late
                return
            self._here[loaded.name] = _Failed(loaded.error) if loaded.error is not None else batch

    def _lose(self, error: Exception) -> None:
        """Go on without other processes: one was killed, for memory maybe."""
        log.warning("samples are read in this process from now on, since one that loaded them is gone: %s", error)
        self._end_processes()


def _terminate(processes: Sequence[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()


def _begin(number: int) -> None:
    die_with_parent()


def _as_it_is(loaded: Any) -> Any:
    return loaded


@contextlib.contextmanager
def loading(
    reading: Reading, orders: Callable[[int], Sequence[Order]], rounds: range, ahead: Prefetch
) -> Iterator[BatchSource]:  # fmt: skip
    """Where batches come from: what is foreseen of these rounds is loaded ahead, if there are processes to do it."""
    if not ahead.processes:
        yield read_here(reading)
        return
    with Loader(reading, orders, rounds, ahead) as loader:
        yield loader


def read_here(reading: Reading) -> BatchSource:
    """Batches that are read where they are computed."""
    return lambda order, should_stop: reading(order)


def pieces_alone(plan: Plan) -> list[Piece]:
    """What a process alone computes in a round, in the order in which it does."""
    pieces: list[Piece] = []

    def note(piece: Piece) -> np.ndarray[Any, Any]:
        pieces.append(piece)
        return np.zeros(1)

    plan.reference(note)
    return pieces


def pieces_of(plan: Plan, node: int) -> list[Piece]:
    """What a node computes in a round in which nobody is late."""
    return [piece for unit in plan.calm_units(node) for piece in unit.pieces]
