"""Other processes load the samples of the next rounds while this one computes.

The seed and the plan determine the samples that a rank computes in a fault-free round. So the processes of torch's
`DataLoader` can load them ahead. The rank itself reads the samples of other work: a straggler's blocks, an audit, a
repeated round. It reads all samples if there are no such processes; the batches are the same.

A rank that falls behind, or catches up by state transfer, skips rounds. Orders for these rounds that have not begun are
then not loaded. If a loading process fails, this process reads its samples and all further ones.
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

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from codedreduce.errors import UsageError
from codedreduce.process.processes import die_with_parent
from codedreduce.torch.data.batch_bytes import packed, unpacked
from codedreduce.torch.data.samples import Name, Order, Reading

log = logging.getLogger("codedreduce")

#: Seconds between two checks whether a batch is still needed, and its process alive.
LOOK_EVERY = 0.05

#: The grace period in seconds for a process to finish a read that is no longer needed.
GRACE = 1.0

#: The start method, unless the script has set one: with it, datasets need not be picklable. Python's default depends on
#: its version.
FORK = "fork"

#: Returned instead of a batch that is no longer needed.
STOPPED: Any = object()


@dataclass(frozen=True)
class Prefetch:
    """The number of processes that load samples, and the most rounds that they load ahead."""

    processes: int = 0
    rounds: int = 2

    def __post_init__(self) -> None:
        if self.processes < 0:
            raise UsageError(
                f"num_workers={self.processes}: the number of processes that load samples must be 0 or more"
            )
        if self.rounds < 1:
            raise UsageError(f"prefetch={self.rounds}: the number of rounds to load ahead must be 1 or more")


#: Returns the batch of an order, or `STOPPED` if it had to stop.
BatchSource = Callable[[Order, Callable[[], bool]], Any]


class _Loaded(NamedTuple):
    """The result of an order: a batch (as bytes until it is here), the error that it raised, or neither if its round
    is over.
    """

    name: Name
    batch: Any = None
    error: Exception | None = None


class _Loading:
    """The "dataset" in the loading processes: torch requests orders from it as if they were samples."""

    def __init__(self, reading: Reading, now: Any) -> None:
        self._reading = reading
        self._now = now  # the current round, in shared memory

    def __getitem__(self, order: Order) -> _Loaded:
        if order.round < self._now.value:
            return _Loaded(order.name)
        try:
            # packed here, and not by torch: the receiver would wait forever for a batch that cannot be pickled
            return _Loaded(order.name, packed(self._reading(order)))
        except Exception as error:
            return _Loaded(order.name, error=_sendable(error, order.round))


def _sendable(error: Exception, round_: int) -> Exception:
    """Return an error that another process can raise, with the original traceback as a note."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        found = pickle.loads(pickle.dumps(error))  # some errors can be pickled but not unpickled
        assert type(found) is type(error)
    except Exception:
        found = RuntimeError(f"{type(error).__qualname__}: {error}")
    found.__notes__ = [f"in a process that loads samples, for round {round_}:\n{trace}"]
    return found  # type: ignore[no-any-return]


class Loader:
    """Returns the batches of orders, and loads those of `orders` ahead; used by one thread while it is entered."""

    def __init__(
        self, reading: Reading, orders: Callable[[int], Sequence[Order]], rounds: range, ahead: Prefetch
    ) -> None:  # fmt: skip
        self._reading = reading
        self._orders = orders
        self._last = rounds.stop - 1
        self._ahead = ahead
        self._ordering = rounds.start  # the round that is being ordered, and its remaining orders
        self._left: deque[Order] = deque()
        self._coming: set[Name] = set()
        self._here: dict[Name, _Loaded] = {}
        self._context = multiprocessing.get_context(multiprocessing.get_start_method(allow_none=True) or FORK)
        self._now: Any = self._context.RawValue("q", rounds.start)
        self._iterator: Iterator[_Loaded] | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        """Start the processes, in a thread that lives as long as they do.

        The kernel ends them together with the thread that started them, so also when this process is killed. In the
        main thread, torch's signal handler would raise anywhere in the script when one of them dies.
        """
        a_round = max(1, len(self._orders(self._ordering)) if self._ordering <= self._last else 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's suggestion assumes one process per host
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
        self._now.value = self._last + 1  # orders that have not begun are not loaded any more
        self._end_processes()
        self._here.clear()
        self._is_over.set()

    def _end_processes(self) -> None:
        """Shut the processes down, with a grace period of one second for all.

        Torch would do so when the iterator has no more references, but an error raised in it may keep one for long. It
        would also wait 5 s for each process that is in the middle of a read.
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
        """Return the batch of an order: loaded ahead if it was planned, else read here; `STOPPED` if it had to stop."""
        self._go_on_to(order.round)
        while order.name not in self._here:
            if not self._will_come(order):
                return self._reading(order)
            if should_stop():
                return STOPPED
            self._receive()
        found = self._here.pop(order.name)
        if found.error is not None:
            raise found.error
        return found.batch

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
        """Yield all orders, round by round, except those of rounds that are over."""
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
        """Receive the next result, or return after a short timeout."""
        assert self._iterator is not None
        try:
            loaded = next(self._iterator)
            if loaded.batch is not None:
                loaded = loaded._replace(batch=unpacked(loaded.batch))
        except StopIteration:
            self._iterator = None
        except Exception as error:
            if not str(error).startswith("DataLoader timed out"):
                self._lose(error)
        else:
            self._coming.discard(loaded.name)
            if loaded.name.round >= self._now.value:  # else its round is over
                self._here[loaded.name] = loaded

    def _lose(self, error: Exception) -> None:
        """Continue without loading processes: one was killed, maybe for lack of memory."""
        log.warning("a process that loads samples failed; this rank reads samples itself from now on: %s", error)
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
    """Yield a source of batches, which loads the planned orders of these rounds ahead if it has processes."""
    if not ahead.processes:
        yield read_here(reading)
        return
    with Loader(reading, orders, rounds, ahead) as loader:
        yield loader


def read_here(reading: Reading) -> BatchSource:
    """Return a source that reads batches in this process."""
    return lambda order, should_stop: reading(order)
