"""Sessions over two planes that break at any moment: both ends agree in the end, and nothing old is ever heard."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedreduce.errors import WireError
from codedreduce.worlds.zeromq.sessions import CONTROL, DATA, PLANES, Session, Step

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
    into a connection that is gone is lost. Either side comes to know of a break when it does, the maker before it
    connects anew.
    """

    def __init__(self, makers: tuple[int, int]) -> None:
        self.makers = makers
        self.processes = 0
        self.ends = [End(self._session()), End(self._session())]
        self.ways: dict[tuple[int, int], deque[Frame]] = {(plane, to): deque() for plane in PLANES for to in ENDS}
        self.is_connected = [False, False]
        self.untold: list[tuple[int, int]] = []  # who has yet to be told of which plane's break
        self.sent = 0

    def _session(self) -> Session:
        self.processes += 1
        return Session((self.processes * 7919) % 1000 + 1)  # in no order

    # -- what can happen

    def connect(self, plane: int) -> None:
        maker = self.makers[plane]
        if not self.is_connected[plane]:
            self._tell_of_break(maker, plane)
            self.is_connected[plane] = True
            self._follow(maker, self.ends[maker].session.connected(plane))

    def cut(self, plane: int, delivered: int) -> None:
        """A connection breaks; of what was under way to the maker some had come, of what it sent any may be left."""
        if self.is_connected[plane]:
            self.is_connected[plane] = False
            maker = self.makers[plane]
            back = self.ways[plane, maker]
            while len(back) > delivered:
                back.pop()
            lost = self.ways[plane, 1 - maker]
            for _ in range(min(delivered, len(lost))):
                lost.popleft()
            self.untold += [(A, plane), (B, plane)]

    def _tell_of_break(self, end: int, plane: int) -> None:
        if (end, plane) in self.untold:
            self.untold.remove((end, plane))
            self._follow(end, self.ends[end].session.broke())

    def tell(self) -> None:
        """Somebody is told of a break, if there is one to tell of."""
        if self.untold:
            self._tell_of_break(*self.untold[0])

    def restart(self, end: int) -> None:
        """A process ends, and another takes its place."""
        for plane in PLANES:
            self.cut(plane, 1)
            if self.makers[plane] == end:
                self.ways[plane, 1 - end].clear()
        self.untold = [(who, plane) for who, plane in self.untold if who != end]
        self.ends[end] = End(self._session())

    def send(self, end: int, plane: int) -> None:
        """A machine sends something, if the session is up."""
        if self.ends[end].session.is_up:
            self.sent += 1
            tag = self.ends[end].session.outgoing
            self.ends[end].sent[tag, plane] += 1
            self._put(end, plane, Frame(tag, self.sent, place=self.ends[end].sent[tag, plane]))

    def deliver(self, end: int, plane: int) -> None:
        """The next frame comes."""
        way = self.ways[plane, end]
        if not way or not (self.is_connected[plane] or self.makers[plane] == end):
            return
        frame, here = way.popleft(), self.ends[end]
        if frame.number is None:
            self._follow(end, here.session.opened(plane, frame.tag, asks=frame.asks))
        elif here.session.is_of_it(frame.tag):
            if here.session.heard():
                here.heard.append(True)
            here.heard.append(frame.number)
            here.came[frame.tag, plane] += 1
            assert frame.place == here.came[frame.tag, plane], "something is missing before it"

    def _put(self, sender: int, plane: int, frame: Frame) -> None:
        if self.is_connected[plane] or self.makers[plane] == sender:
            self.ways[plane, 1 - sender].append(frame)

    def _follow(self, end: int, step: Step) -> None:
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
            while self.untold:
                self.tell()
            for plane in PLANES:
                self.connect(plane)
            if not any(self.ways.values()):
                return
            for plane, end in self.ways:
                self.deliver(end, plane)
        raise AssertionError("they never stop talking")


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from(PLANES)),
        st.tuples(st.just("cut"), st.sampled_from(PLANES), st.integers(0, 3)),
        st.tuples(st.just("tell")),
        st.tuples(st.just("send"), st.sampled_from(ENDS), st.sampled_from(PLANES)),
        st.tuples(st.just("deliver"), st.sampled_from(ENDS), st.sampled_from(PLANES)),
        st.tuples(st.just("deliver"), st.sampled_from(ENDS), st.sampled_from(PLANES)),
        st.tuples(st.just("restart"), st.sampled_from(ENDS)),
        st.tuples(st.just("settle")),
    ),
    max_size=60,
)

#: In a tree the child makes both connections, between ranks each makes one.
makers = st.sampled_from([(A, A), (B, A)])


@settings(max_examples=500)
@given(makers, happenings)
def test_two_ends_agree_in_the_end(makers: tuple[int, int], happened: list[tuple]) -> None:
    pair = Pair(makers)
    for what, *details in happened:
        getattr(pair, what)(*details)
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
def test_what_is_heard_after_all_is_well_is_all_that_is_sent(makers: tuple[int, int], happened: list[tuple]) -> None:
    """Once per end, in the order in which it was sent on each plane, and nothing of before."""
    pair = Pair(makers)
    for what, *details in happened:
        getattr(pair, what)(*details)
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
def test_nothing_of_an_older_session_is_heard(makers: tuple[int, int], happened: list[tuple]) -> None:
    """Of what is heard between two changes nothing is older than what was heard before the first of them."""
    pair = Pair(makers)
    for what, *details in happened:
        getattr(pair, what)(*details)
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
    one.broke()
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
    assert step == Step((CONTROL, DATA))
    one.opened(CONTROL, other.outgoing, asks=True)
    assert not one.is_up
    step = one.opened(DATA, other.outgoing, asks=True)
    assert step == Step((DATA,), up=True)


@pytest.mark.parametrize("plane", PLANES)
def test_a_break_on_either_plane_ends_it_at_both_ends(plane: int) -> None:
    one, other = up()
    old = one.outgoing
    assert one.broke() == Step((CONTROL, DATA), gone=True)
    assert not one.is_up
    assert other.is_of_it(old)
    step = other.opened(1 - plane, one.outgoing, asks=True)
    assert step.gone
    assert not other.is_of_it(old)
    assert not other.is_up


def test_what_is_to_be_sent_waits_for_the_first_time_only() -> None:
    session = Session(3)
    assert session.is_new
    session.broke()
    assert session.is_new, "it has not been up"
    one, _ = up()
    one.broke()
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
    assert other.opened(DATA, one.outgoing, asks=False) == Step()


def test_an_open_that_was_left_lying_on_one_plane_changes_nothing() -> None:
    one, other = up()
    one.broke()
    first = one.outgoing
    one.broke()
    other.opened(CONTROL, one.outgoing, asks=True)
    expected = other.incoming
    assert other.opened(DATA, first, asks=True) == Step()
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
