"""The nodes of a simulated cluster: each has a state machine that handles events, and its actions are performed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from codedreduce.protocol import Machine, Settings, machine_for
from codedreduce.protocol.core.events import (
    AnyAction,
    Drained,
    Event,
    HandOver,
    Leave,
    Note,
    PeerFound,
    PeerLost,
    SetTimer,
    Started,
    TimerFired,
)
from codedreduce.schemes import Plan, StripedPlan, TreePlan
from codedreduce.simulator.kernel import Kernel
from codedreduce.simulator.record import Recorder

#: Message latencies until the others see that a process which has left is gone.
AFTER_LAST_WORDS = 3.0


#: Pairs of sender and receiver.
Pairs = set[tuple[int, int]]


@dataclass(slots=True)
class SimulatedNode:
    """The simulator's state of a node beside its machine."""

    machine: Machine
    alive: bool = True
    epoch: int = 0  # of its connections: grows with every process that ends or starts
    pauses: int = 0
    is_lost: bool = False  # counted as lost by the others during a pause, while another pause goes on
    held: list[tuple[Event, int]] = field(default_factory=list)  # events that arrived during a pause
    cuts: int = 0
    going: bool = False  # its machine has left, and its last messages are on their way
    leaves: bool = False  # it was asked to leave
    returns: bool = False  # then another process takes its place
    timers: dict[str, int] = field(default_factory=dict)  # by name: the token of the timer that is valid
    tokens: int = 0  # only grows, also when a new process takes over


#: Called after a machine has handled an event: with the number of its node, the actions, and all nodes.
Observer = Callable[[int, Sequence[AnyAction], Mapping[int, SimulatedNode]], None]


class Nodes:
    """All nodes of a plan, and everything that the protocol or a fault does to them."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        kernel: Kernel,
        recorder: Recorder,
        *,
        latency: float,
        observer: Observer | None = None,
        root_computes: bool = False,
    ) -> None:
        self.plan = plan
        self.kernel = kernel
        self.recorder = recorder
        self._is_striped = isinstance(plan, StripedPlan)
        self._is_tree = isinstance(plan, TreePlan)
        self.numbers = plan.nodes
        self.checkpoint = settings.after  # the round after which a restarted root continues
        self._settings = settings
        self._root_computes = root_computes
        self._latency = latency
        self._observer = observer
        self._nodes = {number: SimulatedNode(self._machine(number, 1)) for number in self.numbers}
        self._blocked: list[Pairs] = []  # for each partition or one-way cut: where nothing is delivered
        self._performers: dict[type, Callable[[int, Any], None]] = {SetTimer: self._set_timer, Note: self.note}

    def _machine(self, number: int, process: int) -> Machine:
        settings = self._settings
        if self._is_tree and number == 0:
            settings = replace(settings, after=self.checkpoint)
        return machine_for(number, self.plan, settings, process=process, computes=self._root_computes)

    def have_done(self, performers: Mapping[type, Callable[[int, Any], None]]) -> None:
        """Set the functions that perform actions of these types."""
        self._performers.update(performers)

    def machine(self, number: int) -> Machine:
        """The machine of a node."""
        return self._nodes[number].machine

    def dispatch(self, number: int, event: Event, drained: int = -1) -> None:
        """Let a machine handle an event, and perform its actions; then acknowledge it to `drained`, unless it is -1."""
        node = self._nodes[number]
        if not node.alive:
            return
        if node.pauses:
            node.held.append((event, drained))
            return
        now = self.kernel.now
        actions = node.machine.handle(event, now)
        if self.recorder.tracing:
            self.recorder.trace(now, number, event, actions)
        if self._observer is not None:
            self._observer(number, actions, self._nodes)
        performers = self._performers
        for action in actions:
            performers[type(action)](number, action)
        if drained >= 0:
            self.kernel.at(now + self._latency, self.dispatch, drained, Drained(peer=number))

    # -- actions of machines

    def _set_timer(self, number: int, action: SetTimer) -> None:
        node = self._nodes[number]
        node.tokens += 1
        node.timers[action.name] = node.tokens
        self.kernel.at(action.at, self._fire, number, action.name, node.tokens)

    def _fire(self, number: int, name: str, token: int) -> None:
        if self._nodes[number].timers.get(name) == token:
            self.dispatch(number, TimerFired(name=name))

    def note(self, number: int, action: Note) -> None:
        """A node reports something."""
        self.recorder.note(self.kernel.now, number, action)

    def finished(self, number: int) -> None:
        """End the process of a node that has left; another may take its place if the node was asked to leave."""
        node = self._nodes[number]
        last_words_over = self.kernel.now + AFTER_LAST_WORDS * self._latency
        if node.leaves and not self._is_striped:
            self._is_gone(number)
        elif node.leaves:
            node.alive, node.going = False, True
            self.kernel.at(last_words_over, self._is_gone, number)
        else:
            node.alive = False
            if self._is_striped:
                self.kernel.at(last_words_over, self._tell_dead, number, node.epoch)

    def _is_gone(self, number: int) -> None:
        """The process of a node that was asked to leave has ended; another may take its place."""
        node = self._nodes[number]
        node.alive, node.going = True, False
        left = self.crash(number)
        if node.returns and left is not None:
            self.kernel.at(self.kernel.now, self.come_back, number, left)

    # -- connections

    def connection(self, one: int, other: int) -> tuple[int, int]:
        """The current connection of two nodes; it ends with either of their processes."""
        return self._nodes[one].epoch, self._nodes[other].epoch

    def carries(self, connection: tuple[int, int], sender: int, receiver: int) -> bool:
        """Whether a message sent over a connection arrives: the connection is still current, and is not cut."""
        one, other = self._nodes[sender], self._nodes[receiver]
        if one.epoch != connection[0] or other.epoch != connection[1]:
            return False
        if any((sender, receiver) in pairs for pairs in self._blocked):
            return False
        if not (one.cuts or other.cuts):
            return True
        if self._is_striped:
            return False
        child = max(sender, receiver) if self._is_tree else sender  # a cut is on the link from a node to its parent
        return not self._nodes[child].cuts

    def _neighbours(self, number: int) -> list[int]:
        """A node's parent, then its children; for a rank all others, rank 0 first."""
        if isinstance(self.plan, StripedPlan):
            return [peer for peer in self.numbers if peer != number]
        assert isinstance(self.plan, TreePlan)
        parent = [self.plan.tree.parent(number)] if number else []
        return [*parent, *self.plan.tree.children(number)]

    # -- faults

    def crash(self, number: int) -> int | None:
        """End a process. Return the number of this crash, or None if there was no process."""
        node = self._nodes[number]
        if not node.alive:
            return None
        node.alive = False
        node.epoch += 1
        if self._is_striped:
            self.kernel.at(self.kernel.now + self._latency, self._tell_dead, number, node.epoch)
        else:
            for peer in self._neighbours(number):
                self.kernel.at(self.kernel.now + self._latency, self.dispatch, peer, PeerLost(peer=number))
        return node.epoch

    def _tell_dead(self, number: int, epoch: int) -> None:
        """Ranks that can reach a rank's host see that its process is gone; the others only lose the connection."""
        for peer in self._neighbours(number):
            self.dispatch(peer, PeerLost(peer=number, dead=self._can_reach(peer, number)))

    def _can_reach(self, one: int, other: int) -> bool:
        """Whether two nodes can have a connection."""
        if self._nodes[one].cuts or self._nodes[other].cuts:
            return False
        return not any((one, other) in pairs or (other, one) in pairs for pairs in self._blocked)

    def come_back(self, number: int, crash: int) -> None:
        """Start a new process in place of one that is gone, unless another was started since that crash."""
        node = self._nodes[number]
        if node.epoch != crash:
            return
        node.epoch += 1
        node.alive = True
        node.machine = self._machine(number, node.epoch + 1)
        node.leaves = node.returns = False
        node.held.clear()
        node.timers.clear()
        self.dispatch(number, Started())
        if not self._is_striped:
            for peer in self._neighbours(number):
                if peer > number:  # a child
                    self.dispatch(peer, PeerFound(peer=number))
            return
        for peer in self._neighbours(number):
            if not self._nodes[peer].alive:
                self.dispatch(number, PeerLost(peer=peer, dead=self._can_reach(number, peer)))
            elif not self._can_reach(number, peer):
                self.dispatch(number, PeerLost(peer=peer))
            else:  # after the peer has lost the old process
                self.kernel.at(self.kernel.now + self._latency, self._meet, peer, number)

    def stay_away(self, number: int) -> None:
        """A rank is absent when the run begins."""
        self._nodes[number].alive = False

    def present(self) -> list[int]:
        """The nodes that have a process."""
        return [number for number in self.numbers if self._nodes[number].alive]

    def come(self, number: int) -> None:
        """An absent rank joins, unless it has joined already."""
        if not self._nodes[number].alive:
            self.come_back(number, self._nodes[number].epoch)

    def mute(self, number: int, others: Iterable[int]) -> Pairs:
        """A rank's messages do not reach `others`; their messages reach it."""
        pairs = {(number, other) for other in others if other != number}
        self._blocked.append(pairs)
        return pairs

    def notice(self, pairs: Pairs) -> None:
        """Both ends count these connections as lost: nothing goes the other way either."""
        pairs.update([(receiver, sender) for sender, receiver in pairs])
        for one, other in sorted(pairs):
            self.dispatch(one, PeerLost(peer=other))

    def unmute(self, pairs: Pairs) -> None:
        """Both directions work again, over new connections."""
        self._unblock(pairs)
        for one, other in sorted(pairs | {(receiver, sender) for sender, receiver in pairs}):
            self._meet(one, other)

    def part(self, apart: frozenset[int]) -> Pairs:
        """Some ranks cannot reach the others any more, and all lose those connections."""
        pairs = {(one, other) for one in self.numbers for other in self.numbers if (one in apart) != (other in apart)}
        self._blocked.append(pairs)
        for one, other in sorted(pairs):
            self.kernel.at(self.kernel.now + self._latency, self.dispatch, one, PeerLost(peer=other))
        return pairs

    def join(self, pairs: Pairs) -> None:
        """These ranks and the others can reach each other again."""
        self._unblock(pairs)
        for one, other in sorted(pairs):
            self.kernel.at(self.kernel.now + self._latency, self._meet, one, other)

    def _unblock(self, pairs: Pairs) -> None:
        self._blocked = [others for others in self._blocked if others is not pairs]

    def _meet(self, one: int, other: int) -> None:
        """One rank finds another, if that has a process and can be reached."""
        if self._nodes[other].alive and self._can_reach(one, other):
            self.dispatch(one, PeerFound(peer=other))

    def leave(self, number: int) -> None:
        """Ask a node to leave after its round; a rank leaves when others have taken over its duties."""
        self._nodes[number].leaves = True
        reason = "its host is needed elsewhere"
        self.dispatch(number, HandOver(reason=reason) if self._is_striped else Leave(reason=reason))

    def stay(self) -> None:
        """Cancel the requests to leave: all present nodes end together."""
        for node in self._nodes.values():
            node.leaves = node.leaves and not node.alive

    def return_(self, number: int) -> None:
        """Start a new process in place of one that has left or is about to leave."""
        node = self._nodes[number]
        if node.alive or node.going:
            node.returns = node.leaves
        else:
            self.come_back(number, node.epoch)

    def is_alive(self, number: int) -> bool:
        """Whether a node has a process."""
        return self._nodes[number].alive

    def pause(self, number: int) -> None:
        """Begin a pause: the node handles nothing."""
        self._nodes[number].pauses += 1

    def lose(self, number: int) -> None:
        """A paused or cut rank and all others count each other as lost."""
        for peer in self._neighbours(number):
            if self._nodes[number].pauses or self._nodes[number].cuts:
                self.dispatch(peer, PeerLost(peer=number))
                self.dispatch(number, PeerLost(peer=peer))

    def resume(self, number: int, *, is_known: bool = False) -> None:
        """End a pause; after the last, the node handles the held events, and finds all others if it was lost."""
        node = self._nodes[number]
        node.pauses -= 1
        node.is_lost = node.is_lost or is_known
        if not node.pauses:
            is_known, node.is_lost = node.is_lost, False
            held, node.held = node.held, []
            for event, drained in held:
                self.dispatch(number, event, drained)
            if is_known:
                self._find_all(number)

    def cut(self, number: int) -> None:
        """Lose all messages over the link to a node's parent."""
        self._nodes[number].cuts += 1

    def mend(self, number: int) -> None:
        """End a cut; after the last, the node finds its parent again, or a rank all others."""
        node = self._nodes[number]
        node.cuts -= 1
        if node.cuts or not node.alive:
            return
        if self._is_striped:
            self._find_all(number)
        else:
            self.dispatch(number, PeerFound(peer=self._neighbours(number)[0]))

    def _find_all(self, number: int) -> None:
        """A rank and all ranks that it can reach have new connections."""
        for peer in self._neighbours(number):
            if self._nodes[number].alive and self._nodes[peer].alive and self._can_reach(number, peer):
                self.dispatch(peer, PeerFound(peer=number))
                self.dispatch(number, PeerFound(peer=peer))
