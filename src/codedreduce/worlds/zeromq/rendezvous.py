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

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, Outlived
from codedreduce.worlds.enough import Gathering
from codedreduce.worlds.run import Meeting, difference
from codedreduce.worlds.zeromq.carrier import Endpoints
from codedreduce.worlds.zeromq.doors import Door
from codedreduce.worlds.zeromq.keys import KEY_CHARACTERS, Guard, user_of
from codedreduce.worlds.zeromq.limits import of_books
from codedreduce.worlds.zeromq.sockets import (
    LAST_WORDS,
    Context,
    answering,
    comings_and_goings,
    is_local,
    listen_at_too,
)

#: Questions that are answered at a time; if there are more they wait so many seconds, in which others are heard.
AT_ONCE = 16
REST = 0.05

#: Nodes that a run can have, if it is not said which it has.
ANY_NODES = range(4096)

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
        seeks: tuple[int, ...] = (), guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self._meeting = meeting
        self._nodes = nodes
        self._seeks = seeks  # whom the process that has the book looks for
        self._guard = guard
        self._owner, self._process = owner, process
        self.refused: list[tuple[int, str]] = []  # who could not be let in, and why, since last asked
        self._refusals: Counter[int] = Counter()
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
        self._door = Door(self.addresses)
        self._latest = meeting.training  # the training that somebody has come to
        self.rests_until = 0.0  # more have asked than are answered at a time

    def open(self, address: str) -> Opened:
        """Answer at an address, too."""
        errno = listen_at_too(self.socket, address, self._guard)
        if errno:
            return Opened.TAKEN if errno == zmq.EADDRINUSE else Opened.ELSEWHERE
        self.addresses.append(address)
        return Opened.HERE

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
            if self.heard.is_on:
                gathering.join_what_is_on(time.monotonic())
            if time.monotonic() > deadline:
                raise CodedReduceError(f"{named(missing)} did not come up within {self._meeting.all_within:g} s")
        return {node: self._known[node] for node in nodes if node in self._known}

    def _missing(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(node for node in nodes if node not in self._known)

    # -- who asks

    def serve(self) -> None:
        """Answer those who have asked, so many at a time; what is no question costs who sent it the connection."""
        self.look_at_the_door()
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
        elif registration.subject != self._meeting.subject:
            why = difference(node, registration.subject, self._meeting.subject)[:1000]
            who = node if node in self._nodes else -1
            self._refusals[who] += 1
            if str(self._refusals[who]).strip("0") == "1":
                self.refused.append((node, why))
            self._last_refusal = why
            self._answer(identity, Answer(None, why))
        elif self._is_taken(registration):
            self._answer(identity, Answer(None, f"node {node} is taken: a process of it is in the run", final=False))
        else:
            self._visits = {one: visit for one, visit in self._visits.items() if visit.node != node}
            seeks, knows = registration.seeks, dict(registration.knows)
            visit = self._visits[identity] = Visit(node, registration.process, seeks, knows, registration.key)
            self._introduce(visit)
            if registration.standing.is_on and registration.standing.generation >= self.heard.generation:
                self.heard = registration.standing
            if registration.listens is not None and self._known.get(node) != registration.listens:
                self.add(node, registration.listens)
            else:
                self._tell(identity)
            if not visit.knows and visit.seeks:
                self._answer(identity, Answer(None, final=False, missing=self._missing(visit.seeks)))
            return True
        return False

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
        """Answer a process; whether it is there."""
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


def named(nodes: tuple[int, ...]) -> str:
    """Some nodes, in words."""
    return f"node {nodes[0]}" if len(nodes) == 1 else "nodes " + ", ".join(map(str, nodes))
