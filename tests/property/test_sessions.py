"""Sessions over two planes that break at any moment: both ends agree in the end, and nothing old is ever heard."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedreduce.errors import WireError
from codedreduce.net.sessions import CONTROL, DATA, PLANES, Session, SessionStep

A, B = 0, 1
ENDS = (A, B)


@dataclass
class Frame:
    """Something under way: OPEN, or a message with a number of its own, and its place in its session on its plane."""

    tag: bytes
    number: int | None
    asks: bool = False
    place: int = 0


@dataclass
class End:
    """One end as a carrier has it, and what its machine was told: True and False when it is reached and gone."""

    session: Session
    heard: list[int | bool] = field(default_factory=list)
    sent: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    came: Counter[tuple[bytes, int]] = field(default_factory=Counter)


class Pair:
    """Two ends. On each plane one of them makes the connections, over which frames keep their order.

    What was sent by the maker and had not left waits for its next connection, as in ZeroMQ. What the other side sends
    into a connection that is gone is lost, and it may notice. What had come may be read later. Either side comes to
    know of a break, or of a new connection, when it does, on each plane by itself; but at the latest when an OPEN comes
    there.
    """

    def __init__(self, makers: tuple[int, int]) -> None:
        self.makers = makers
        self.processes = 0
        self.ends = [End(self._session()), End(self._session())]
        self.ways: dict[tuple[int, int], deque[Frame]] = {(plane, to): deque() for plane in PLANES for to in ENDS}
        self.left: dict[tuple[int, int], deque[Frame]] = {way: deque() for way in self.ways}  # came, and was not read
        self.is_connected = [False, False]
        self.untold: dict[tuple[int, int], deque[bool]] = {way: deque() for way in self.ways}  # True: it is there
        self.sent = 0

    def _session(self) -> Session:
        self.processes += 1
        return Session((self.processes * 7919) % 1000 + 1)  # in no order

    # -- what can happen

    def connect(self, plane: int) -> None:
        if not self.is_connected[plane]:
            self.is_connected[plane] = True
            self.untold[plane, self.makers[plane]].append(True)

    def cut(self, plane: int, delivered: int, *, is_read: bool = True) -> None:
        """A connection breaks; of what was under way to the maker some had come, of what it sent any may be left."""
        if self.is_connected[plane]:
            self.is_connected[plane] = False
            maker = self.makers[plane]
            back = self.ways[plane, maker]
            while len(back) > delivered:
                back.pop()
            lost = self.ways[plane, 1 - maker]
            for _ in range(min(delivered, len(lost))):
                gone = lost.popleft()
                if not is_read:
                    self.left[plane, 1 - maker].append(gone)
            for end in ENDS:
                self.untold[plane, end].append(False)

    def shut(self, end: int, plane: int, delivered: int) -> None:
        """One end cuts the other's connection, if there is one."""
        if self.is_connected[plane]:
            self.cut(plane, delivered, is_read=False)
            self._follow(end, self.ends[end].session.end())

    def tell(self, end: int, plane: int) -> None:
        """Somebody is told of a connection that is gone or there, if there is one to tell of."""
        if self.untold[plane, end]:
            session = self.ends[end].session
            self._follow(end, session.connected(plane) if self.untold[plane, end].popleft() else session.broke(plane))

    def restart(self, end: int) -> None:
        """A process ends, and another takes its place."""
        for plane in PLANES:
            self.cut(plane, 1)
            if self.makers[plane] == end:
                self.ways[plane, 1 - end].clear()
            self.untold[plane, end].clear()
            self.left[plane, end].clear()
        self.ends[end] = End(self._session())

    def send(self, end: int, plane: int, *, notices: bool = False) -> None:
        """A machine sends something, if the session is up; if there is no connection, that may be noticed."""
        if self.ends[end].session.is_up:
            self.sent += 1
            tag = self.ends[end].session.outgoing
            self.ends[end].sent[tag, plane] += 1
            self._put(end, plane, Frame(tag, self.sent, place=self.ends[end].sent[tag, plane]))
            if notices and not self.is_connected[plane] and self.makers[plane] != end:
                self._follow(end, self.ends[end].session.end())

    def deliver(self, end: int, plane: int) -> None:
        """The next frame comes."""
        way, left = self.ways[plane, end], self.left[plane, end]
        if left:
            way = left
        elif not way or not (self.is_connected[plane] or self.makers[plane] == end):
            return
        frame, here = way.popleft(), self.ends[end]
        if frame.number is None:
            while self.untold[plane, end]:
                self.tell(end, plane)
            self._follow(end, here.session.opened(plane, frame.tag, asks=frame.asks))
        elif here.session.is_of_it(frame.tag):
            if here.session.heard():
                here.heard.append(True)
            here.heard.append(frame.number)
            here.came[frame.tag, plane] += 1
            if frame.place != here.came[frame.tag, plane]:
                assert any(False in self.untold[plane, who] for who in ENDS), "something is missing, and none will know"
                here.came[frame.tag, plane] = frame.place

    def _put(self, sender: int, plane: int, frame: Frame) -> None:
        if self.is_connected[plane] or self.makers[plane] == sender:
            self.ways[plane, 1 - sender].append(frame)

    def _follow(self, end: int, step: SessionStep) -> None:
        here = self.ends[end]
        if step.gone:
            here.heard.append(False)
        for plane in step.open_on:
            self._put(end, plane, Frame(here.session.outgoing, None, here.session.asks_on(plane)))
        if step.up:
            here.heard.append(True)

    def settle(self) -> None:
        """Nothing breaks any more: connections are made, breaks are told of, frames come."""
        for _ in range(200):
            for plane in PLANES:
                self.connect(plane)
            for plane, end in self.untold:
                while self.untold[plane, end]:
                    self.tell(end, plane)
            if not any(self.ways.values()) and not any(self.left.values()):
                return
            for plane, end in self.ways:
                self.deliver(end, plane)
        raise AssertionError("they never stop talking")


class Happening(NamedTuple):
    """Something that happens to two ends: which method, and with what."""

    what: str
    how: tuple[int, ...] = ()
    options: tuple[tuple[str, bool], ...] = ()

    def to(self, pair: Pair) -> None:
        """Let it happen."""
        getattr(pair, self.what)(*self.how, **dict(self.options))


def happening(what: str, *how: st.SearchStrategy[int], option: str = "") -> st.SearchStrategy[Happening]:
    options = st.booleans().map(lambda chosen: ((option, chosen),)) if option else st.just(())
    return st.builds(Happening, st.just(what), st.tuples(*how), options)


some_end, some_plane, a_few = st.sampled_from(ENDS), st.sampled_from(PLANES), st.integers(0, 3)

#: What goes on whatever has happened.
going_on = (
    happening("connect", some_plane),
    happening("tell", some_end, some_plane),
    happening("send", some_end, some_plane, option="notices"),
    happening("deliver", some_end, some_plane),
    happening("deliver", some_end, some_plane),
)

a_cut = happening("cut", some_plane, a_few, option="is_read") | happening("shut", some_end, some_plane, a_few)

happenings = st.lists(
    st.one_of(*going_on, a_cut, happening("restart", some_end), st.just(Happening("settle"))), max_size=60
)

#: In a tree the child makes both connections, between ranks each makes one.
makers = st.sampled_from([(A, A), (B, A)])


@settings(max_examples=500)
@given(makers, happenings)
def test_two_ends_agree_in_the_end(makers: tuple[int, int], happened: list[Happening]) -> None:
    pair = Pair(makers)
    for one in happened:
        one.to(pair)
    pair.settle()
    one, other = (end.session for end in pair.ends)
    assert one.is_up
    assert other.is_up
    assert one.outgoing == other.incoming
    assert other.outgoing == one.incoming
    for end in pair.ends:
        changes = [what for what in end.heard if isinstance(what, bool)]
        assert changes == [index % 2 == 0 for index in range(len(changes))], "reached and gone take turns"


@settings(max_examples=500)
@given(makers, happenings)
def test_what_is_heard_after_all_is_well_is_all_that_is_sent(
    makers: tuple[int, int], happened: list[Happening]
) -> None:
    """Once per end, in the order in which it was sent on each plane, and nothing of before."""
    pair = Pair(makers)
    for one in happened:
        one.to(pair)
    pair.settle()
    before = pair.sent
    heard_before = [len(end.heard) for end in pair.ends]
    for _ in range(3):
        for end in ENDS:
            for plane in PLANES:
                pair.send(end, plane)
    pair.settle()
    for end, past in zip(pair.ends, heard_before, strict=True):
        assert all(number > before for number in end.heard[past:])
        assert len(end.heard[past:]) == 6


@settings(max_examples=500)
@given(makers, happenings)
def test_nothing_of_an_older_session_is_heard(makers: tuple[int, int], happened: list[Happening]) -> None:
    """Of what is heard between two changes nothing is older than what was heard before the first of them."""
    pair = Pair(makers)
    for one in happened:
        one.to(pair)
        for end in pair.ends:
            latest = newest = 0
            is_up = False
            for number in end.heard:
                if isinstance(number, bool):
                    latest, is_up = newest, number
                else:
                    assert is_up
                    assert number > latest
                    newest = max(newest, number)


@settings(max_examples=1000)
@given(makers, a_cut, st.lists(st.one_of(*going_on), max_size=60))
def test_one_cut_is_one_new_session(makers: tuple[int, int], cut: Happening, happened: list[Happening]) -> None:
    """Whoever sees it first, and whatever is read when."""
    pair = Pair(makers)
    pair.settle()
    before = [len(end.heard) for end in pair.ends]
    for end in ENDS:
        pair.send(end, DATA)
    cut.to(pair)
    for one in happened:
        one.to(pair)
    pair.settle()
    for end, past in zip(pair.ends, before, strict=True):
        assert [what for what in end.heard[past:] if isinstance(what, bool)] == [False, True]


def up() -> tuple[Session, Session]:
    pair = Pair((A, A))
    pair.settle()
    return pair.ends[A].session, pair.ends[B].session


def test_acknowledgements_count_from_the_begin_of_a_session() -> None:
    one, other = up()
    assert [other.marked_came() for _ in range(5)] == [1, 2, 3, 4, 5]
    for _ in range(5):
        one.marked_went()
    assert one.acknowledged(2) == 2
    assert one.acknowledged(2) == 0
    assert one.acknowledged(5) == 3, "also if one in between had been lost"
    assert one.acknowledged(4) == 0
    one.end()
    other.opened(CONTROL, one.outgoing, asks=True)
    assert other.marked_came() == 1
    with pytest.raises(WireError, match="an acknowledgement of 1 messages; 0 were sent"):
        one.acknowledged(1)
    one.marked_went()
    assert one.acknowledged(1) == 1


def test_one_plane_is_not_enough() -> None:
    one, other = Session(3), Session(4)
    one.opened(CONTROL, other.outgoing, asks=True)
    step = other.opened(CONTROL, one.outgoing, asks=True)
    assert step == SessionStep((CONTROL, DATA))
    one.opened(CONTROL, other.outgoing, asks=True)
    assert not one.is_up
    step = one.opened(DATA, other.outgoing, asks=True)
    assert step == SessionStep((DATA,), up=True)


@pytest.mark.parametrize("plane", PLANES)
def test_a_break_on_either_plane_ends_it_at_both_ends(plane: int) -> None:
    one, other = up()
    old = one.outgoing
    assert one.broke(plane) == SessionStep((CONTROL, DATA), gone=True)
    assert not one.is_up
    assert other.is_of_it(old)
    step = other.opened(1 - plane, one.outgoing, asks=True)
    assert step.gone
    assert not other.is_of_it(old)
    assert not other.is_up


def test_what_is_to_be_sent_waits_for_the_first_time_only() -> None:
    session = Session(3)
    assert session.is_new
    session.broke(DATA)
    assert session.is_new, "it has not been up"
    one, _ = up()
    one.broke(DATA)
    assert not one.is_new
    session.give_up_waiting()
    assert not session.is_new


def test_what_comes_on_one_plane_shows_that_the_other_side_is_up() -> None:
    """Its OPEN may still be under way on the other plane."""
    one, other = Session(3), Session(4)
    one.opened(CONTROL, other.outgoing, asks=True)
    other.opened(CONTROL, one.outgoing, asks=True)
    one.opened(CONTROL, other.outgoing, asks=True)
    one.opened(DATA, other.outgoing, asks=True)
    assert one.is_up
    assert not other.is_up
    assert other.is_of_it(one.outgoing)
    assert other.heard()
    assert other.is_up
    assert not other.heard(), "no news"
    assert other.opened(DATA, one.outgoing, asks=False) == SessionStep()


def test_an_open_that_was_left_lying_on_one_plane_changes_nothing() -> None:
    one, other = up()
    one.end()
    first = one.outgoing
    one.end()
    other.opened(CONTROL, one.outgoing, asks=True)
    expected = other.incoming
    assert other.opened(DATA, first, asks=True) == SessionStep()
    assert other.incoming == expected


def test_the_last_words_of_an_earlier_process_do_not_revive_a_session_that_is_over() -> None:
    """An OPEN of a process that has ended is taken for a new one. But what ended by that does not go on afterwards."""
    one, other = up()
    session = one.outgoing, other.outgoing
    other.opened(DATA, Session(77).outgoing, asks=True)
    other.opened(CONTROL, one.outgoing, asks=True)
    one.opened(CONTROL, other.outgoing, asks=True)
    assert (one.outgoing, other.outgoing) != session
    assert not one.is_up
