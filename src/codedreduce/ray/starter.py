"""Start ranks in actors, and receive their reports: a launcher's `Starter` over Ray.

One thread polls all actors; each answers when it has an event. A rank's life begins with an actor, which may have to
wait for a place. It ends when its command or its actor ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import IO, Any

from codedreduce.errors import UsageError
from codedreduce.process.telling import What, Word
from codedreduce.ray.actors import About, Brought, RankActor, Report, versions
from codedreduce.ray.reservations import Reservation

#: Timeouts in seconds: of one wait for answers, for actors to start in their reserved places, and for them to end.
TURN, UP_WITHIN, END_WITHIN = 0.1, 120.0, 3.0

#: Shows a message about a rank.
Note = Callable[[int, str], None]

#: The exit code of a rank after the loss of its actor or node: as if a signal had killed it.
LOST = -int(signal.SIGKILL)


class Stage(Enum):
    """The last request to the actor of a life."""

    PLACED = auto()  # `about`: its place
    STARTED = auto()  # `start`: run the command
    LOOKED_AT = auto()  # `look`: report events
    OVER = auto()  # no more requests


@dataclass
class Life:
    """One life of a rank: from its start to its end."""

    rank: int
    actor: Any
    command: tuple[str, ...]
    environment: dict[str, str]
    printed: int  # the write end of the pipe for its output
    asked: Any = None
    stage: Stage = Stage.PLACED
    seen: int = 0
    unsent: bytes = b""
    is_stopped: bool = True  # until it runs


class Actors:
    """The ranks of a run."""

    def __init__(self, ray: Any, reservation: Reservation, note: Note, given: Any = None) -> None:
        self._ray, self._reservation, self._note = ray, reservation, note
        self._given = given  # Ray's reference to the function for the ranks, if there is one
        self._brought = Brought(os.getcwd(), tuple(filter(None, sys.path)) if given is not None else ())
        self._notes: list[tuple[int, str]] = []  # the launcher's thread shows them
        self._kind = ray.remote(RankActor)
        self._actors: dict[int, Any] = {}
        self._abouts: dict[int, About] = {}
        self._lives: dict[int, Life] = {}
        self._told: list[Word] = []
        self._ended: list[tuple[int, int]] = []
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="codedreduce-ray", daemon=True)
        self.returned: bytes | None = None
        self.only_node: str | None = None  # the node of all ranks, if they share its memory

    def seat(self, ranks: range) -> list[About]:
        """Start actors for these ranks in their reserved places; return the place of each."""
        for rank in ranks:
            self._actors[rank] = self._made(rank)
        asked = {self._actors[rank].about.remote(): rank for rank in ranks}
        waiting, deadline = list(asked), time.monotonic() + UP_WITHIN
        while waiting:
            ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise UsageError(f"rank {asked[waiting[0]]}'s actor did not come up within {UP_WITHIN:g} s")
            rank = asked[ready[0]]
            spot = self._reservation.spots[rank]
            try:
                about = self._ray.get(ready[0])
            except Exception as error:
                raise UsageError(cannot_be_there(f"node {spot.address} ({spot.node[:8]})", error)) from None
            check_versions(about)
            self._abouts[rank] = about
        self._thread.start()
        return [self._abouts[rank] for rank in ranks]

    def _made(self, rank: int) -> Any:
        return self._kind.options(**self._reservation.options(rank)).remote()

    # The interface to the launcher

    def spawn(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> IO[bytes]:
        """Run a command in the rank's actor, or in a new one if the actor is lost."""
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        with self._lock:
            if number not in self._actors:
                self._actors[number] = self._made(number)
            actor = self._actors[number]
            life = Life(number, actor, tuple(command), dict(environment), writes)
            life.asked = actor.about.remote()
            self._lives[number] = life
        return open(reads, "rb")

    def signal(self, number: int, what: int) -> None:
        """Send a rank a signal, if it runs."""
        with self._lock:
            life = self._lives.get(number)
            if life is not None and life.stage is Stage.LOOKED_AT:
                life.actor.signal.remote(what)

    def is_stopped(self, number: int) -> bool:
        """Whether a rank cannot end by itself: it is paused, or has no place."""
        return self._lives[number].is_stopped

    def is_waiting(self, number: int) -> bool:
        """Whether a rank has no place yet, or has not been started there."""
        return self._lives[number].stage in (Stage.PLACED, Stage.STARTED)

    def take_told(self) -> list[Word]:
        """The reports of ranks since the last call."""
        with self._lock:
            told, self._told = self._told, []
            notes, self._notes = self._notes, []
        for rank, words in notes:
            self._note(rank, words)
        return told

    def newly_ended(self) -> list[tuple[int, int]]:
        """The ranks that have ended since the last call, with their exit codes; negative: the signal that killed it."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def end(self, grace: float) -> None:
        """End all ranks after a grace period in seconds, and kill all actors."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for life in self._lives.values():
            self._close(life)
        ends = [self._actors[rank].end.remote(grace) for rank in self._actors if rank in self._abouts]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=grace + END_WITHIN)
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}

    # The thread

    def _attend(self) -> None:
        try:
            self._attend_until_over()
        except Exception as error:  # without this thread no rank is monitored, so all fail
            with self._lock:
                for life in self._lives.values():
                    if life.stage is not Stage.OVER:
                        self._fail(life, f"Ray does not answer any more: {error}")

    def _attend_until_over(self) -> None:
        while not self._over.is_set():
            with self._lock:
                asked = {life.asked: life for life in self._lives.values() if life.asked is not None}
            ready = self._ready(list(asked))
            with self._lock:
                for one in ready:
                    self._hear(asked[one])
                for life in self._lives.values():
                    self._pass_on(life)

    def _ready(self, asked: list[Any]) -> list[Any]:
        """Wait up to `TURN` seconds for an answer; return all requests that have one."""
        if not asked:
            self._over.wait(TURN)
            return []
        ready, _ = self._ray.wait(asked, num_returns=1, timeout=TURN)
        if ready and len(asked) > 1:
            ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0)
        return list(ready)

    def _hear(self, life: Life) -> None:
        """Handle an actor's answer, or its failure."""
        asked, life.asked = life.asked, None
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(asked)
        except errors.ActorUnavailableError:  # it may be back in a moment; its output is not lost
            self._ask_again(life)
            return
        except errors.RayActorError as error:
            self._lost(life, error)
            return
        except errors.RayError as error:
            self._fail(life, cannot_be_there(f"rank {life.rank}'s node", error))
            return
        if life.stage is Stage.PLACED:
            self._start(life, answer)
        elif life.stage is Stage.STARTED and answer:
            self._fail(life, f"{self._where(life.rank)}: {answer}")
        elif life.stage is Stage.STARTED:
            life.stage, life.is_stopped = Stage.LOOKED_AT, False
            life.asked = life.actor.look.remote(0)
        else:
            self._take(life, answer)

    def _ask_again(self, life: Life) -> None:
        if life.stage is Stage.LOOKED_AT:
            life.asked = life.actor.look.remote(life.seen)
        else:
            life.stage = Stage.PLACED
            life.asked = life.actor.about.remote()

    def _start(self, life: Life, about: About) -> None:
        """Start the command: the actor has its place."""
        self._abouts[life.rank] = about
        first = self._reservation.spots[life.rank : life.rank + 1]
        if about.node not in [spot.node for spot in first]:
            self._notes.append((life.rank, f"(has a place on {self._where(life.rank)})"))
        try:
            check_versions(about)
            if self.only_node is not None and about.node != self.only_node:
                raise UsageError("the node that all ranks were on is lost")
        except UsageError as error:
            self._fail(life, str(error))
            return
        environment = {**life.environment, **self._said_there(life.rank)}
        life.stage = Stage.STARTED
        life.asked = life.actor.start.remote(life.command, environment, self._brought, self._given)

    def _said_there(self, rank: int) -> dict[str, str]:
        """The variables for a rank's place: rendezvous addresses, its index on the node, and its GPUs."""
        said = {}
        if self.only_node is None:
            said["CODEDREDUCE_ALSO_AT"] = ",".join(dict.fromkeys(self._meets_at(rank)))
        node = self._abouts[rank].node
        beside = [one for one in sorted(self._abouts) if self._abouts[one].node == node]
        return {**said, **local_names(rank, {one: self._abouts[one].gpus for one in beside})}

    def _meets_at(self, rank: int) -> Iterator[str]:
        """The rendezvous addresses for a rank: the initial places of the run, and the current places of all ranks.

        A rank listens at its own address for later ranks. Rank 0 would wait there to be found, so its own new address
        is omitted: the other ranks do not know it. Rank 0 looks for them instead.
        """
        yield from (spot.address for spot in self._reservation.spots)
        yield from (self._abouts[one].address for one in sorted(self._abouts) if one != rank or rank)

    def _take(self, life: Life, report: Report) -> None:
        start = len(report.printed) - (report.at - life.seen)
        life.unsent += report.printed[max(0, start) :]
        life.seen, life.is_stopped = report.at, report.is_stopped
        self._told += report.told
        if report.returned is not None:
            self.returned = report.returned
        if report.code is not None:
            self._finish(life, report.code)
        else:
            self._pass_on(life)
            life.asked = life.actor.look.remote(life.seen)

    def _lost(self, life: Life, error: Exception) -> None:
        """Handle the loss of an actor or its node; Ray reserves another place."""
        where = self._where(life.rank)
        self._actors.pop(life.rank, None)
        self._abouts.pop(life.rank, None)
        self._told.append(Word(life.rank, What.ERRS, f"lost with its actor on {where}"))
        self._finish(life, LOST)

    def _fail(self, life: Life, why: str) -> None:
        self._told.append(Word(life.rank, What.ERRS, why, is_usage=True))
        self._finish(life, 2)

    def _finish(self, life: Life, code: int) -> None:
        life.stage, life.asked, life.is_stopped = Stage.OVER, None, False
        self._pass_on(life)
        self._ended.append((life.rank, code))

    def _where(self, rank: int) -> str:
        about = self._abouts.get(rank)
        return f"node {about.address} ({about.node[:8]})" if about is not None else "a node"

    def _pass_on(self, life: Life) -> None:
        """Write unsent output to the launcher's pipe, as much as it accepts."""
        if life.printed < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while life.unsent:
                life.unsent = life.unsent[os.write(life.printed, life.unsent) :]
        if life.stage is Stage.OVER and not life.unsent:
            self._close(life)

    def _close(self, life: Life) -> None:
        if life.printed >= 0:
            os.close(life.printed)
            life.printed = -1


def local_names(rank: int, gpus: Mapping[int, tuple[str, ...]]) -> dict[str, str]:
    """The variables for a rank's place on its node, as torchrun sets them. `gpus`: Ray's GPUs for each rank there.

    If each rank has one GPU for itself, all ranks see all GPUs, and LOCAL_RANK is the index of a rank's own. Otherwise
    a rank sees only its own GPUs.

    >>> local_names(5, {2: ("0",), 5: ("3",)})
    {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'CUDA_VISIBLE_DEVICES': '0,3'}
    >>> local_names(5, {2: ("0",), 5: ("0",)})
    {'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1', 'CUDA_VISIBLE_DEVICES': '0'}
    >>> local_names(5, {2: (), 5: ()})
    {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
    """
    ranks, all_of_them = sorted(gpus), [one for other in sorted(gpus) for one in gpus[other]]
    names = {"LOCAL_RANK": str(ranks.index(rank)), "LOCAL_WORLD_SIZE": str(len(ranks))}
    if not all_of_them:
        return names
    if len(set(all_of_them)) == len(ranks) and all(len(one) == 1 for one in gpus.values()):
        return {**names, "CUDA_VISIBLE_DEVICES": ",".join(all_of_them)}
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ",".join(gpus[rank])}


def check_versions(about: About) -> None:
    """Raise `UsageError` if a node's versions differ from the driver's."""
    for name, version in versions().items():
        if about.versions.get(name) != version:
            raise UsageError(
                f"node {about.address} ({about.node[:8]}) has {name} {about.versions.get(name)}, but the driver has "
                f"{version}; install the same version on all nodes"
            )


def cannot_be_there(where: str, error: Exception) -> str:
    """One line on an actor that cannot run: its node lacks a module, or has an older version."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    why = lines[-1].strip() if lines else type(error).__name__
    return f"{where} cannot run codedreduce {versions()['codedreduce']}: {why}; install this version on all nodes"
