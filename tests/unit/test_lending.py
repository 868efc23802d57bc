"""Memory that is lent: nothing is believed that was made of what its owner has written into since."""

import errno
import gc
import os
import resource

import msgspec
import numpy as np
import pytest

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.errors import UsageError
from codedreduce.memory.arena import arenas_of
from codedreduce.memory.lending import APART, Lending
from codedreduce.net.buffers import Buffers
from codedreduce.protocol import Settings
from codedreduce.protocol.core import events as happening
from codedreduce.protocol.core import messages as said
from codedreduce.protocol.core.rank_table import RankState
from codedreduce.protocol.rank.reducer import Reducer
from codedreduce.run.agreement import Meeting, Run
from codedreduce.schemes import Part, StripedPlan
from codedreduce.vectors import Vector
from tests.unit.conversation import led_to, sent

NAME = f"codedreduce-{os.getpid()}-lending-test"
LENGTH = 3000
PLAN = Striped(2, stripes=2, blocks=1).plan(samples=4)
assert isinstance(PLAN, StripedPlan)
RUN = Run(meeting=Meeting(run=NAME), plan=PLAN, settings=Settings(length=LENGTH, chunk=1500))


@pytest.fixture
def two():
    """The memory of two ranks."""
    pair = Buffers(RUN, 0), Buffers(RUN, 1)
    yield pair
    for one in pair:
        one.close()
    del pair, one
    gc.collect()
    assert not arenas_of(NAME)


def lent(owner: Buffers, reader: Buffers, chunk: Vector) -> Vector:
    """What a reader gets that is told of a chunk."""
    reference = owner.refer(chunk)
    assert reference is not None, "it is not lent"
    return reader.look_up(reader.reference(memoryview(reference)))


def address(vector: Vector) -> int:
    return vector.__array_interface__["data"][0]


def test_a_part_has_room_of_its_own_for_two_rounds(two) -> None:
    one, _ = two
    parts = Lending.parts_for(own_units=1)
    first, second, third = (one.room(round_) for round_ in (1, 2, 3))
    assert address(first) != address(second)
    assert address(first) == address(third), "in a calm run two slots take turns"
    further = [one.room(3) for _ in range(parts - 2)]
    assert len({address(vector) for vector in (second, third, *further)}) == parts
    extra = one.room(3)
    assert one.refer(extra) is None, "what does not fit is not lent, and overwrites nothing"
    assert address(one.room(4)) == address(second)


def test_a_stamp_changes_before_anything_is_written(two) -> None:
    one, other = two
    part = one.room(1)
    part[:] = 1
    seen = lent(one, other, part[:1500])
    assert other.rooms.are_intact(1, [seen])
    assert not other.rooms.are_intact(2, [seen]), "it is a chunk of another round"
    one.room(1 + APART)
    assert seen[0] == 1, "it has not been written into"
    assert not other.rooms.are_intact(1, [seen]), "but may be any moment"


def test_what_others_lend_cannot_be_written_into(two) -> None:
    one, other = two
    seen = lent(one, other, one.room(1)[:1500])
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


def test_a_keeper_does_not_believe_a_sum_of_what_was_written_into(two) -> None:
    """A keeper is stopped while it waits for a unit; when it goes on, the other part is of a later round."""
    one, other = two
    reducer = Reducer(units=2, blocks=1, rounds_held=4, rooms=other.rooms)
    reducer.begin(1, range(1))
    mine, theirs = other.room(1), one.room(1)
    mine[:], theirs[:] = 1, 2
    assert reducer.add(Part(0, 0, 1), 0, lent(one, other, theirs[:1500])) is None
    one.room(1 + APART)[:] = 100
    assert reducer.add(Part(1, 0, 1), 0, mine[:1500]) is None, "this would have been 101"
    assert list(reducer.sums(1, [0])) == []
    assert reducer.lacks() == []


def test_a_keeper_whose_parts_are_intact_lends_its_sum(two) -> None:
    one, other = two
    reducer = Reducer(units=2, blocks=1, rounds_held=4, rooms=other.rooms)
    for round_ in range(1, 12):
        reducer.begin(round_, range(1))
        mine, theirs = other.room(round_), one.room(round_)
        mine[:], theirs[:] = round_, 2
        reducer.add(Part(1, 0, 1), 0, mine[:1500])
        total = reducer.add(Part(0, 0, 1), 0, lent(one, other, theirs[:1500]))
        assert total is not None
        np.testing.assert_array_equal(lent(other, one, total), round_ + 2)
        kept = [past for past in range(round_ + 1) if list(reducer.sums(past, [0]))]
        assert kept == list(range(max(1, round_ - 3), round_ + 1))
        for past in kept:
            ((_, held),) = reducer.sums(past, [0])
            assert held[0] == past + 2
            assert one.rooms.are_intact(past, [lent(other, one, held)])


def test_rounds_that_a_keeper_missed_leave_nothing_that_is_overwritten(two) -> None:
    _, other = two
    reducer = Reducer(units=1, blocks=1, rounds_held=4, rooms=other.rooms)
    for round_ in (5, 6, 9, 13):
        reducer.begin(round_, range(1))
        reducer.add(Part(0, 0, 1), 0, np.full(1500, round_, np.float32))
        for past in range(round_ + 1):
            for _, held in reducer.sums(past, [0]):
                assert held[0] == past


def gathered(owner: Buffers, reader: Buffers, round_: int) -> happening.Gathered:
    chunks = []
    for index in range(2):
        room = owner.rooms.sum_room(round_, index)
        room[:] = round_ + index
        chunks.append(lent(owner, reader, room))
    return happening.Gathered(round=round_, chunks=tuple(chunks))


def test_a_sum_is_taken_unless_it_was_written_into(two) -> None:
    one, other = two
    sum_ = gathered(one, other, 1)
    taken = other.take(sum_)
    assert (taken[0], taken[-1]) == (1, 2)
    held = RUN.settings.rounds_held(2)
    for round_ in range(2, 1 + held):
        gathered(one, other, round_)
        assert other.take(sum_) is not None, "it is held as long as sums are"
    gathered(one, other, 1 + held)
    assert other.take(sum_) is None


def test_a_vector_that_somebody_has_is_not_written_into(two) -> None:
    one, other = two
    vectors = [other.take(gathered(one, other, round_)) for round_ in range(1, 6)]
    assert [vector[0] for vector in vectors] == [1, 2, 3, 4, 5]
    kept = vectors[1][10:20]
    del vectors
    for round_ in range(6, 12):
        other.take(gathered(one, other, round_))
    assert kept[0] == 2, "a view of it is enough"


def test_an_overtaken_rank_takes_anothers_state() -> None:
    talk = led_to("rank", RankState.RESTING)
    talk.happens(happening.Overtaken(round=0))
    actions = talk.begin()
    assert talk.machine.state is RankState.RENEWING
    assert sent(actions, said.Renew)


def test_no_memory_to_begin_with_is_an_error() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, before[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot allocate .* MB of shared memory \(File too large\).*=False"):
            Buffers(RUN, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not arenas_of(NAME)


def test_memory_that_runs_out_later_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room in shared memory travels as bytes: writing where there is none would end the process."""
    one = Buffers(RUN, 0)
    allocate = os.posix_fallocate
    left = 2

    def soon_full(file: int, offset: int, length: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", soon_full)
    vectors = [one.room(1) for _ in range(3)]
    for vector in vectors:
        vector[:] = 1
    assert [one.refer(vector) is not None for vector in vectors] == [True, True, False]
    assert one.rooms.sum_room(1, 0) is None
    reducer = Reducer(units=1, blocks=1, rounds_held=4, rooms=one.rooms)
    reducer.begin(1, range(1))
    total = reducer.add(Part(0, 0, 1), 0, vectors[0][:1500])
    assert total is not None
    assert one.refer(total) is None
    one.close()


def test_an_arena_is_its_users_alone_and_has_no_name(two) -> None:
    one, _ = two
    process, file = msgspec.msgpack.decode(one.refer(one.room(1)))[1:3]
    assert process == os.getpid()
    assert os.fstat(file).st_mode & 0o777 == 0o600
    assert os.fstat(file).st_nlink == 0


def test_what_shares_memory() -> None:
    assert RUN.shares_memory
    assert not Run.of(Meeting(run="x", shared_memory=False), PLAN, 10).shares_memory
    assert not Run.of(Meeting(run="x", same_machine=False), PLAN, 10).shares_memory
    assert Run.of(Meeting(run="x"), PLAN, 10, wire="bfloat16").shares_memory
    tree = CodedReduce(Tree.regular(fanout=2, depth=1), stragglers=1).plan(samples=4)
    assert not Run.of(Meeting(run="x"), tree, 10, wire="bfloat16").shares_memory
    assert not Run.of(Meeting(run="x"), Striped(1).plan(samples=4), 10).shares_memory
