"""A session: what two neighbours have with each other over two connections, from when both work until one breaks.

Each side has an epoch. It begins at a number that no earlier process of that node had, and is counted up whenever this
side sees a connection break that this session has used, or ends it by itself. The two epochs together name the session,
and every frame says both: a frame of an earlier session, wherever it was left lying, is known as such and dropped.
Whatever breaks, on either plane, ends the session on both and at both ends; what was lost with it is for those who sent
it to send again.

    connection is there -> its maker says OPEN(mine, theirs) there, theirs being 0 as long as it is unknown
    OPEN with a new epoch -> that is theirs now; OPEN is said on both planes
    OPEN that asks -> is answered on its plane
    OPEN(theirs, mine) has come on both planes -> the session is up
    a frame of the session has come -> the other side is up, so this one is
    a connection breaks that an OPEN of the session has come by -> mine is counted up; OPEN is said on both planes
    another breaks -> nothing: its session is over already, or none has begun

One that breaks is seen by both sides, each in its own time. The other's OPEN may be here before this side sees it: it
must not be counted again then, or the session that has begun since would end, too.

An OPEN asks for an answer as long as its plane is not confirmed. What is said on a plane without a connection is lost;
whoever makes the connection speaks first when it is there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from codedreduce.errors import WireError

#: The planes: small messages, and chunks of vectors.
CONTROL, DATA = 0, 1
PLANES = (CONTROL, DATA)

#: Who says it, and to whom, as epochs.
_TAG = struct.Struct("!QQ")
TAG_BYTES = _TAG.size

#: Bits of an epoch that count within one process; those above say which process.
_COUNTED = 32


class SessionStep(NamedTuple):
    """What follows: on which planes OPEN is to be said, and whether the session has come up or gone down."""

    open_on: tuple[int, ...] = ()
    gone: bool = False
    up: bool = False


_NOTHING = SessionStep()


class Session:
    """One side of it. `process` is a number that no earlier process of this node had, but by chance."""

    def __init__(self, process: int) -> None:
        self._mine = process << _COUNTED | 1
        self._theirs = 0
        self._confirmed: set[int] = set()
        self._is_up = False
        self._was_up = False
        self._begin()

    def _begin(self) -> None:
        """The epochs have changed: nothing has been sent, and nothing has come."""
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
        """Whether it has not been up yet: what is to be sent can wait. Once it was, what was to be sent is lost."""
        return not self._was_up

    def give_up_waiting(self) -> None:
        """Whoever has not come yet counts as gone: what is to be sent to it does not wait."""
        self._was_up = True

    def asks_on(self, plane: int) -> bool:
        """Whether an OPEN on this plane is to be answered."""
        return plane not in self._confirmed

    # -- what happens

    def connected(self, plane: int) -> SessionStep:
        """A connection that this side makes is there."""
        return SessionStep((plane,)) if plane not in self._confirmed else _NOTHING

    def broke(self, plane: int) -> SessionStep:
        """A connection that was there is gone. If no OPEN of this session came by it, the other side counts it, if any:
        of two sides one has had such an OPEN on both planes before anything else is sent.
        """
        return self.end() if plane in self._confirmed else _NOTHING

    def end(self) -> SessionStep:
        """This side wants no more of this session."""
        self._mine += 1
        return self._start_anew()

    def opened(self, plane: int, tag: bytes, *, asks: bool) -> SessionStep:
        """The other side has said OPEN."""
        theirs, mine = _TAG.unpack(tag)
        if theirs == self._theirs:
            step = SessionStep((plane,)) if asks else _NOTHING
        elif self._is_past(theirs):
            return _NOTHING
        else:
            if self._is_up or self._is_another_process(theirs):
                self._mine += 1  # or a session that has ended could be taken up again
            self._theirs = theirs
            step = self._start_anew()
        if mine != self._mine:
            return step
        self._confirmed.add(plane)
        if len(self._confirmed) < len(PLANES):
            return step
        return step._replace(up=self._come_up())

    def is_of_it(self, tag: bytes) -> bool:
        """Whether a frame is of this session."""
        return tag == self.incoming

    def is_theirs(self, tag: bytes) -> bool:
        """Whether what says this is of the other side as it is now."""
        return bool(_TAG.unpack(tag)[0] == self._theirs)

    def heard(self) -> bool:
        """A frame of this session has come: the other side is up, so this one is; whether that is news."""
        return not self._is_up and self._come_up()

    def is_of_their_process(self, tag: bytes) -> bool:
        """Whether a frame was sent by the process that is at the other end, in whichever session."""
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

    # -- marked messages, counted from the session's begin

    def marked_went(self) -> None:
        """A marked message has been sent."""
        self._went += 1

    def marked_came(self) -> int:
        """A marked message has come; how many have, which is what the other side is told."""
        self._came += 1
        return self._came

    def acknowledged(self, count: int) -> int:
        """The other side says how many marked messages it has; how many of them are news.

        It cannot have more than were sent.
        """
        if count > self._went:
            raise WireError(f"an acknowledgement of {count} messages; {self._went} were sent")
        news = max(0, count - self._known_to_have_come)
        self._known_to_have_come += news
        return news
