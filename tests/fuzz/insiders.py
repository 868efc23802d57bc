"""Whoever has the key sends a run frames that are none while it computes: no crash, no hang, no growth, the same bits.

A member does, over the connections that it has with its neighbours, to each of them; and somebody who knows the secret
does where the run meets. Both are let in by CURVE. What a member may say and is not true (vectors, votes, that it
leaves) is another matter, and is not sent here (`members` sends it to single nodes).

python -m tests.fuzz.insiders --frames 100000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import mmap
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from codedreduce.errors import CodedReduceError, WireError
from codedreduce.net.carrier import Carrier
from codedreduce.net.frames import OPENS
from codedreduce.net.keys import Guard
from codedreduce.net.sessions import PLANES, TAG_BYTES
from codedreduce.node.driver import Driver
from codedreduce.protocol.core.events import AnyAction, Event
from codedreduce.protocol.core.messages import DATA, Follow, Goodbye, Hello, Lead, Leaving, Refuse, Stand, Welcome
from codedreduce.protocol.core.wire import decode
from codedreduce.protocol.rights import rights_at
from codedreduce.run.world import World
from codedreduce.schemes import Piece
from tests.fuzz.fuzzing import GROWTH, HANGS_AFTER, watched
from tests.fuzz.mutations import Frames, Mutations
from tests.fuzz.runs import Checked, memory_of
from tests.fuzz.strangers import Context, role_of

#: By what they are, in which run which node sends what is none; neighbours of these are of every role that has some.
#: A ring does not go on when a connection was cut, whatever for.
SENDERS: dict[str, tuple[str, int]] = {
    "inner worker": ("tree", 1),
    "leaf": ("tree", 3),
    "rank": ("stripes", 1),
}

#: What a member may say, and would change what the run is, or who is in it.
NOT_SENT = (*DATA, Hello, Goodbye, Leaving, Refuse, Welcome, Stand, Lead, Follow)

#: Messages that a member sends whenever anything happens to it.
AT_ONCE = 4

#: Of all messages, the part that is said where the run meets; there a few are answered at a time.
TO_BOOK = 0.1


@dataclass
class Insider(Checked):
    """A run over TCP with keys, of which one process sends so many messages that are none."""

    has_keys: bool = True
    who: int = 1
    frames: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_wrong = False
        self._counts = mmap.mmap(-1, 8)  # where all processes see it

    @property
    def sent(self) -> int:
        """How many messages it has sent."""
        return int.from_bytes(self._counts[:8], "big")

    def _gradient(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        super()._gradient(piece, model, round_, out, node)
        if node == self.who and not self._is_wrong and round_ > 2:
            self._is_wrong = True
            (driver,) = (thread for thread in threading.enumerate() if isinstance(thread, Driver))
            self._go_wrong(driver.machine, driver._transport)

    def _member(self, world: World) -> None:
        try:
            super()._member(world)
        except CodedReduceError:
            if not self._is_wrong:
                raise

    def _go_wrong(self, machine: Any, carrier: Carrier) -> None:
        handle, mutations = machine.handle, Mutations(self.seed, self.run.settings.chunk_bytes(0))
        rights = rights_at(self.who, self.plan)
        others = (*rights.above, *rights.below)

        def handle_and_send(event: Event, now: float) -> list[AnyAction]:
            for _ in range(AT_ONCE if self.sent < self.frames else 0):
                self._send(carrier, mutations.random.choice(others), mutations)
            actions: list[AnyAction] = handle(event, now)
            return actions

        machine.handle = handle_and_send

    def _send(self, carrier: Carrier, other: int, mutations: Mutations) -> None:
        link = carrier._links[other]
        connection = link.planes[mutations.random.choice(PLANES)]
        frames = mutations.frames(link.session.outgoing)
        if _is_believed(frames):
            return
        with contextlib.suppress(zmq.ZMQError):
            named = [connection.called] if connection.called is not None else []
            connection.socket.send_multipart([*named, *frames], zmq.DONTWAIT)
            self._counts[:8] = (self.sent + 1).to_bytes(8, "big")


def _is_believed(frames: Frames) -> bool:
    """Whether this is something that a member may say of itself, or of the run."""
    first = frames[0]
    if first[:1] in OPENS:
        return True
    try:
        return isinstance(decode(first[1 + TAG_BYTES :]), NOT_SENT)
    except WireError:
        return False


class AtTheBook:
    """Somebody who knows the secret says what is none where the run meets, until it is to stop."""

    def __init__(self, run: Insider) -> None:
        self._run = run
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.sent = 0

    def __enter__(self) -> AtTheBook:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _send(self) -> None:
        meeting = self._run.run.meeting
        assert meeting.secret is not None
        context: Context = zmq.Context()
        guard = Guard(context, meeting.secret, meeting.timing)
        mutations = Mutations(self._run.seed, 100)
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 16)
        socket.setsockopt(zmq.RECONNECT_IVL, 5)
        guard.connects(socket)
        socket.connect(meeting.address)
        try:
            while not self._is_over.is_set():
                if socket.poll(20, zmq.POLLOUT):
                    said = mutations.registration(meeting, len(self._run.plan.nodes), guard)
                    socket.send_multipart(said, zmq.DONTWAIT)
                    self.sent += 1
                while socket.poll(0):
                    socket.recv_multipart()
        finally:
            socket.close(linger=0)
            guard.close()
            context.destroy(linger=0)


def fuzz_from_within(sender: str, frames: int, seed: int, *, say: bool = False) -> Counter[str]:
    """Run rounds while a member sends; raise if anything is other than it would be without it. How many went where."""
    kind, who = SENDERS[sender]
    run = Insider(kind, who=who, frames=frames, seed=seed)
    with watched(), run.cluster() as cluster:
        pids, early = cluster.processes, None
        with AtTheBook(run) as book:
            while run.sent < frames or book.sent < TO_BOOK * frames:
                run.round(cluster)
                faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
                if early is None and run.sent > frames // 5:
                    early = memory_of(cluster)
                if say and run.done % 500 == 0:
                    print(f"{sender}: {run.sent} and {book.sent} frames, {run.done} rounds", flush=True)
        for _ in range(5):
            run.round(cluster)
        after = memory_of(cluster)
        assert early is not None
        growth = {node: after[node] - early[node] for node in after}
        assert all(more < GROWTH for more in growth.values()), f"memory grew: {growth}"
        assert cluster.processes == pids, "nobody was started again"
        assert not run.journal.of_kind("dead"), "somebody died of it"
    neighbours = ", ".join(sorted({role_of(run.plan, one) for one in (*rights_at(who, run.plan).above, 0)}))
    return Counter({f"neighbours of a {sender} ({neighbours})": run.sent, "book of addresses": book.sent})


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for number, sender in enumerate(SENDERS):
        frames = int(options.frames / len(SENDERS) / (1 + TO_BOOK))
        print(dict(fuzz_from_within(sender, frames, options.seed + number, say=True)), flush=True)


if __name__ == "__main__":
    main()
