"""How nodes find their parents: everyone tells the root where it listens, and is told where its parent does."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, UsageError, WireError
from codedreduce.worlds.run import Meeting
from codedreduce.worlds.zeromq.sockets import LAST_WORDS, Context, bound, knocking
from codedreduce.worlds.zeromq.transport import Endpoints

#: Seconds after which the root is asked again: a root that was just leaving may have taken the question with it.
ASK_AGAIN = 2.0


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """A node says who it is, whom it looks for, what it came to train, and where it listens itself, if it does."""

    run: str
    node: int
    seeks: int
    listens: Endpoints | None
    subject: str = ""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The root says where the other listens, or why this node cannot be in."""

    endpoints: Endpoints | None
    refusal: str = ""
    final: bool = True


class Directory:
    """The root's book of addresses, on a socket of its own."""

    def __init__(self, context: Context, meeting: Meeting) -> None:
        self._meeting = meeting
        self.refused: list[tuple[int, str]] = []  # who could not be let in, and why, since last asked
        self._last_refusal = ""
        self._known: dict[int, Endpoints] = {}
        self._asking: dict[int, list[bytes]] = {}
        self._decoder = msgspec.msgpack.Decoder(Registration)
        self.socket = bound(context, meeting.address, "the root")[0]

    def add(self, node: int, endpoints: Endpoints) -> None:
        """A node listens here; tell those who asked."""
        self._known[node] = endpoints
        for identity in self._asking.pop(node, ()):
            self._answer(identity, Answer(endpoints))

    def _answer(self, identity: bytes, answer: Answer) -> None:
        try:
            self.socket.send_multipart([identity, msgspec.msgpack.encode(answer)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):  # whoever asked is gone
                raise

    def wait_for(self, node: int, watch: Callable[[], None]) -> Endpoints:
        """Serve until a node has said where it listens."""
        deadline = time.monotonic() + self._meeting.all_within
        while node not in self._known:
            self.socket.poll(200)
            self.serve()
            watch()
            if time.monotonic() > deadline:
                raise CodedReduceError(f"node {node} did not come up within {self._meeting.all_within:g} s")
        return self._known[node]

    def serve(self) -> None:
        """Answer everyone who has asked."""
        while True:
            try:
                identity, body = self.socket.recv_multipart(zmq.DONTWAIT)
                registration = self._decoder.decode(body)
            except zmq.Again:
                return
            except (msgspec.MsgspecError, ValueError):
                continue
            if registration.run != self._meeting.run:
                self._answer(identity, Answer(None, "the root belongs to another run", final=False))
                continue
            if registration.subject != self._meeting.subject:
                why = f"node {registration.node} has {registration.subject}, and the root {self._meeting.subject}"
                self.refused.append((registration.node, why))
                self._last_refusal = why
                self._answer(identity, Answer(None, why))
                continue
            if registration.listens is not None:
                self.add(registration.node, registration.listens)
            if registration.seeks in self._known:
                self._answer(identity, Answer(self._known[registration.seeks]))
            elif registration.seeks >= 0:
                self._asking.setdefault(registration.seeks, []).append(identity)

    def close(self) -> None:
        """Let those go who still wait for somebody's address."""
        why = self._last_refusal or "the root has left"
        for waiting in self._asking.values():
            for identity in waiting:
                self._answer(identity, Answer(None, f"the run is over: {why}"))
        self._asking.clear()
        self.socket.close(linger=LAST_WORDS)


def find(context: Context, meeting: Meeting, registration: Registration) -> Endpoints:
    """Ask the root where somebody listens; a clear error if the root cannot be reached in time."""
    address, within = meeting.address, meeting.root_within
    deadline = time.monotonic() + within
    turned_away = False
    socket = knocking(context, address)
    try:
        while True:
            socket.send(msgspec.msgpack.encode(registration))
            left = max(0.0, deadline - time.monotonic())
            if not socket.poll(int(1000 * min(left, ASK_AGAIN))):
                if left > ASK_AGAIN:
                    continue
                if turned_away:
                    raise UsageError(f"the root at {address} belongs to another run")
                raise UsageError(
                    f"node {registration.node} got no answer from the root at {address} within {within:g} s; "
                    "is the root running, and are MASTER_ADDR and MASTER_PORT right?"
                )
            answer = msgspec.msgpack.decode(socket.recv(), type=Answer)
            if answer.endpoints is not None:
                return answer.endpoints
            if answer.final:
                raise JoinRefused(answer.refusal)
            turned_away = True
            time.sleep(0.05)  # the run before this one may be about to end
    except msgspec.MsgspecError as error:
        raise WireError(f"the root at {address} answered something else: {error}") from None
    finally:
        socket.close()
