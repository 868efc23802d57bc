"""The driver's timers, with a clock that stands still until it is told to go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from codedreduce.errors import CodedReduceError
from codedreduce.net.carrier import Gone, Reached
from codedreduce.node import driver as module
from codedreduce.node.driver import ORPHANED, Driver
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core.timers import Timer
from codedreduce.timing import TIMING


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Machine:
    """Remembers what happened to it."""

    node, round = 3, 1

    def __init__(self) -> None:
        self.happened: list[happening.Event] = []

    def handle(self, event: happening.Event, now: float) -> list[happening.AnyAction]:
        self.happened.append(event)
        return [happening.Finished(reason=event.reason)] if isinstance(event, happening.Leave) else []


class Transport:
    """Tells of connections that go and come."""

    needs = 1

    def __init__(self) -> None:
        self.news: list[Gone | Reached] = []
        self.unreadable: list[tuple[int | None, str]] = []

    def take(self, ready: object) -> list[Gone | Reached]:
        news, self.news = self.news, []
        return news


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def driver(clock: Clock) -> Iterator[Any]:
    machine, transport = Machine(), Transport()
    driver: Any = Driver(machine, transport, lambda action: None, timing=TIMING, orphaned_after=30.0)  # type: ignore[arg-type]
    yield driver
    driver._transport.close = lambda: None
    driver._loop = lambda: None
    driver.run()  # closes what the constructor opened


def connection(driver: Any, *comes: bool, to: int = 1) -> None:
    """The connection to a neighbour goes or comes."""
    driver._transport.news += [Reached(to) if is_there else Gone(to) for is_there in comes]
    driver._take_news(())


def wait(driver: Any, clock: Clock, seconds: float) -> list[happening.Event]:
    """Time passes; what happens to the machine."""
    clock.now += seconds
    before = len(driver.machine.happened)
    driver._fire_timers()
    return driver.machine.happened[before:]


GONE, BACK = False, True


def test_an_old_absence_does_not_end_a_new_one_early(driver: Any, clock: Clock) -> None:
    connection(driver, BACK, GONE)
    assert wait(driver, clock, 20.0) == []
    connection(driver, BACK, GONE)
    assert wait(driver, clock, 15.0) == [], "35 s after the first absence began, 15 s after the second"
    (leave,) = wait(driver, clock, 15.1)
    assert isinstance(leave, happening.Leave)
    assert "rank 1 was unreachable for 30 s" in leave.reason
    assert driver.failure is None


def test_a_parent_that_is_back_is_not_left(driver: Any, clock: Clock) -> None:
    connection(driver, BACK, GONE, BACK)
    assert [type(event) for event in driver.machine.happened] == [happening.PeerLost, happening.PeerFound]
    assert wait(driver, clock, 1000.0) == []


def test_who_is_not_needed_may_stay_away(driver: Any, clock: Clock) -> None:
    connection(driver, BACK)
    connection(driver, BACK, GONE, to=2)
    assert driver.machine.happened == [happening.PeerLost(peer=2)]
    assert wait(driver, clock, 1000.0) == []
    connection(driver, BACK, to=2)
    assert driver.machine.happened[1:] == [happening.PeerFound(peer=2)]


def test_others_do_not_stand_in_for_the_one_who_is_needed(driver: Any, clock: Clock) -> None:
    connection(driver, BACK, GONE)
    connection(driver, BACK, GONE, BACK, to=2)
    (leave,) = wait(driver, clock, 31.0)
    assert "rank 1 was unreachable for 30 s" in leave.reason


def test_who_follows_another_does_not_wait_for_the_one_who_led(driver: Any, clock: Clock) -> None:
    driver.machine.leader = 1
    connection(driver, BACK, GONE)
    connection(driver, BACK, to=2)
    driver.machine.leader = 2
    assert wait(driver, clock, 31.0) == []
    connection(driver, GONE, to=2)
    (leave,) = wait(driver, clock, 31.0)
    assert "rank 2 was unreachable for 30 s" in leave.reason


def test_who_leads_needs_nobody(driver: Any, clock: Clock) -> None:
    driver.machine.leader = 1
    connection(driver, BACK, GONE)
    driver.machine.leader = 3
    assert wait(driver, clock, 31.0) == []


def test_a_parent_that_never_came_is_a_failure(driver: Any, clock: Clock) -> None:
    driver._perform(happening.SetTimer(name=ORPHANED, at=clock.now + 30.0))
    (leave,) = wait(driver, clock, 31.0)
    assert isinstance(leave, happening.Leave)
    assert isinstance(driver.failure, CodedReduceError)
    assert "rank 3 could not reach rank 1 within 30 s" in str(driver.failure)


def test_a_timer_takes_the_place_of_an_earlier_one_of_its_name(driver: Any, clock: Clock) -> None:
    for name, after in (("redundancy", 5.0), ("waiting", 7.0), ("redundancy", 9.0)):
        driver._perform(happening.SetTimer(name=name, at=clock.now + after))
    assert wait(driver, clock, 6.0) == []
    assert wait(driver, clock, 2.0) == [happening.TimerFired(name=Timer.WAITING)]
    assert wait(driver, clock, 2.0) == [happening.TimerFired(name=Timer.REDUNDANCY)]
    assert wait(driver, clock, 100.0) == []


def test_a_timer_set_earlier_than_before_fires_once(driver: Any, clock: Clock) -> None:
    driver._perform(happening.SetTimer(name=Timer.REDUNDANCY, at=clock.now + 9.0))
    driver._perform(happening.SetTimer(name=Timer.REDUNDANCY, at=clock.now + 2.0))
    assert wait(driver, clock, 3.0) == [happening.TimerFired(name=Timer.REDUNDANCY)]
    assert wait(driver, clock, 10.0) == []
