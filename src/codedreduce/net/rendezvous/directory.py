"""How nodes find each other: everyone says where it listens to whoever answers where the run meets, and is told where
those listen whom it looks for; now, and whenever that changes.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, Outlived
from codedreduce.net.carrier import Endpoints
from codedreduce.net.keys import KEY_CHARACTERS, Guard, user_of
from codedreduce.net.limits import of_books
from codedreduce.net.pending_connections import PendingConnections
from codedreduce.net.rendezvous.identity import Identity
from codedreduce.net.sockets import (
    LAST_WORDS,
    Context,
    answering,
    comings_and_goings,
    is_local,
    listen_at_too,
)
from codedreduce.run.agreement import Meeting, difference
from codedreduce.run.quorum import Gathering

#: Questions that are answered at a time; if there are more they wait so many seconds, in which others are heard.
AT_ONCE = 16
REST = 0.05

#: Seconds that a node which came with another plan than the root's has to come with the right one, when all others are
#: in: it may have been somebody else who said that it is that node.
COME_RIGHT_WITHIN = 3.0

#: Who asks so often for a place that is taken is a second process of that node.
TWICE_IF_ASKED = 4

#: Nodes that a run can have, if it is not said which it has.
ANY_NODES = range(4096)

#: Kinds of arithmetic that are told of, at most.
MOST_KINDS = 10

#: No round or generation is above it.
LAST = 2**53

_PLACE = re.compile(r"(tcp://[\w.:%\[\]-]{1,253}:\d{1,5}|ipc://[^\0]{1,200})")


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """How a node's run stands, as far as it knows: who leads, and whether it has begun."""

    generation: int = 0
    coordinator: int = 0
    round: int = 0
    is_on: bool = False


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """A node says who it is, whom it looks for, what it came to train, and where it listens itself, if it does.

    Beside that, which of the node's processes it is, where it believes those to listen whom it looks for, and how its
    run stands.
    """

    run: str
    node: int
    seeks: tuple[int, ...]
    listens: Endpoints | None
    subject: str = ""
    process: int = 0
    knows: dict[int, Endpoints] = {}
    standing: Standing = Standing()
    key: str = ""  # what the process is known by where keys are asked for
    proof: bytes = b""  # and that it knows the secret
    series: str = ""  # one of which run's trainings it came to, and which
    training: int = 1
    arithmetic: Annotated[str, msgspec.Meta(max_length=400)] = ""  # with what it computes
    identity: Annotated[str, msgspec.Meta(max_length=64)] = ""  # which run it is in, if it has been told


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Where others listen, or who is not known yet, or why this node cannot be in; and how the run stands.

    `admits` are those who look for this node, and their keys.
    """

    endpoints: dict[int, Endpoints] | None
    refusal: str = ""
    final: bool = True
    missing: tuple[int, ...] = ()
    standing: Standing = Standing()
    admits: dict[int, str] = {}
    training: int = 0  # at which one the others are, if this node came to another of the same run
    identity: str = ""  # which run this is


class Opened(Enum):
    """What came of answering at an address."""

    HERE = auto()
    TAKEN = auto()  # somebody else answers there
    ELSEWHERE = auto()  # it is another machine's


@dataclass
class Visit:
    """A process that has registered, what it looks for, and what it has been told."""

    node: int
    process: int
    seeks: tuple[int, ...]
    knows: dict[int, Endpoints] = field(default_factory=dict)
    key: str = ""


class Directory:
    """A book of addresses, on a socket of its own, at one or several places where the run meets.

    `moved` are nodes that have said where they listen since last asked: the process that has the book may be one of
    those who look for them.
    """

    def __init__(
        self, context: Context, meeting: Meeting, *, owner: int = 0, process: int = 0, nodes: range = ANY_NODES,
        seeks: tuple[int, ...] = (), guard: Guard | None = None, identity: Identity | None = None,
    ) -> None:  # fmt: skip
        self._meeting = meeting
        self._identity = identity or Identity()
        self._earlier: dict[int, tuple[bytes, Registration]] = {}  # who says that this is another run
        self._nodes = nodes
        self._seeks = seeks  # whom the process that has the book looks for
        self._guard = guard
        self._owner, self._process = owner, process
        self._refused: list[tuple[int, str]] = []
        self._others: list[tuple[int, str]] = []
        self._strays: list[tuple[int, str]] = []
        self.arithmetic = meeting.arithmetic
        self._arithmetics = {meeting.arithmetic, ""}
        self._refusals: Counter[int] = Counter()
        self._asked_in_vain: Counter[int] = Counter()
        self._all_wrong_since: float | None = None  # whoever is missing came, and was refused
        self._last_refusal = ""
        self._known: dict[int, Endpoints] = {}
        self.moved: dict[int, Endpoints] = {}
        self._visits: dict[bytes, Visit] = {}
        self._is_for_all = False  # who asks is told what is known, though some are missing
        self.heard = Standing()  # of a run that is on, from those who are in it
        self.tells: Callable[[], Standing] = lambda: self.heard
        self._decoder = msgspec.msgpack.Decoder(Registration)
        self.addresses: list[str] = []  # where it answers
        self.meets_at = meeting.address  # where one should
        self.socket, self.monitor = answering(context, of_books(len(nodes)))
        self._door = PendingConnections(self.addresses)
        self._latest = meeting.training  # the training that somebody has come to
        self.rests_until = 0.0  # more have asked than are answered at a time

    def open(self, address: str) -> Opened:
        """Answer at an address, too."""
        errno = listen_at_too(self.socket, address, self._guard)
        if errno:
            return Opened.TAKEN if errno == zmq.EADDRINUSE else Opened.ELSEWHERE
        self.addresses.append(address)
        return Opened.HERE

    def take_refused(self) -> list[tuple[int, str]]:
        """Who could not be let in, and why, since last asked."""
        refused, self._refused = self._refused, []
        return refused

    def take_strays(self) -> list[tuple[int, str]]:
        """Who came as a node that another process is, and was not let in, since last asked."""
        strays, self._strays = self._strays, []
        return strays

    def take_others(self) -> list[tuple[int, str]]:
        """Who computes otherwise than the process that has the book, and how, since last asked."""
        others, self._others = self._others, []
        return others

    # -- who listens where

    def add(self, node: int, endpoints: Endpoints) -> None:
        """A node listens here; tell those who look for it."""
        if self._known.get(node) != endpoints:
            self._known[node] = self.moved[node] = endpoints
            for identity in list(self._visits):
                self._tell(identity)

    def begin(self, known: dict[int, Endpoints]) -> None:
        """The process that has the book begins, and knows where these are: who asks need not wait for the others."""
        for node, endpoints in known.items():
            self._known.setdefault(node, endpoints)
        self._is_for_all = True
        if self._identity.value:
            self._settle()
        for identity in list(self._visits):
            self._tell(identity)

    def wait_for(
        self, nodes: tuple[int, ...], watch: Callable[[], None], gathering: Gathering | None = None
    ) -> dict[int, Endpoints]:
        """Serve until these nodes have said where they listen, or enough of them."""
        gathering = gathering or Gathering(lambda missing: not missing, time.monotonic())
        deadline = time.monotonic() + self._meeting.all_within
        while not gathering.may_begin(missing := self._missing(nodes), time.monotonic()):
            self.socket.poll(200)
            self.serve()
            watch()
            if self._latest > self._meeting.training:
                raise Outlived(self._latest)
            self._check_come_right(missing)
            if self.heard.is_on:
                gathering.join_what_is_on(time.monotonic())
            if time.monotonic() > deadline:
                late = f"{named(missing)} did not come up within {self._meeting.all_within:g} s"
                others = [_of_an_earlier_run(node, self.meets_at) for node in self._earlier if node in missing]
                raise CodedReduceError("; ".join([late, *others[:1]]))
        if nodes:
            self._settle()
        return {node: self._known[node] for node in nodes if node in self._known}

    def _check_come_right(self, missing: tuple[int, ...]) -> None:
        """Wait no longer if all that are missing came with something else, and have not come with the right thing."""
        now = time.monotonic()
        wrong = {node: why for node, why in self._refused if node in missing}
        if len(wrong) < len(missing):
            self._all_wrong_since = None
        elif self._all_wrong_since is None:
            self._all_wrong_since = now
        elif now > self._all_wrong_since + COME_RIGHT_WITHIN:
            raise JoinRefused(wrong[min(wrong)])

    def _missing(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(node for node in nodes if node not in self._known)

    # -- who asks

    def serve(self) -> None:
        """Answer those who have asked, so many at a time; what is no question costs who sent it the connection."""
        self.look_at_the_door()
        if self.keeps_some_waiting:
            self._send_away_who_is_of_another()
        for _ in range(AT_ONCE):
            try:
                identity, *frames = self.socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            descriptor = int(frames[-1].get(zmq.SRCFD)) if frames else -1
            registration = self._read(frames)
            if registration is None:
                self._door.cut(descriptor)
            elif not self._is_who_it_says(frames[0], registration):
                self._answer(identity.bytes, Answer(None, f"node {registration.node} has the wrong secret"))
            elif self._register(identity.bytes, registration):
                self.look_at_the_door()  # it may have come while others were answered
                self._door.is_known(descriptor)
        self.rests_until = time.monotonic() + REST

    def _is_who_it_says(self, body: zmq.Frame, registration: Registration) -> bool:
        """Whether who came by TCP knows the secret, and has the key that it says."""
        if self._guard is None or all(map(is_local, self.addresses)):  # to a file nobody else can come
            return True
        key = user_of(body)
        says, listens = registration, registration.listens
        shows = says.key == key and (listens is None or listens.key == key or all(map(is_local, listens.planes)))
        return shows and self._guard.is_proven(says.proof, says.run, says.node, says.key)

    def look_at_the_door(self) -> None:
        """Some come and go; who does not say who it is has to go."""
        for told in comings_and_goings(self.monitor):
            if told.has_come:
                self._door.came(told.descriptor)
            elif not told.is_there:
                self._door.went(told.descriptor)
        self._door.look()

    def _read(self, frames: list[zmq.Frame]) -> Registration | None:
        """What somebody says of itself, if it can be true; one of another run, or with another plan, may be any."""
        if len(frames) != 1:
            return None
        try:
            said = self._decoder.decode(frames[0].buffer)
        except (msgspec.MsgspecError, ValueError):
            return None
        is_of_it = said.run == self._meeting.run and said.subject == self._meeting.subject
        return said if not is_of_it or self._is_sound(said) else None

    def _is_sound(self, said: Registration) -> bool:
        named = (said.node, *said.seeks, *said.knows)
        places = [said.listens, *said.knows.values()] if said.listens is not None else list(said.knows.values())
        return (
            all(node in self._nodes for node in named)
            and len(said.seeks) <= len(self._nodes)
            and 0 <= said.standing.generation <= LAST
            and 0 <= said.standing.round <= LAST
            and all(is_place(place) for place in places)
        )

    def _register(self, identity: bytes, registration: Registration) -> bool:
        """Answer a node; whether it is one of this run's."""
        node = registration.node
        if registration.run != self._meeting.run:
            training = self._meeting.training if registration.series == self._meeting.series else 0
            if training and registration.training > training:
                self._latest = max(self._latest, registration.training)
            self._answer(identity, Answer(None, "the root belongs to another run", final=False, training=training))
        elif node in self._nodes and not self._is_of_this_run(identity, registration):
            pass  # it is answered when the run begins, or has been
        elif why := self._difference(registration):
            who = node if node in self._nodes else -1
            self._refusals[who] += 1
            if str(self._refusals[who]).strip("0") == "1":
                self._refused.append((node, why))
            self._last_refusal = why
            self._answer(identity, Answer(None, why))
        elif self._is_taken(registration):
            self._say_that_it_is_taken(node)
            self._answer(identity, Answer(None, f"node {node} is taken: a process of it is in the run", final=False))
        else:
            self._visits = {one: visit for one, visit in self._visits.items() if visit.node != node}
            seeks, knows = registration.seeks, dict(registration.knows)
            visit = self._visits[identity] = Visit(node, registration.process, seeks, knows, registration.key)
            self._introduce(visit)
            if registration.arithmetic not in self._arithmetics and len(self._arithmetics) < MOST_KINDS:
                self._arithmetics.add(registration.arithmetic)
                self._others.append((node, registration.arithmetic))
            if registration.standing.is_on and registration.standing.generation >= self.heard.generation:
                self.heard = registration.standing
            if registration.listens is not None and self._known.get(node) != registration.listens:
                self.add(node, registration.listens)
            else:
                self._tell(identity)
            if not visit.knows and visit.seeks:
                self._answer(identity, Answer(None, final=False, missing=self._missing(visit.seeks)))
            if self._identity.value and not self._identity.is_settled and 2 * len(self._visits) > len(self._nodes):
                self._settle()
            return True
        return False

    def _difference(self, registration: Registration) -> str:
        """Why a node that came to something else cannot be in; nothing if it came to this."""
        if registration.subject != self._meeting.subject:
            return difference(registration.node, registration.subject, self._meeting.subject)[:1000]
        return ""

    def _is_of_this_run(self, identity: bytes, registration: Registration) -> bool:
        """Whether a node is not of an earlier run; while that cannot be known it waits for an answer."""
        node, says = registration.node, registration.identity
        if self._identity.is_of_it(says):
            return True
        self._earlier[node] = (identity, registration)
        if not self._identity.claim(says, node, len(self._nodes)):
            if self._identity.is_settled:
                self._send_away_who_is_of_another()
            return False
        for other in list(self._visits):
            self._answer(other, Answer({}))  # who was told before is told anew which run it is
        for who, (name, said) in list(self._earlier.items()):
            if said.identity == self._identity.value:
                del self._earlier[who]
                if who != node:
                    self._register(name, said)
        return True

    def _settle(self) -> None:
        """The run begins with those that have come, or most have; they are told which it is."""
        self._identity.settle()
        self._send_away_who_is_of_another()
        for other in list(self._visits):
            self._answer(other, Answer({}))

    @property
    def keeps_some_waiting(self) -> bool:
        """Whether some have asked who can be answered now."""
        return bool(self._earlier) and self._identity.is_settled

    def _send_away_who_is_of_another(self) -> None:
        earlier, self._earlier = self._earlier, {}
        for node, (identity, registration) in earlier.items():
            if self._identity.is_of_it(registration.identity):
                self._register(identity, registration)
                continue
            why = _of_an_earlier_run(node, self.meets_at)
            self._strays.append((node, why))
            self._answer(identity, Answer(None, why))

    def _say_that_it_is_taken(self, node: int) -> None:
        """If it asks again and again it is not one whose predecessor's end is not known yet."""
        self._asked_in_vain[node] += 1
        if self._asked_in_vain[node] == TWICE_IF_ASKED:
            self._strays.append((node, f"a second process has come as node {node}, and is not let in: one is there"))

    def _is_taken(self, registration: Registration) -> bool:
        """Whether another process of the node is there; one that has ended is no longer connected."""
        if registration.node == self._owner and self._process:
            return registration.process != self._process
        for identity, visit in list(self._visits.items()):
            is_another = (visit.process, visit.key) != (registration.process, registration.key)
            if visit.node == registration.node and is_another:
                if self._answer(identity, Answer({})):
                    return True
                self._visits.pop(identity, None)
        return False

    def _introduce(self, visit: Visit) -> None:
        """Those whom a process looks for let it in; and it lets in those who look for it. Who looks is told later."""
        if not visit.key:
            return
        if self._guard is not None and self._owner in visit.seeks:
            self._guard.name(visit.node, visit.key)
        for identity, other in list(self._visits.items()):
            if other.node in visit.seeks and visit.node not in other.seeks:
                self._answer(identity, Answer({}, admits={visit.node: visit.key}))
        mine = [identity for identity, other in self._visits.items() if other is visit]
        others = self._visits.values()
        admits = {one.node: one.key for one in others if one.key and visit.node in one.seeks}
        if self._guard is not None and visit.node in self._seeks:
            admits[self._owner] = self._guard.key
        admits = {node: key for node, key in admits.items() if node not in visit.seeks}
        if admits and mine:
            self._answer(mine[0], Answer({}, admits=admits))

    def _tell(self, identity: bytes) -> None:
        """Tell a process what it looks for and does not have: at first all of it together, then whatever is new."""
        visit = self._visits[identity]
        if not visit.knows and not self._is_for_all and not self._known.keys() >= set(visit.seeks):
            return
        known = self._known
        news = {node: known[node] for node in visit.seeks if node in known and visit.knows.get(node) != known[node]}
        if news:
            visit.knows.update(news)
            if not self._answer(identity, Answer(news, standing=self.tells())):
                self._visits.pop(identity, None)

    def _answer(self, identity: bytes, answer: Answer) -> bool:
        """Answer a process, and tell it which run this is if it is let in; whether it is there."""
        if not answer.refusal:
            answer = msgspec.structs.replace(answer, identity=self._identity.value)
        try:
            self.socket.send_multipart([identity, msgspec.msgpack.encode(answer)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def close(self, *, is_over: bool = True) -> None:
        """Answer no more; if the run is over, let those go who still wait for somebody's address."""
        why = self._last_refusal or "the root has left"
        for identity in self._visits:
            if is_over:
                self._answer(identity, Answer(None, f"the run is over: {why}"))
        self._visits.clear()
        self.socket.disable_monitor()
        self.socket.close(linger=LAST_WORDS)
        self.monitor.close(linger=0)


def is_place(endpoints: Endpoints) -> bool:
    """Whether these are addresses that a node can listen at.

    >>> is_place(Endpoints("tcp://10.0.0.1:2000", "tcp://10.0.0.1:2001")), is_place(Endpoints("tcp://", "pgm://x;y"))
    (True, False)
    """
    return len(endpoints.key) in (0, KEY_CHARACTERS) and all(map(_PLACE.fullmatch, endpoints.planes))


def _of_an_earlier_run(node: int, address: str) -> str:
    return (
        f"a process of an earlier run has come to {address} as node {node}, and is not let in: end it, or let this run "
        "meet at another port (if rank 0 was started again to go on with that run, set CODEDREDUCE_RESTARTED=1)"
    )


def named(nodes: tuple[int, ...]) -> str:
    """Some nodes, in words."""
    return f"node {nodes[0]}" if len(nodes) == 1 else "nodes " + ", ".join(map(str, nodes))
