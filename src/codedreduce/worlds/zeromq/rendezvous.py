"""How nodes find each other: everyone tells the root where it listens, and is told where those do whom it looks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, UsageError, WireError
from codedreduce.worlds.run import Meeting, difference
from codedreduce.worlds.zeromq.carrier import Endpoints
from codedreduce.worlds.zeromq.sockets import LAST_WORDS, Context, answering, knocking

#: Seconds after which the root is asked again: a root that was just leaving may have taken the question with it.
ASK_AGAIN = 2.0


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """A node says who it is, whom it looks for, what it came to train, and where it listens itself, if it does."""

    run: str
    node: int
    seeks: tuple[int, ...]
    listens: Endpoints | None
    subject: str = ""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The root says where the others listen, or whom it does not know yet, or why this node cannot be in."""

    endpoints: dict[int, Endpoints] | None
    refusal: str = ""
    final: bool = True
    missing: tuple[int, ...] = ()


class Directory:
    """The root's book of addresses, on a socket of its own."""

    def __init__(self, context: Context, meeting: Meeting) -> None:
        self._meeting = meeting
        self.refused: list[tuple[int, str]] = []  # who could not be let in, and why, since last asked
        self._last_refusal = ""
        self._known: dict[int, Endpoints] = {}
        self._asking: dict[bytes, tuple[int, ...]] = {}  # who waits, and for whom
        self._decoder = msgspec.msgpack.Decoder(Registration)
        self.socket = answering(context, meeting.address, "the root")

    def add(self, node: int, endpoints: Endpoints) -> None:
        """A node listens here; tell those who have waited for it."""
        self._known[node] = endpoints
        for identity, seeks in list(self._asking.items()):
            if not self._missing(seeks):
                del self._asking[identity]
                self._answer(identity, Answer(self._found(seeks)))

    def _missing(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(node for node in nodes if node not in self._known)

    def _found(self, nodes: Iterable[int]) -> dict[int, Endpoints]:
        return {node: self._known[node] for node in nodes}

    def _answer(self, identity: bytes, answer: Answer) -> None:
        try:
            self.socket.send_multipart([identity, msgspec.msgpack.encode(answer)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):  # whoever asked is gone
                raise

    def wait_for(self, nodes: tuple[int, ...], watch: Callable[[], None]) -> dict[int, Endpoints]:
        """Serve until all these nodes have said where they listen."""
        deadline = time.monotonic() + self._meeting.all_within
        while missing := self._missing(nodes):
            self.socket.poll(200)
            self.serve()
            watch()
            if time.monotonic() > deadline:
                raise CodedReduceError(f"{_named(missing)} did not come up within {self._meeting.all_within:g} s")
        return self._found(nodes)

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
                why = difference(registration.node, registration.subject, self._meeting.subject)
                self.refused.append((registration.node, why))
                self._last_refusal = why
                self._answer(identity, Answer(None, why))
                continue
            if registration.listens is not None:
                self.add(registration.node, registration.listens)
            missing = self._missing(registration.seeks)
            if missing:
                self._asking[identity] = registration.seeks
                self._answer(identity, Answer(None, final=False, missing=missing))
            else:
                self._answer(identity, Answer(self._found(registration.seeks)))

    def close(self) -> None:
        """Let those go who still wait for somebody's address."""
        why = self._last_refusal or "the root has left"
        for identity in self._asking:
            self._answer(identity, Answer(None, f"the run is over: {why}"))
        self._asking.clear()
        self.socket.close(linger=LAST_WORDS)


def find(context: Context, meeting: Meeting, registration: Registration) -> dict[int, Endpoints]:
    """Ask the root where others listen; a clear error if the root cannot be reached, or they do not come, in time."""
    start = time.monotonic()
    answer: Answer | None = None
    socket = knocking(context, meeting.address)
    try:
        while True:
            socket.send(msgspec.msgpack.encode(registration))
            ask_again = time.monotonic() + ASK_AGAIN
            while (left := min(ask_again, start + _patience(meeting, answer)) - time.monotonic()) > 0:
                if not socket.poll(int(1000 * left) + 1):
                    continue
                answer = msgspec.msgpack.decode(socket.recv(), type=Answer)
                if answer.endpoints is not None:
                    return answer.endpoints
                if answer.final:
                    raise JoinRefused(answer.refusal)
                if not answer.missing:
                    ask_again = time.monotonic() + 0.05  # the run before this one may be about to end
            if time.monotonic() > start + _patience(meeting, answer):
                raise _in_vain(meeting, registration.node, answer)
    except msgspec.MsgspecError as error:
        raise WireError(f"the root at {meeting.address} answered something else: {error}") from None
    finally:
        socket.close()


def _patience(meeting: Meeting, answer: Answer | None) -> float:
    """Seconds to wait: for the root, or when it has answered for those who are missing."""
    return meeting.all_within if answer is not None and answer.missing else meeting.root_within


def _in_vain(meeting: Meeting, node: int, answer: Answer | None) -> CodedReduceError:
    if answer is None:
        return UsageError(
            f"node {node} got no answer from the root at {meeting.address} within {meeting.root_within:g} s; "
            "is the root running, and are MASTER_ADDR and MASTER_PORT right?"
        )
    if answer.missing:
        return CodedReduceError(f"{_named(answer.missing)} did not come up within {meeting.all_within:g} s")
    return UsageError(f"the root at {meeting.address} belongs to another run")


def _named(nodes: tuple[int, ...]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else "nodes " + ", ".join(map(str, nodes))
