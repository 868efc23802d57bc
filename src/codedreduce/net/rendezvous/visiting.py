"""A node's standing connections to the books of addresses of its run: it registers whenever such a connection is new.

So a root that was started again, and whoever answers in its place, knows all that are there; and a node that was
started again elsewhere is found by all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, Outlived, UsageError, WireError
from codedreduce.net.carrier import Endpoints
from codedreduce.net.keys import Guard
from codedreduce.net.limits import of_books
from codedreduce.net.rendezvous.directory import ANY_NODES, Answer, Registration, Standing, named
from codedreduce.net.rendezvous.identity import Identity
from codedreduce.net.sockets import Context, Socket, comings_and_goings, knocking
from codedreduce.run.agreement import Meeting

#: Seconds between two questions to one who belongs to another run, or has another process of this node: it may be about
#: to end, or its end may not be known yet. And how long the latter is believed.
ASK_AGAIN = 0.05
ASK_AGAIN_WHERE_TAKEN = 1.0
TAKEN_WITHIN = 8.0

#: Seconds that somebody who is there has to let this node in; it may be of a run that is about to end.
LET_IN_WITHIN = 2.0

#: Milliseconds between two looks at whatever else there is to see while an answer is awaited.
LOOK_EVERY = 200


class Visitor:
    """A node that says who it is wherever its run meets, and hears where those listen whom it looks for."""

    def __init__(
        self, context: Context, meeting: Meeting, registration: Registration, at: Iterable[str] = (),
        guard: Guard | None = None, identity: Identity | None = None,
    ) -> None:  # fmt: skip
        self._meeting = meeting
        self._identity = identity or Identity()
        self._guard = guard
        self._refused_at: dict[str, float] = {}  # where this node was not let in, since when
        self._registration = registration
        if guard is not None:
            proof = guard.proof(registration.run, registration.node)
            self._registration = msgspec.structs.replace(registration, key=guard.key, proof=proof)
        self._places = tuple(at or meeting.addresses)
        self._socket, self._monitor = knocking(context, self._places, of_books(len(ANY_NODES)), guard)
        self._answer: Answer | None = None
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self.knows: dict[int, Endpoints] = {}
        self.stands: Callable[[], Standing] = Standing  # how the run stands, seen from here
        self.over: str | None = None  # why there is nothing left to be in

    @property
    def sockets(self) -> tuple[Socket, Socket]:
        """They have something to read when `take` may have something to tell."""
        return self._socket, self._monitor

    @property
    def standing(self) -> Standing:
        """How the run stood when this node was last told where somebody listens."""
        return self._answer.standing if self._answer is not None else Standing()

    def register(self, places: Iterable[str]) -> None:
        """Say who this node is, at some of the places where the run meets."""
        said = msgspec.structs.replace(
            self._registration, knows=self.knows, standing=self.stands(), identity=self._identity.value
        )
        for place in places:
            self._socket.send_multipart([place.encode(), msgspec.msgpack.encode(said)], zmq.DONTWAIT)

    def take(self) -> dict[int, Endpoints]:
        """Where others listen, as far as it is news; and register where a connection is new."""
        news: dict[int, Endpoints] = {}
        came = set()
        for told in comings_and_goings(self._monitor):
            if told.is_there:
                came.add(told.endpoint)
                self._refused_at.pop(told.endpoint, None)
            elif told.is_refused:
                self._refused_at.setdefault(told.endpoint, time.monotonic())
        if came:  # by a name that the system has for it, if the place has another
            self.register(came if came.issubset(self._places) else self._places)
        while True:
            try:
                place, body = self._socket.recv_multipart(zmq.DONTWAIT)
                answer = self._decoder.decode(body)
            except zmq.Again:
                break
            except (msgspec.MsgspecError, ValueError) as error:
                raise WireError(f"the root at {place.decode()} answered something else: {error}") from None
            if answer.identity and not self._is_told(answer.identity, place.decode()):
                continue
            if answer.endpoints:
                news.update(answer.endpoints)
            if self._guard is not None:
                for node, key in answer.admits.items():
                    self._guard.name(node, key)
            if answer.endpoints != {}:
                self._answer = answer
            if answer.refusal and answer.final:
                self.over = answer.refusal
        self.knows.update(news)
        return news

    def _is_told(self, identity: str, place: str) -> bool:
        """Take what a book says which run this is; whether it is of this one. Where the root answers is believed."""
        if not self._identity.is_of_it(identity) and self._identity.is_settled and place != self._places[0]:
            return False
        self._identity.settle(identity)
        return True

    def find(self, look: Callable[[], None] = lambda: None) -> dict[int, Endpoints]:
        """Wait to be told where others listen; a clear error if nobody answers, or they do not come, in time."""
        start = time.monotonic()
        ask_again = float("inf")
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        while not self.knows and self._registration.seeks:
            left = start + self._patience() - time.monotonic()
            poller.poll(max(1, min(LOOK_EVERY, int(1000 * min(left, ask_again - time.monotonic())))))
            before = self._answer
            self.take()
            look()
            if self._answer is not None and self._answer.training > self._meeting.training:
                raise Outlived(self._answer.training)
            if self.over is not None:
                raise JoinRefused(self.over)
            self._check_let_in()
            if self._answer is not before and self._answer is not None and self._answer.refusal:
                ask_again = time.monotonic() + (ASK_AGAIN_WHERE_TAKEN if self._is_taken else ASK_AGAIN)
            if time.monotonic() > start + self._patience():
                raise self._in_vain()
            if time.monotonic() > ask_again:
                ask_again = float("inf")
                self.register(self._places)
        return self.knows

    def _check_let_in(self) -> None:
        """Somebody is there, and has not let this node in for a while: it has another secret, or none."""
        since = min(self._refused_at.values(), default=None)
        if self._answer is not None or since is None or time.monotonic() < since + LET_IN_WITHIN:
            return
        where, node, secret = " and ".join(sorted(self._refused_at)), self._registration.node, self._meeting.secret
        has = f"node {node} has that of {secret.source}" if secret is not None else f"node {node} has none"
        raise JoinRefused(
            f"wrong secret: who answers at {where} did not let this node in, and {has}; all processes of a run must "
            "have the same (CODEDREDUCE_SECRET, CODEDREDUCE_SECRET_FILE), and no other program may be at that port"
        )

    @property
    def _is_taken(self) -> bool:
        return self._answer is not None and "is taken" in self._answer.refusal

    def _patience(self) -> float:
        """Seconds to wait: for the root; when it has answered for those who are missing; for another process to end."""
        meeting = self._meeting
        if self._answer is None:
            return meeting.root_within
        if self._answer.missing:
            return meeting.all_within if meeting.least is None else meeting.orphaned_after
        return TAKEN_WITHIN if self._is_taken else meeting.root_within

    def _in_vain(self) -> CodedReduceError:
        meeting, node = self._meeting, self._registration.node
        if self._answer is None:
            where = " or ".join(meeting.addresses)
            return UsageError(
                f"node {node} got no answer from the root at {where} within {meeting.root_within:g} s; "
                "is the root running, and are MASTER_ADDR and MASTER_PORT right?"
            )
        if self._answer.missing:
            return CodedReduceError(f"{named(self._answer.missing)} did not come up within {meeting.all_within:g} s")
        if self._is_taken:
            return JoinRefused(self._answer.refusal)
        return UsageError(
            f"the root at {meeting.address} belongs to another run: end what is left of that, or choose another "
            "MASTER_PORT"
        )

    def close(self) -> None:
        """Be there no longer."""
        self._socket.disable_monitor()
        self._socket.close(linger=0)
        self._monitor.close(linger=0)


def find(context: Context, meeting: Meeting, registration: Registration) -> dict[int, Endpoints]:
    """Ask once where others listen."""
    guard = Guard(context, meeting.secret) if meeting.secret is not None else None
    visitor = Visitor(context, meeting, registration, guard=guard)
    try:
        return visitor.find()
    finally:
        visitor.close()
        if guard is not None:
            guard.close()
