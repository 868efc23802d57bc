"""A node's permanent connections to the directories of its run: it registers whenever such a connection is new.

So a restarted root, or a rank that answers in its place, knows all nodes; and all nodes find a node that was restarted
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, Outlived, UsageError, WireError
from codedreduce.net.connections import Endpoints
from codedreduce.net.keys import Guard
from codedreduce.net.limits import of_books
from codedreduce.net.rendezvous.directory import ANY_NODES
from codedreduce.net.rendezvous.identity import Identity
from codedreduce.net.rendezvous.registration import Answer, Registration, Standing, named
from codedreduce.net.sockets import Context, Socket, comings_and_goings, knocking
from codedreduce.run.agreement import Meeting
from codedreduce.timing import milliseconds


class Visitor:
    """Registers a node at the rendezvous addresses of its run, and receives the addresses that the node needs."""

    def __init__(
        self, context: Context, meeting: Meeting, registration: Registration, at: Iterable[str] = (),
        guard: Guard | None = None, identity: Identity | None = None,
    ) -> None:  # fmt: skip
        self._meeting = meeting
        self._timing = meeting.timing
        self._identity = identity or Identity()
        self._guard = guard
        self._refused_at: dict[str, float] = {}  # when each place first rejected this node's connection
        self._registration = registration
        if guard is not None:
            proof = guard.proof(registration.run, registration.node)
            self._registration = msgspec.structs.replace(registration, key=guard.key, proof=proof)
        self._places = tuple(at or meeting.addresses)
        self._socket, self._monitor = knocking(context, self._places, of_books(len(ANY_NODES), meeting.timing), guard)
        self._answer: Answer | None = None
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self.knows: dict[int, Endpoints] = {}
        self.stands: Callable[[], Standing] = Standing  # the state of the run, as this node knows it
        self.over: str | None = None  # why this node cannot take part any more

    @property
    def sockets(self) -> tuple[Socket, Socket]:
        """Sockets that are readable when `take` may have news."""
        return self._socket, self._monitor

    @property
    def standing(self) -> Standing:
        """The state of the run in the last answer with addresses."""
        return self._answer.standing if self._answer is not None else Standing()

    def register(self, places: Iterable[str]) -> None:
        """Send this node's registration to some rendezvous addresses."""
        said = msgspec.structs.replace(
            self._registration, knows=self.knows, standing=self.stands(), identity=self._identity.value
        )
        for place in places:
            self._socket.send_multipart([place.encode(), msgspec.msgpack.encode(said)], zmq.DONTWAIT)

    def take(self) -> dict[int, Endpoints]:
        """New addresses of other nodes. Registers where a connection is new."""
        news: dict[int, Endpoints] = {}
        came = set()
        for told in comings_and_goings(self._monitor):
            if told.is_there:
                came.add(told.endpoint)
                self._refused_at.pop(told.endpoint, None)
            elif told.is_refused:
                self._refused_at.setdefault(told.endpoint, time.monotonic())
        if came:  # by the system's name for the place, if that differs
            self.register(came if came.issubset(self._places) else self._places)
        while True:
            try:
                place, body = self._socket.recv_multipart(zmq.DONTWAIT)
                answer = self._decoder.decode(body)
            except zmq.Again:
                break
            except (msgspec.MsgspecError, ValueError) as error:
                raise WireError(f"the root at {place.decode()} sent an unreadable answer: {error}") from None
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
        """Accept the identity in an answer; whether it is this run's. The root's own address is authoritative."""
        if not self._identity.is_of_it(identity) and self._identity.is_settled and place != self._places[0]:
            return False
        self._identity.settle(identity)
        return True

    def find(self, look: Callable[[], None] = lambda: None) -> dict[int, Endpoints]:
        """Wait for the addresses of other nodes; raise an error if no answer, or not all of them, come in time."""
        start = time.monotonic()
        ask_again = float("inf")
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        while not self.knows and self._registration.seeks:
            left = start + self._patience() - time.monotonic()
            poller.poll(milliseconds(min(self._timing.poll_interval, left, ask_again - time.monotonic())))
            before = self._answer
            self.take()
            look()
            if self._answer is not None and self._answer.training > self._meeting.training:
                raise Outlived(self._answer.training)
            if self.over is not None:
                raise JoinRefused(self.over)
            self._check_let_in()
            if self._answer is not before and self._answer is not None and self._answer.refusal:
                ask_again = time.monotonic() + (
                    self._timing.taken_retry if self._is_taken else self._timing.registration_retry
                )
            if time.monotonic() > start + self._patience():
                raise self._in_vain()
            if time.monotonic() > ask_again:
                ask_again = float("inf")
                self.register(self._places)
        return self.knows

    def _check_let_in(self) -> None:
        """Raise an error if a process has rejected this node for a while: that process has another secret, or none."""
        since = min(self._refused_at.values(), default=None)
        if self._answer is not None or since is None or time.monotonic() < since + self._timing.rejection_timeout:
            return
        where, node, secret = " and ".join(sorted(self._refused_at)), self._registration.node, self._meeting.secret
        has = f"rank {node}'s secret ({secret.source})" if secret is not None else f"rank {node} without a secret"
        raise JoinRefused(
            f"authentication failed: the process at {where} rejected {has}; all processes of a run must "
            "have the same secret (CODEDREDUCE_SECRET, CODEDREDUCE_SECRET_FILE), and no other program may use that port"
        )

    @property
    def _is_taken(self) -> bool:
        return self._answer is not None and "is taken" in self._answer.refusal

    def _patience(self) -> float:
        """Seconds to wait for the root; for missing nodes, if the root has answered; or for another process to end."""
        meeting = self._meeting
        if self._answer is None:
            return meeting.root_within
        if self._answer.missing:
            return meeting.all_within if meeting.least is None else meeting.orphaned_after
        return self._timing.taken_timeout if self._is_taken else meeting.root_within

    def _in_vain(self) -> CodedReduceError:
        meeting, node = self._meeting, self._registration.node
        if self._answer is None:
            where = " or ".join(meeting.addresses)
            return UsageError(
                f"rank {node} got no answer from the root at {where} within {meeting.root_within:g} s; "
                "is the root running, and are MASTER_ADDR and MASTER_PORT right?"
            )
        if self._answer.missing:
            return CodedReduceError(f"{named(self._answer.missing)} did not come up within {meeting.all_within:g} s")
        if self._is_taken:
            return JoinRefused(self._answer.refusal)
        return UsageError(
            f"the root at {meeting.address} belongs to another run: end the processes of that run, or choose another "
            "MASTER_PORT"
        )

    def close(self) -> None:
        """Close the connections."""
        self._socket.disable_monitor()
        self._socket.close(linger=0)
        self._monitor.close(linger=0)
