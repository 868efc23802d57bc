"""The journal: what is kept, what is counted, and what a person hears."""

from __future__ import annotations

from collections import Counter

import pytest

from codedreduce.protocol.core.events import Note
from codedreduce.run.journal import (
    KEPT_OF_A_KIND,
    MUST_BE_HEARD,
    Entry,
    Interval,
    Journal,
    Lateness,
    NoteTaken,
    RoundLog,
    listening,
)


def note(kind: str, number: int = 0) -> Note:
    return Note(kind=kind, reason=f"{kind} {number}", round=1, nodes=(3,))


def late(round_: int, node: int, seconds: float) -> Note:
    return Note(kind="late", reason="late", round=round_, nodes=(node,), seconds=seconds)


def test_what_a_person_must_hear_is_said_however_often() -> None:
    heard: list[Note] = []
    journal = Journal(listening(on_note=heard.append))
    for number in range(5000):
        journal.note(float(number), 0, note("unreadable", number))
        journal.note(float(number), 0, note("waiting", number))
    waiting = [one.reason for one in heard if one.kind == "waiting"]
    assert waiting == [f"waiting {number}" for number in range(5000)]


@pytest.mark.parametrize("kind", sorted(MUST_BE_HEARD))
def test_each_such_kind(kind: str) -> None:
    heard: list[Note] = []
    journal = Journal(listening(on_note=heard.append))
    for _ in range(KEPT_OF_A_KIND + 5):
        journal.note(0.0, 0, note(kind))
    assert len(heard) == KEPT_OF_A_KIND + 5


@pytest.mark.parametrize("kind", ["unreadable", "stranger"])
def test_what_anybody_could_make_many_of_is_said_ever_more_seldom(kind: str) -> None:
    heard: list[str] = []
    journal = Journal(listening(on_note=lambda note: heard.append(note.reason)))
    for number in range(1, 5001):
        journal.note(0.0, 0, note(kind, number))
        journal.note(0.0, 0, note("waiting", number))  # counted by kind: another does not use up its turns
    assert [reason for reason in heard if reason.startswith(kind)] == [f"{kind} {n}" for n in (1, 10, 100, 1000)]


def test_redundant_work_is_no_news_for_a_person() -> None:
    heard: list[Note] = []
    Journal(listening(on_note=heard.append)).note(0.0, 0, note("redundant"))
    assert heard == []


def test_notes_are_counted_by_kind_and_kept_up_to_a_bound() -> None:
    journal = Journal()
    for number in range(5000):
        journal.note(0.0, 0, note("redundant", number))
    for number in range(7):
        journal.note(0.0, 2, note("waiting", number))
    assert journal.counts == Counter(redundant=5000, waiting=7)
    assert len(journal.of_kind("redundant")) == KEPT_OF_A_KIND
    assert [one.reason for one in journal.of_kind("waiting")] == [f"waiting {number}" for number in range(7)]
    assert journal.notes[-1] == NoteTaken(0.0, 2, note("waiting", 6))


def rounds(journal: Journal, count: int) -> None:
    for number in range(1, count + 1):
        journal.add(RoundLog(round=number, seconds=1.0))


def test_lateness_goes_to_its_round() -> None:
    journal = Journal()
    rounds(journal, 4)
    journal.note(0.0, 0, late(2, 7, 0.5))
    journal.note(0.0, 0, late(2, 8, 1.5))
    journal.note(0.0, 0, late(4, 7, 2.0))
    journal.note(0.0, 0, late(9, 7, 99.0))  # of a round that is not over, or never was
    assert [log.lateness for log in journal.rounds] == [{}, {7: 0.5, 8: 1.5}, {}, {7: 2.0}]
    assert [log.saved for log in journal.rounds] == [0.0, 1.5, 0.0, 2.0]
    assert journal.saved == pytest.approx(3.5)
    assert journal.notes == [], "it is not told in words as well"


def test_everyone_s_lateness_is_the_root_s_to_tell() -> None:
    journal = Journal()
    rounds(journal, 1)
    journal.note(0.0, 5, late(1, 7, 0.5))
    assert journal.rounds[0].lateness == {}


def test_rounds_are_remembered_as_asked() -> None:
    read: list[Entry] = []
    journal = Journal(read.append, remember=3)
    rounds(journal, 1000)
    assert [log.round for log in journal.rounds] == [998, 999, 1000]
    assert len(read) == 1000, "readers see them all"
    journal.note(0.0, 0, late(5, 7, 1.0))
    assert all(not log.lateness for log in journal.rounds)
    journal.note(0.0, 0, late(999, 7, 1.0))
    assert journal.rounds[1].lateness == {7: 1.0}
    assert read[-1] == Lateness(round=999, node=7, seconds=1.0)


def test_intervals_are_kept_of_the_rounds_that_were_asked_for() -> None:
    read: list[Entry] = []
    journal = Journal(read.append, timeline={2})
    for round_ in (1, 2, 3):
        journal.add(Interval(round_, 1, "compute", 0.0, 1.0))
        journal.add(Interval(round_, 1, "stall", 1.0, 1.0))
    assert journal.intervals == read == [Interval(2, 1, "compute", 0.0, 1.0)]


def test_rounds_are_heard_as_they_end() -> None:
    heard: list[int] = []
    rounds(Journal(listening(on_round=lambda log: heard.append(log.round))), 3)
    assert heard == [1, 2, 3]
