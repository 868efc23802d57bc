"""The directory at a rendezvous address: every node registers its own address, and receives the addresses that it
needs, at once and whenever they change.
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
    Context,
    answering,
    comings_and_goings,
    is_local,
    listen_at_too,
)
from codedreduce.run.agreement import Meeting, difference
from codedreduce.run.quorum import Gathering
from codedreduce.timing import milliseconds

#: Registrations that are answered at a time. If there are more, they wait a moment, while others are served.
AT_ONCE = 16

#: A process that asks so often for a rank that is taken is a second process of that rank.
TWICE_IF_ASKED = 4

#: Nodes that a run can have, if their number is not given.
ANY_NODES = range(4096)

#: Kinds of arithmetic that are reported, at most.
MOST_KINDS = 10

#: The largest valid round or generation.
LAST = 2**53

_PLACE = re.compile(r"(tcp://[\w.:%\[\]-]{1,253}:\d{1,5}|ipc://[^\0]{1,200})")


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """The state of a node's run, as far as the node knows: its leader, and whether it has begun."""

    generation: int = 0
    leader: int = 0
    round: int = 0
    is_on: bool = False


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """A node's registration: its number, the nodes it seeks, what it came to train, and where it listens, if it does.

    It also names the node's process, the addresses that the node has for those it seeks, and the state of its run.
    """

    run: str
    node: int
    seeks: tuple[int, ...]
    listens: Endpoints | None
    subject: str = ""
    process: int = 0
    knows: dict[int, Endpoints] = {}
    standing: Standing = Standing()
    key: str = ""  # the public key of the process, where keys are required
    proof: bytes = b""  # that the process knows the secret
    series: str = ""  # the run and the number of the training that it came to
    training: int = 1
    arithmetic: Annotated[str, msgspec.Meta(max_length=400)] = ""  # how it computes
    identity: Annotated[str, msgspec.Meta(max_length=64)] = ""  # of the run it is in, if known


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The addresses of other nodes, or the missing nodes, or why this node is rejected; and the state of the run.

    `admits` are the keys of nodes that seek this node.
    """

    endpoints: dict[int, Endpoints] | None
    refusal: str = ""
    final: bool = True
    missing: tuple[int, ...] = ()
    standing: Standing = Standing()
    admits: dict[int, str] = {}
    training: int = 0  # the training that the others are at, if this node came to another of the same run
    identity: str = ""  # of this run


class Opened(Enum):
    """The result of an attempt to answer at an address."""

    HERE = auto()
    TAKEN = auto()  # another process answers there
    ELSEWHERE = auto()  # it is the address of another host


@dataclass
class Visit:
    """A process that has registered, the nodes that it seeks, and the addresses that it has."""

    node: int
    process: int
    seeks: tuple[int, ...]
    knows: dict[int, Endpoints] = field(default_factory=dict)
    key: str = ""


class Directory:
    """A directory of addresses, on a socket of its own, at one or several rendezvous addresses.

    `moved`: nodes that have registered new addresses since this was last cleared. The directory's own
    process may seek them, too.
    """

    def __init__(
        self, context: Context, meeting: Meeting, *, owner: int = 0, process: int = 0, nodes: range = ANY_NODES,
        seeks: tuple[int, ...] = (), guard: Guard | None = None, identity: Identity | None = None,
    ) -> None:  # fmt: skip
        self._meeting = meeting
        self._timing = meeting.timing
        self._identity = identity or Identity()
        self._earlier: dict[int, tuple[bytes, Registration]] = {}  # registrations with another identity
        self._nodes = nodes
        self._seeks = seeks  # the nodes that the process with the directory seeks
        self._guard = guard
        self._owner, self._process = owner, process
        self._refused: list[tuple[int, str]] = []
        self._others: list[tuple[int, str]] = []
        self._strays: list[tuple[int, str]] = []
        self.arithmetic = meeting.arithmetic
        self._arithmetics = {meeting.arithmetic, ""}
        self._refusals: Counter[int] = Counter()
        self._asked_in_vain: Counter[int] = Counter()
        self._all_wrong_since: float | None = None  # every missing node came, and was rejected
        self._last_refusal = ""
        self._known: dict[int, Endpoints] = {}
        self.moved: dict[int, Endpoints] = {}
        self._visits: dict[bytes, Visit] = {}
        self._is_for_all = False  # answer with the known addresses although some are missing
        self.heard = Standing()  # of a run that has begun, from its members
        self.tells: Callable[[], Standing] = lambda: self.heard
        self._decoder = msgspec.msgpack.Decoder(Registration)
        self.addresses: list[str] = []  # where it answers
        self.meets_at = meeting.address  # where one should
        self.socket, self.monitor = answering(context, of_books(len(nodes), meeting.timing))
        self._door = PendingConnections(self.addresses, meeting.timing)
        self._latest = meeting.training  # the latest training that a process has come to
        self.rests_until = 0.0  # more have asked than are answered at a time

    def open(self, address: str) -> Opened:
        """Answer at a further address."""
        errno = listen_at_too(self.socket, address, self._guard)
        if errno:
            return Opened.TAKEN if errno == zmq.EADDRINUSE else Opened.ELSEWHERE
        self.addresses.append(address)
        return Opened.HERE

    def take_refused(self) -> list[tuple[int, str]]:
        """The nodes rejected since the last call, and the reasons."""
        refused, self._refused = self._refused, []
        return refused

    def take_strays(self) -> list[tuple[int, str]]:
        """The processes rejected since the last call because another process has their rank, and the reasons."""
        strays, self._strays = self._strays, []
        return strays

    def take_others(self) -> list[tuple[int, str]]:
        """The nodes found since the last call to compute differently from this process, and how they compute."""
        others, self._others = self._others, []
        return others

    # -- addresses

    def add(self, node: int, endpoints: Endpoints) -> None:
        """A node listens here; notify the nodes that seek it."""
        if self._known.get(node) != endpoints:
            self._known[node] = self.moved[node] = endpoints
            for identity in list(self._visits):
                self._tell(identity)

    def begin(self, known: dict[int, Endpoints]) -> None:
        """The directory's process begins, and has these addresses: answers need not wait for the missing nodes."""
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
        """Serve until these nodes, or enough of them, have registered their addresses."""
        gathering = gathering or Gathering(lambda missing: not missing, time.monotonic(), self._timing)
        deadline = time.monotonic() + self._meeting.all_within
        while not gathering.may_begin(missing := self._missing(nodes), time.monotonic()):
            self.socket.poll(milliseconds(self._timing.poll_interval))
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
        """Stop waiting if every missing node came with a wrong plan, and none has come with the right one in time.

        Another process may have claimed to be that node.
        """
        now = time.monotonic()
        wrong = {node: why for node, why in self._refused if node in missing}
        if len(wrong) < len(missing):
            self._all_wrong_since = None
        elif self._all_wrong_since is None:
            self._all_wrong_since = now
        elif now > self._all_wrong_since + self._timing.correction_timeout:
            raise JoinRefused(wrong[min(wrong)])

    def _missing(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(node for node in nodes if node not in self._known)

    # -- requests

    def serve(self) -> None:
        """Answer a limited number of requests. A sender of an invalid request loses its connection."""
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
                self._answer(identity.bytes, Answer(None, f"rank {registration.node} has the wrong secret"))
            elif self._register(identity.bytes, registration):
                self.look_at_the_door()  # the connection may have been made while others were answered
                self._door.is_known(descriptor)
        self.rests_until = time.monotonic() + self._timing.directory_rest

    def _is_who_it_says(self, body: zmq.Frame, registration: Registration) -> bool:
        """Whether a process that came by TCP knows the secret, and has the key that it claims."""
        if self._guard is None or all(map(is_local, self.addresses)):  # file permissions protect a file
            return True
        key = user_of(body)
        says, listens = registration, registration.listens
        shows = says.key == key and (listens is None or listens.key == key or all(map(is_local, listens.planes)))
        return shows and self._guard.is_proven(says.proof, says.run, says.node, says.key)

    def look_at_the_door(self) -> None:
        """Handle connections that were made or lost; cut those that stayed unidentified too long."""
        for told in comings_and_goings(self.monitor):
            if told.has_come:
                self._door.came(told.descriptor)
            elif not told.is_there:
                self._door.went(told.descriptor)
        self._door.look()

    def _read(self, frames: list[zmq.Frame]) -> Registration | None:
        """A valid registration, else None. One of another run, or with another plan, may have any contents."""
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
        """Answer a registration; whether the node is one of this run's."""
        node = registration.node
        if registration.run != self._meeting.run:
            training = self._meeting.training if registration.series == self._meeting.series else 0
            if training and registration.training > training:
                self._latest = max(self._latest, registration.training)
            self._answer(identity, Answer(None, "the root belongs to another run", final=False, training=training))
        elif node in self._nodes and not self._is_of_this_run(identity, registration):
            pass  # answered when the run begins, or answered already
        elif why := self._difference(registration):
            origin = node if node in self._nodes else -1
            self._refusals[origin] += 1
            if str(self._refusals[origin]).strip("0") == "1":
                self._refused.append((node, why))
            self._last_refusal = why
            self._answer(identity, Answer(None, why))
        elif self._is_taken(registration):
            self._say_that_it_is_taken(node)
            self._answer(identity, Answer(None, f"rank {node} is taken: its process is in the run", final=False))
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
        """Why a node with another subject is rejected; empty if the subject is this run's."""
        if registration.subject != self._meeting.subject:
            return difference(registration.node, registration.subject, self._meeting.subject)[:1000]
        return ""

    def _is_of_this_run(self, identity: bytes, registration: Registration) -> bool:
        """Whether a node is of this run, not of an earlier one. While that is unknown, the node waits for an answer."""
        node, says = registration.node, registration.identity
        if self._identity.is_of_it(says):
            return True
        self._earlier[node] = (identity, registration)
        if not self._identity.claim(says, node, len(self._nodes)):
            if self._identity.is_settled:
                self._send_away_who_is_of_another()
            return False
        for other in list(self._visits):
            self._answer(other, Answer({}))  # send them the identity, which has changed
        for earlier, (name, said) in list(self._earlier.items()):
            if said.identity == self._identity.value:
                del self._earlier[earlier]
                if earlier != node:
                    self._register(name, said)
        return True

    def _settle(self) -> None:
        """The run begins, or most nodes have registered: settle the identity, and send it to the registered ones."""
        self._identity.settle()
        self._send_away_who_is_of_another()
        for other in list(self._visits):
            self._answer(other, Answer({}))

    @property
    def keeps_some_waiting(self) -> bool:
        """Whether some wait that can be answered now."""
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
        """Report a node that asks again and again: it does not merely replace a process that ended unnoticed."""
        self._asked_in_vain[node] += 1
        if self._asked_in_vain[node] == TWICE_IF_ASKED:
            self._strays.append(
                (node, f"a second process came as rank {node} and was rejected: the first is in the run")
            )

    def _is_taken(self, registration: Registration) -> bool:
        """Whether another process of the node is present; one that has ended is no longer connected."""
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
        """Admit this process at the nodes that it seeks, and admit at this process the nodes that seek it.

        Nodes that seek each other receive the keys with the addresses, later.
        """
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
        """Send a process the addresses that it seeks and lacks: first all of them together, then each new one."""
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
        """Answer a process, with the identity of this run unless it is rejected; whether the process is connected."""
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
        """Stop answering. If the run is over, release the nodes that still wait for addresses."""
        why = self._last_refusal or "the root has left"
        for identity in self._visits:
            if is_over:
                self._answer(identity, Answer(None, f"the run is over: {why}"))
        self._visits.clear()
        self.socket.disable_monitor()
        self.socket.close(linger=milliseconds(self._timing.linger))
        self.monitor.close(linger=0)


def is_place(endpoints: Endpoints) -> bool:
    """Whether these are addresses that a node can listen at.

    >>> is_place(Endpoints("tcp://10.0.0.1:2000", "tcp://10.0.0.1:2001")), is_place(Endpoints("tcp://", "pgm://x;y"))
    (True, False)
    """
    return len(endpoints.key) in (0, KEY_CHARACTERS) and all(map(_PLACE.fullmatch, endpoints.planes))


def _of_an_earlier_run(node: int, address: str) -> str:
    return (
        f"a process of an earlier run came to {address} as rank {node} and was rejected: end it, or let this run "
        "use another port (if rank 0 was restarted to continue that run, set CODEDREDUCE_RESTARTED=1)"
    )


def named(nodes: tuple[int, ...]) -> str:
    """The name of these nodes in a message."""
    return f"node {nodes[0]}" if len(nodes) == 1 else "nodes " + ", ".join(map(str, nodes))
