"""The directory at a rendezvous address: every node registers its own address, and receives the addresses that it
needs, at once and whenever they change.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
import zmq

from codedreduce.errors import CodedReduceError, JoinRefused, Outlived
from codedreduce.net.connections import Endpoints
from codedreduce.net.keys import Guard
from codedreduce.net.rendezvous.identity import Identity
from codedreduce.net.rendezvous.registration import Answer, Listener, Registration, Standing, named
from codedreduce.net.sockets import Context
from codedreduce.protocol.core.events import Note
from codedreduce.run.agreement import Meeting, difference
from codedreduce.run.journal import is_power_of_ten
from codedreduce.run.quorum import Gathering
from codedreduce.timing import milliseconds

#: A process that asks so often for a rank that is taken is a second process of that rank.
TWICE_IF_ASKED = 4

#: Nodes that a run can have, if their number is not given.
ANY_NODES = range(4096)

#: Kinds of arithmetic that are reported, at most.
MOST_KINDS = 10

_decoder = msgspec.msgpack.Decoder(Registration)


class AddressList:
    """Sends every process that has registered the addresses that it seeks, and the keys of those that seek it.

    `moved`: nodes that have registered new addresses since this was last cleared. The directory's own process, of the
    node `owner`, may seek some, too.
    """

    def __init__(
        self, listener: Listener, owner: int, process: int, seeks: tuple[int, ...], guard: Guard | None
    ) -> None:  # fmt: skip
        self._listener = listener
        self._owner, self._process, self._seeks = owner, process, seeks
        self._guard = guard
        self.known: dict[int, Endpoints] = {}
        self.moved: dict[int, Endpoints] = {}
        self.processes: dict[bytes, Registration] = {}  # by the name of the connection
        self._is_for_all = False  # answer with the known addresses although some are missing
        self.heard = Standing()  # of a run that has begun, from its members
        self.tells: Callable[[], Standing] = lambda: self.heard

    def missing(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """The nodes without an address."""
        return tuple(node for node in nodes if node not in self.known)

    def add(self, node: int, endpoints: Endpoints) -> None:
        """A node listens here; notify the nodes that seek it."""
        if self.known.get(node) != endpoints:
            self.known[node] = self.moved[node] = endpoints
            self.tell_all()

    def begin(self, known: dict[int, Endpoints]) -> None:
        """Answer with these addresses and all others, although some are missing."""
        self.known = known | self.known
        self._is_for_all = True

    def register(self, sender: bytes, registration: Registration) -> None:
        """A process has this registration in the place of an earlier one of its node."""
        node, listens, standing = registration.node, registration.listens, registration.standing
        self.processes = {one: other for one, other in self.processes.items() if other.node != node}
        self.processes[sender] = registration
        self._introduce(sender, registration)
        if standing.is_on and standing.generation >= self.heard.generation:
            self.heard = standing
        if listens is not None and self.known.get(node) != listens:
            self.add(node, listens)
        else:
            self._tell(sender)
        if not registration.knows and registration.seeks:
            self._listener.answer(sender, Answer(None, final=False, missing=self.missing(registration.seeks)))

    def is_taken(self, registration: Registration) -> bool:
        """Whether another process of the node is present; one that has ended is no longer connected."""
        if registration.node == self._owner and self._process:
            return registration.process != self._process
        for sender, other in list(self.processes.items()):
            is_another = (other.process, other.key) != (registration.process, registration.key)
            if other.node == registration.node and is_another:
                if self._listener.answer(sender, Answer({})):
                    return True
                self.processes.pop(sender, None)
        return False

    def answer_all(self, answer: Answer) -> None:
        """Send all processes the same answer, and the identity of the run."""
        for sender in self.processes:
            self._listener.answer(sender, answer)

    def _introduce(self, sender: bytes, registration: Registration) -> None:
        """Admit this process at the nodes that it seeks, and admit at this process the nodes that seek it.

        Nodes that seek each other receive the keys with the addresses, later.
        """
        node, key, seeks = registration.node, registration.key, registration.seeks
        if not key:
            return
        if self._guard is not None and self._owner in seeks:
            self._guard.name(node, key)
        for name, other in self.processes.items():
            if other.node in seeks and node not in other.seeks:
                self._listener.answer(name, Answer({}, admits={node: key}))
        admits = {one.node: one.key for one in self.processes.values() if one.key and node in one.seeks}
        if self._guard is not None and node in self._seeks:
            admits[self._owner] = self._guard.key
        admits = {one: key for one, key in admits.items() if one not in seeks}
        if admits:
            self._listener.answer(sender, Answer({}, admits=admits))

    def tell_all(self) -> None:
        """Send all processes the addresses that they lack."""
        for sender in list(self.processes):
            self._tell(sender)

    def _tell(self, sender: bytes) -> None:
        """Send a process the addresses that it seeks and lacks: first all of them together, then each new one."""
        process, known = self.processes[sender], self.known
        if not process.knows and not self._is_for_all and self.missing(process.seeks):
            return
        news = {node: known[node] for node in process.seeks if node in known and process.knows.get(node) != known[node]}
        if news:
            process.knows.update(news)
            if not self._listener.answer(sender, Answer(news, standing=self.tells())):
                self.processes.pop(sender, None)


class Directory:
    """Decides which processes belong to its run, and reports those that it rejects.

    It answers by a socket of its own, at one or several rendezvous addresses (`listener`), with `addresses`.
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
        self.listener = Listener(context, len(nodes), self._identity, guard, self._timing)
        self.addresses = AddressList(self.listener, owner, process, seeks, guard)
        self._notes: list[Note] = []
        self._owner = owner
        self._arithmetics = {meeting.arithmetic, ""}
        self._refusals: Counter[int] = Counter()
        self._asked_in_vain: Counter[int] = Counter()
        self._all_wrong_since: float | None = None  # every missing node came, and was rejected
        self._last_refusal = ""
        self.meets_at = meeting.address  # where one should answer
        self._latest = meeting.training  # the latest training that a process has come to

    def take_notes(self) -> list[Note]:
        """Reports since the last call: ranks that were rejected, stray processes, and ranks with another arithmetic."""
        notes, self._notes = self._notes, []
        return notes

    def _note(self, kind: str, node: int, reason: str) -> None:
        self._notes.append(Note(kind=kind, reason=reason, round=0, nodes=(node,)))

    def begin(self, known: dict[int, Endpoints]) -> None:
        """The directory's process begins, and has these addresses: answers need not wait for the missing nodes."""
        self.addresses.begin(known)
        if self._identity.value:
            self._settle()
        self.addresses.tell_all()

    def wait_for(
        self, nodes: tuple[int, ...], watch: Callable[[], None], gathering: Gathering | None = None
    ) -> dict[int, Endpoints]:
        """Serve until these nodes, or enough of them, have registered their addresses."""
        gathering = gathering or Gathering(lambda missing: not missing, time.monotonic(), self._timing)
        deadline = time.monotonic() + self._meeting.all_within
        while not gathering.may_begin(missing := self.addresses.missing(nodes), time.monotonic()):
            self.listener.socket.poll(milliseconds(self._timing.poll_interval))
            self.serve()
            watch()
            if self._latest > self._meeting.training:
                raise Outlived(self._latest)
            self._check_come_right(missing)
            if self.addresses.heard.is_on:
                gathering.join_what_is_on(time.monotonic())
            if time.monotonic() > deadline:
                late = f"{named(missing)} did not come up within {self._meeting.all_within:g} s"
                others = [_of_an_earlier_run(node, self.meets_at) for node in self._earlier if node in missing]
                raise CodedReduceError("; ".join([late, *others[:1]]))
        if nodes:
            self._settle()
        return {node: self.addresses.known[node] for node in nodes if node in self.addresses.known}

    def _check_come_right(self, missing: tuple[int, ...]) -> None:
        """Stop waiting if every missing node came with a wrong plan, and none has come with the right one in time.

        Another process may have claimed to be that node.
        """
        now = time.monotonic()
        refused = {note.nodes[0]: note.reason for note in self._notes if note.kind == "refused"}
        wrong = {node: why for node, why in refused.items() if node in missing}
        if len(wrong) < len(missing):
            self._all_wrong_since = None
        elif self._all_wrong_since is None:
            self._all_wrong_since = now
        elif now > self._all_wrong_since + self._timing.correction_timeout:
            raise JoinRefused(wrong[min(wrong)])

    # -- requests

    def serve(self) -> None:
        """Answer a limited number of requests. A sender of an invalid request loses its connection."""
        self.listener.look()
        if self.keeps_some_waiting:
            self._send_away_who_is_of_another()
        for sender, frames in self.listener.requests():
            registration = self._read(frames)
            if registration is None:
                self.listener.cut(frames)
            elif not self.listener.is_authentic(frames[0], registration):
                self.listener.answer(sender, Answer(None, f"rank {registration.node} has the wrong secret"))
            elif self._register(sender, registration):
                self.listener.is_known(frames)

    def _read(self, frames: list[zmq.Frame]) -> Registration | None:
        """A valid registration, else None. One of another run, or with another plan, may have any contents."""
        if len(frames) != 1:
            return None
        try:
            said = _decoder.decode(frames[0].buffer)
        except (msgspec.MsgspecError, ValueError):
            return None
        is_of_it = said.run == self._meeting.run and said.subject == self._meeting.subject
        return said if not is_of_it or said.is_sound(self._nodes) else None

    def _register(self, sender: bytes, registration: Registration) -> bool:
        """Answer a registration; whether the node is one of this run's."""
        node, answer = registration.node, self.listener.answer
        if registration.run != self._meeting.run:
            training = self._meeting.training if registration.series == self._meeting.series else 0
            if training and registration.training > training:
                self._latest = max(self._latest, registration.training)
            answer(sender, Answer(None, "the root belongs to another run", final=False, training=training))
        elif node in self._nodes and not self._is_of_this_run(sender, registration):
            pass  # answered when the run begins, or answered already
        elif registration.subject != self._meeting.subject:
            self._last_refusal = difference(node, registration.subject, self._meeting.subject)[:1000]
            origin = node if node in self._nodes else -1
            self._refusals[origin] += 1
            if is_power_of_ten(self._refusals[origin]):
                self._note("refused", node, self._last_refusal)
            answer(sender, Answer(None, self._last_refusal))
        elif self.addresses.is_taken(registration):
            self._say_that_it_is_taken(node)
            answer(sender, Answer(None, f"rank {node} is taken: its process is in the run", final=False))
        else:
            self.addresses.register(sender, registration)
            self._compare(registration)
            most_are_here = 2 * len(self.addresses.processes) > len(self._nodes)
            if self._identity.value and not self._identity.is_settled and most_are_here:
                self._settle()
            return True
        return False

    def _compare(self, registration: Registration) -> None:
        """Report the first rank with each arithmetic that differs from that of this process."""
        what, here = registration.arithmetic, self._meeting.arithmetic
        if what not in self._arithmetics and len(self._arithmetics) < MOST_KINDS:
            self._arithmetics.add(what)
            self._note(
                "arithmetic", registration.node,
                f"the arithmetic of rank {registration.node} differs from that of rank {self._owner}: {what}, and here "
                f"{here}. Sums stay exact, but their last bits depend on which rank computed what: "
                "results that are bit-identical with any stragglers need hosts of one kind",
            )  # fmt: skip

    def _is_of_this_run(self, sender: bytes, registration: Registration) -> bool:
        """Whether a node is of this run, not of an earlier one. While that is unknown, the node waits for an answer."""
        node, says = registration.node, registration.identity
        if self._identity.is_of_it(says):
            return True
        self._earlier[node] = (sender, registration)
        if not self._identity.claim(says, node, len(self._nodes)):
            if self._identity.is_settled:
                self._send_away_who_is_of_another()
            return False
        self.addresses.answer_all(Answer({}))
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
        self.addresses.answer_all(Answer({}))

    @property
    def keeps_some_waiting(self) -> bool:
        """Whether some wait that can be answered now."""
        return bool(self._earlier) and self._identity.is_settled

    def _send_away_who_is_of_another(self) -> None:
        earlier, self._earlier = self._earlier, {}
        for node, (sender, registration) in earlier.items():
            if self._identity.is_of_it(registration.identity):
                self._register(sender, registration)
                continue
            why = _of_an_earlier_run(node, self.meets_at)
            self._note("stray", node, why)
            self.listener.answer(sender, Answer(None, why))

    def _say_that_it_is_taken(self, node: int) -> None:
        """Report a node that asks again and again: it does not merely replace a process that ended unnoticed."""
        self._asked_in_vain[node] += 1
        if self._asked_in_vain[node] == TWICE_IF_ASKED:
            self._note("stray", node, f"a second process came as rank {node} and was rejected: the first is in the run")

    def close(self, *, is_over: bool = True) -> None:
        """Stop answering. If the run is over, release the nodes that still wait for addresses."""
        if is_over:
            why = self._last_refusal or "the root has left"
            self.addresses.answer_all(Answer(None, f"the run is over: {why}"))
        self.listener.close()


def _of_an_earlier_run(node: int, address: str) -> str:
    return (
        f"a process of an earlier run came to {address} as rank {node} and was rejected: end it, or let this run "
        "use another port (if rank 0 was restarted to continue that run, set CODEDREDUCE_RESTARTED=1)"
    )
