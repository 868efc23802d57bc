"""The loop that runs the machine of one node: sockets, timers, and orders to the computing thread."""

from __future__ import annotations

import contextlib
import heapq
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Container

import msgspec
import zmq

from codedreduce.errors import CodedReduceError
from codedreduce.net.carrier import Arrived, Carrier, Gone, Reached
from codedreduce.net.rendezvous.meeting import Met
from codedreduce.net.rendezvous.probing import Probing
from codedreduce.net.rendezvous.registration import Opened, Standing
from codedreduce.protocol import Machine, Rank
from codedreduce.protocol.core.events import (
    Aggregated,
    AnyAction,
    Begin,
    Cancel,
    Compute,
    Drained,
    Ended,
    Event,
    EveryoneIn,
    Finished,
    Gathered,
    Leave,
    Note,
    Pack,
    PeerFound,
    PeerLost,
    Received,
    Renewed,
    SetTimer,
    Started,
    TimerFired,
    Transmit,
)
from codedreduce.timing import Timing

#: Timers of the driver itself. After `ORPHANED` a node leaves that cannot reach the rank it needs.
ORPHANED = "orphaned"

#: At `SERVING` the leader tries again to serve the rendezvous address.
SERVING = "serving"

#: At `RESTED` the directory reads requests again, at `DOORS` connections without a known peer are checked.
RESTED, DOORS = "rested", "doors"

#: Actions that the driver passes to the thread that computes or trains.
Outward = Compute | Cancel | EveryoneIn | Aggregated | Gathered | Pack | Renewed | Ended | Note | Finished


class Driver(threading.Thread):
    """Runs a machine until it has left. It never computes: orders to compute go to `tell`."""

    def __init__(
        self,
        machine: Machine,
        transport: Carrier,
        tell: Callable[[Outward], None],
        met: Met | None = None,
        *,
        timing: Timing,
        orphaned_after: float = 300.0,
    ) -> None:
        super().__init__(name=f"codedreduce-{machine.node}", daemon=True)
        self.machine = machine
        self.failure: BaseException | None = None
        self._timing = timing
        self._transport = transport
        transport.stands = lambda: (machine.generation, machine.round)
        self._run = met.run if met is not None else None
        self._directory = met.directory if met is not None else None
        self._visitor = met.visitor if met is not None else None
        self._visits: frozenset[object] = frozenset(self._visitor.sockets if self._visitor is not None else ())
        self._monitors: dict[object, zmq.Socket[bytes]] = {}  # by file descriptor
        self._serves = False  # or tries to serve the rendezvous address
        self._tell = tell
        self._poller = zmq.Poller()
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, str]] = []
        self._timer_tokens: dict[str, int] = {}  # the valid token of each timer
        self._last_token = 0  # only grows, so that an old timer never counts as a new one
        self._left = self._vanished = False
        self._met: set[int] = set()
        self._away: set[int] = set()  # those of `_met` that cannot be reached
        self._orphaned_after = orphaned_after
        self._probing = Probing(lambda peer: self.post(PeerLost(peer=peer, dead=True)), timing)
        self._woken, self._waker = os.pipe()  # waking by a ZeroMQ socket would cost several times as much
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._wake_lock = threading.Lock()
        self._over = False

    def post(self, event: Event) -> None:
        """Post an event to the machine, from any thread."""
        self._inbox.put(event)
        self._wake()

    def post_begin(self, begin: Begin) -> None:
        """Post `Begin`; do not wake the driver if `Begin` has no effect until the leader begins the round, too.

        This method checks that after it has queued the event, and the driver checks the queue after each message of
        the leader: so one of them sees the other.
        """
        machine = self.machine
        self._inbox.put(begin)
        waits = isinstance(machine, Rank) and machine.is_to_wait(begin.round)
        if not waits:
            self._wake()

    def _wake(self) -> None:
        with self._wake_lock:
            if not self._over:
                with contextlib.suppress(BlockingIOError):  # the pipe is full, so the driver wakes anyway
                    os.write(self._waker, b"\0")

    def leave(self, reason: str) -> None:
        """Leave, and wait until all others have been informed."""
        if self.is_alive():
            self.post(Leave(reason=reason, at_once=True))
            self.join(timeout=self._timing.exit_timeout)

    def vanish(self) -> None:
        """Leave without a message: the others detect the failure, and continue without this node or wait for it."""
        self._vanished = self._left = True
        self._wake()
        self.join(timeout=self._timing.exit_timeout)

    def run(self) -> None:
        """Run the loop."""
        try:
            self._loop()
        except BaseException as error:
            self.failure = error
            self._tell(Finished(reason=f"{type(error).__name__}: {error}"))
        finally:
            self._probing.close()
            self._transport.close()
            if self._visitor is not None:
                self._visitor.close()
            if self._directory is not None:
                self._directory.close(is_over=self._leads and self._left and not self._vanished and self._is_over)
            with self._wake_lock:
                self._over = True
                os.close(self._waker)
                os.close(self._woken)

    def _loop(self) -> None:
        poller = self._poller
        for socket in self._transport.sockets:
            poller.register(socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        monitors = [*self._transport.monitors]
        if self._directory is not None:
            poller.register(self._directory.listener.socket, zmq.POLLIN)
            monitors.append(self._directory.listener.monitor)
            self._directory.addresses.tells = self._stands
        if self._visitor is not None:
            self._visitor.stands = self._stands
            answers, monitor = self._visitor.sockets
            poller.register(answers, zmq.POLLIN)
            monitors.append(monitor)
        for monitor in monitors:
            self._monitors[int(monitor.get(zmq.FD))] = monitor
        for descriptor in self._monitors:
            poller.register(descriptor, zmq.POLLIN)
        if self._needed is not None:
            self._perform(SetTimer(name=ORPHANED, at=time.monotonic() + self._orphaned_after))  # until first contact
        self._handle_event(Started())
        self._look_at_doors()
        self._take_what_came(dict.fromkeys(monitors, zmq.POLLIN))  # before the first poll
        while not self._left:
            ready = self._wait()
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._take_posted()
            self._take_what_came(ready)
            self._fire_timers()

    def _wait(self) -> dict[object, int]:
        """The sockets that are ready to read.

        Monitors rarely are, and are polled by their descriptors, which costs a fraction of polling a socket. A
        descriptor signals only events since its socket was last read to the end; monitors are always read to the end.
        """
        ready: dict[object, int] = dict(self._poller.poll(self._timeout()))
        for descriptor in self._monitors.keys() & ready.keys():
            ready[self._monitors[descriptor]] = ready.pop(descriptor)
        return ready

    def _take_what_came(self, ready: Collection[object]) -> None:
        self._look_where_others_are(ready)
        if len(ready) > (self._woken in ready) or self._transport.has_news:
            self._take_news(ready)
            self._take_posted()

    # -- rendezvous

    def _stands(self) -> Standing:
        """The state of the run, as this node knows it."""
        machine = self.machine
        is_on = self._run is not None and machine.round > self._run.settings.after
        leader = getattr(machine, "leader", 0)
        return Standing(generation=machine.generation, leader=leader, round=machine.round, is_on=is_on)

    @property
    def _leads(self) -> bool:
        first = self._run.plan.first_node if self._run is not None else 0
        return self.machine.node == getattr(self.machine, "leader", first)

    @property
    def _is_over(self) -> bool:
        """Whether the run ends when this leader leaves: another rank would lead, unless the end was announced."""
        return not isinstance(self.machine, Rank) or self.machine.ended_after is not None

    def _look_where_others_are(self, ready: Collection[object]) -> None:
        """Take new addresses of restarted neighbours, and answer ranks that ask for addresses."""
        directory, visitor = self._directory, self._visitor
        if visitor is not None and not self._visits.isdisjoint(ready):
            for node, endpoints in visitor.take().items():
                self._transport.move(node, endpoints)
            self._leave_what_is_over()
        if directory is None:
            return
        listener, moved = directory.listener, directory.addresses.moved
        if listener.monitor in ready:
            listener.look()
        if listener.socket in ready or moved or directory.keeps_some_waiting:
            directory.serve()
            if listener.rests_until > time.monotonic():  # other sockets are read meanwhile, however many ask
                self._poller.modify(listener.socket, 0)
                self._perform(SetTimer(name=RESTED, at=listener.rests_until))
            for node, endpoints in moved.items():
                self._transport.move(node, endpoints)
            moved.clear()
        for note in directory.take_notes():
            self._tell(msgspec.structs.replace(note, round=self.machine.round))
        if not self._serves and self._leads:
            self._serves = True
            self._serve_where_it_meets()

    def _look_at_doors(self) -> None:
        """Close connections that do not identify themselves in time, also while nothing else happens."""
        self._transport.look_at_doors()
        if self._directory is not None:
            self._directory.listener.look()
        self._perform(SetTimer(name=DOORS, at=time.monotonic() + self._timing.unidentified_check))

    def _serve_where_it_meets(self) -> None:
        """The leader serves the rendezvous address if it is on this host, once no other process serves it."""
        directory, visitor = self._directory, self._visitor
        assert directory is not None
        place = directory.meets_at
        if place in directory.listener.addresses or not self._leads:
            return
        opened = directory.listener.open(place)
        if opened is Opened.HERE:
            directory.begin(visitor.knows if visitor is not None else {})
            directory.serve()
        elif opened is Opened.TAKEN:
            self._perform(SetTimer(name=SERVING, at=time.monotonic() + self._timing.serve_retry))

    def _leave_what_is_over(self) -> None:
        """Leave if this node cannot reach the rank it needs, and a rendezvous address reports that the run is over.

        A rank that is a member learns of the end from the leader: a report from a rendezvous address may be outdated.
        """
        if isinstance(self.machine, Rank) and self.machine.begun:
            return
        over = self._visitor.over if self._visitor is not None else None
        if over is not None and self._needed is not None and ORPHANED in self._timer_tokens:
            self._handle_event(Leave(at_once=True, reason=over))

    # -- neighbours

    @property
    def _needed(self) -> int | None:
        """The rank without which this node leaves: the leader, if that may change, else a fixed neighbour."""
        leader = getattr(self.machine, "leader", None)
        if leader is None:
            return self._transport.needs
        return leader if leader != self.machine.node else None

    def _lose(self, peer: int) -> None:
        """A neighbour cannot be reached; if this node needs it, it leaves after a timeout."""
        self._met.add(peer)  # so that `_find` reports it, though it may never have been reached before
        self._away.add(peer)
        self._handle_event(PeerLost(peer=peer))
        if isinstance(self.machine, Rank):
            self._probing.begin(peer, self._transport.address_of(peer))
        if peer == self._needed and not self._left:
            seconds = self._orphaned_after
            self._perform(SetTimer(name=ORPHANED, at=time.monotonic() + seconds))
            reason = f"rank {peer} cannot be reached; waiting for it for up to {seconds:g} s"
            self._tell(Note(kind="orphaned", reason=reason, round=self.machine.round, nodes=(peer,)))
            self._leave_what_is_over()

    def _leave_as_orphan(self) -> None:
        """Leave, since the needed rank was not reached in time, unless the rank needed now can be reached."""
        needed, seconds = self._needed, self._orphaned_after
        if needed is None or (needed in self._met and needed not in self._away):
            return
        if needed not in self._met:
            words = f"rank {self.machine.node} could not reach rank {needed} within {seconds:g} s"
            self.failure = CodedReduceError(words)
        self._handle_event(Leave(at_once=True, reason=f"rank {needed} was unreachable for {seconds:g} s"))

    def _find(self, peer: int) -> None:
        """A neighbour can be reached."""
        self._away.discard(peer)
        if peer == self._needed:
            self._timer_tokens.pop(ORPHANED, None)
        self._probing.end(peer)
        if peer in self._met:
            self._handle_event(PeerFound(peer=peer))
        self._met.add(peer)

    def _timeout(self) -> int | None:
        if self._transport.has_news:
            return 0
        if not self._timers:
            return None
        return max(0, int(1000 * (self._timers[0][0] - time.monotonic())) + 1)

    def _take_posted(self) -> None:
        while not self._inbox.empty():
            self._handle_event(self._inbox.get_nowait())

    def _take_news(self, ready: Container[object]) -> None:
        for news in self._transport.take(ready):
            if isinstance(news, Arrived):
                if news.message is None:
                    self._handle_event(Drained(peer=news.sender))
                else:
                    self._handle_event(Received(sender=news.sender, message=news.message, data=news.data))
            elif isinstance(news, Gone):
                self._lose(news.peer)
            elif isinstance(news, Reached):
                self._find(news.peer)
        for sender, why in self._transport.unreadable[:10]:
            kind, nodes = ("stranger", ()) if sender is None else ("unreadable", (sender,))
            self._tell(Note(kind=kind, reason=why, round=0, nodes=nodes))
        self._transport.unreadable.clear()

    def _fire_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, token, name = heapq.heappop(self._timers)
            if self._timer_tokens.get(name) != token:
                continue
            if name == SERVING:
                self._serve_where_it_meets()
            elif name == ORPHANED:
                self._leave_as_orphan()
            elif name == RESTED:
                assert self._directory is not None
                self._poller.modify(self._directory.listener.socket, zmq.POLLIN)
            elif name == DOORS:
                self._look_at_doors()
            else:
                self._handle_event(TimerFired(name=name))

    def _handle_event(self, event: Event) -> None:
        if self._left:
            return
        for action in self.machine.handle(event, time.monotonic()):
            self._perform(action)

    def _perform(self, action: AnyAction) -> None:
        if isinstance(action, Transmit):
            self._transport.send(action)
        elif isinstance(action, SetTimer):
            self._last_token += 1
            self._timer_tokens[action.name] = self._last_token
            heapq.heappush(self._timers, (action.at, self._last_token, action.name))
        else:
            if isinstance(action, Finished):
                self._left = True
            self._tell(action)
