"""A session joins two neighbours over two connections, from the time when both connections work until one breaks.

Each side has an epoch. It starts at a number that no earlier process of that node had. A side increments its epoch
when it sees a connection break that this session has used, or when it ends the session itself. The two epochs together
name the session, and every frame carries both. A side thus recognizes and drops a frame of an earlier session, wherever
the frame was delayed. Any break, on either plane, ends the session on both planes and at both ends. The senders must
send again what was lost with it.

    a connection is made -> the side that made it sends OPEN(mine, theirs) on it; theirs is 0 while it is unknown
    OPEN with a new epoch -> this is now theirs; send OPEN on both planes
    OPEN that asks -> answer it on its plane
    OPEN(theirs, mine) received on both planes -> the session is up
    a frame of the session received -> the other side is up, so this side is up
    a connection breaks that carried an OPEN of the session -> increment mine; send OPEN on both planes
    another connection breaks -> nothing: its session is over already, or none has begun

Both sides see a break, each at its own time. The other side's OPEN may arrive before this side sees the break. This
side must not increment its epoch again then, or it would end the session that has begun since.

An OPEN asks for an answer as long as its plane is not confirmed. A frame sent on a plane without a connection is lost.
The side that makes a connection sends first, once the connection exists.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from codedreduce.errors import WireError

#: The planes: control (small messages), and data (chunks of vectors).
CONTROL, DATA = 0, 1
PLANES = (CONTROL, DATA)

#: The epochs of the sender and of the receiver.
_TAG = struct.Struct("!QQ")
TAG_BYTES = _TAG.size

#: The low bits of an epoch, which count within one process; the bits above them identify the process.
_COUNTED = 32


class SessionStep(NamedTuple):
    """What to do next: the planes on which to send OPEN, and whether the session has gone down or come up."""

    open_on: tuple[int, ...] = ()
    gone: bool = False
    up: bool = False


_NOTHING = SessionStep()


class Session:
    """One side of a session. `process`: a random number that no earlier process of this node had, except by chance."""

    def __init__(self, process: int) -> None:
        self._mine = process << _COUNTED | 1
        self._theirs = 0
        self._confirmed: set[int] = set()
        self._is_up = False
        self._was_up = False
        self._begin()

    def _begin(self) -> None:
        """Start counting again: with these epochs nothing has been sent or received."""
        self._confirmed.clear()
        self.outgoing = _TAG.pack(self._mine, self._theirs)
        self.incoming = _TAG.pack(self._theirs, self._mine)
        self._came = 0
        self._went = 0
        self._known_to_have_come = 0

    @property
    def is_up(self) -> bool:
        """Whether what is sent now arrives, unless a connection breaks."""
        return self._is_up

    @property
    def is_new(self) -> bool:
        """Whether the session has never been up, so that messages can wait. Once it was up, messages are lost while it
        is down.
        """
        return not self._was_up

    def give_up_waiting(self) -> None:
        """Treat a peer that has not connected yet as failed: messages to it do not wait."""
        self._was_up = True

    def asks_on(self, plane: int) -> bool:
        """Whether an OPEN on this plane asks for an answer."""
        return plane not in self._confirmed

    # -- events

    def connected(self, plane: int) -> SessionStep:
        """A connection that this side makes has been established."""
        return SessionStep((plane,)) if plane not in self._confirmed else _NOTHING

    def broke(self, plane: int) -> SessionStep:
        """An established connection broke. If it carried no OPEN of this session, only the other side may count the
        break: one of the two sides receives such an OPEN on both planes before anything else is sent.
        """
        return self.end() if plane in self._confirmed else _NOTHING

    def end(self) -> SessionStep:
        """This side ends the session."""
        self._mine += 1
        return self._start_anew()

    def opened(self, plane: int, tag: bytes, *, asks: bool) -> SessionStep:
        """The other side has sent OPEN."""
        theirs, mine = _TAG.unpack(tag)
        if theirs == self._theirs:
            step = SessionStep((plane,)) if asks else _NOTHING
        elif self._is_past(theirs):
            return _NOTHING
        else:
            if self._is_up or self._is_another_process(theirs):
                self._mine += 1  # otherwise a session that has ended could be resumed
            self._theirs = theirs
            step = self._start_anew()
        if mine != self._mine:
            return step
        self._confirmed.add(plane)
        if len(self._confirmed) < len(PLANES):
            return step
        return step._replace(up=self._come_up())

    def is_of_it(self, tag: bytes) -> bool:
        """Whether a frame belongs to this session."""
        return tag == self.incoming

    def is_theirs(self, tag: bytes) -> bool:
        """Whether the sender of this tag is the other side in its present epoch."""
        return bool(_TAG.unpack(tag)[0] == self._theirs)

    def heard(self) -> bool:
        """A frame of this session arrived: the other side is up, so this side is up. True if that is new."""
        return not self._is_up and self._come_up()

    def is_of_their_process(self, tag: bytes) -> bool:
        """Whether the process at the other end sent this frame, in any session."""
        return self._theirs > 0 and not self._is_another_process(_TAG.unpack(tag)[0])

    def _is_past(self, theirs: int) -> bool:
        return theirs < self._theirs and not self._is_another_process(theirs)

    def _is_another_process(self, theirs: int) -> bool:
        return self._theirs > 0 and theirs >> _COUNTED != self._theirs >> _COUNTED

    def _start_anew(self) -> SessionStep:
        gone, self._is_up = self._is_up, False
        self._begin()
        return SessionStep(PLANES, gone=gone)

    def _come_up(self) -> bool:
        is_news = not self._is_up
        self._is_up = self._was_up = True
        return is_news

    # -- marked messages, counted from the start of the session

    def marked_went(self) -> None:
        """A marked message has been sent."""
        self._went += 1

    def marked_came(self) -> int:
        """A marked message has arrived. Returns the number that have, which the acknowledgement reports."""
        self._came += 1
        return self._came

    def acknowledged(self, count: int) -> int:
        """The other side reports how many marked messages it has. Returns how many of them are newly acknowledged.

        It cannot have more than were sent.
        """
        if count > self._went:
            raise WireError(f"an acknowledgement of {count} messages; {self._went} were sent")
        news = max(0, count - self._known_to_have_come)
        self._known_to_have_come += news
        return news
