import errno
import gc
import os
import signal

import msgspec
import numpy as np
import pytest

from codedreduce.errors import WireError
from codedreduce.memory.arena import Arena, Reference, arenas_of

RUN = f"codedreduce-{os.getpid()}-arena-test"


@pytest.fixture
def arenas():
    pair = [Arena(RUN, node, slots=4, length=1000) for node in (1, 2)]
    yield pair
    for one in pair:
        one.close()
    del pair, one
    gc.collect()
    assert not arenas_of(RUN)


def test_a_chunk_is_read_where_it_lies(arenas) -> None:
    one, two = arenas
    vector = one.slot(1)
    vector[:] = np.arange(1000)
    reference = one.refer(vector[100:200])
    seen = two.view(reference)
    np.testing.assert_array_equal(seen, np.arange(100, 200))
    vector[150] = -1
    assert seen[50] == -1, "the same memory"
    passed_on = two.refer(seen)
    assert (passed_on.node, passed_on.key, passed_on.offset) == (1, reference.key, reference.offset), "without copying"
    assert one.refer(np.ones(3)) is None


def test_slots_of_two_rounds_and_of_further_vectors_are_apart(arenas) -> None:
    one, _ = arenas
    slots = [one.slot(1), one.slot(1), one.slot(1), one.slot(2)]
    places = {slot.__array_interface__["data"][0] for slot in slots}
    assert len(places) == 4
    assert one.slot(3).__array_interface__["data"][0] == slots[0].__array_interface__["data"][0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 10**9}, {"offset": -4, "size": 8}, {"size": -1}, {"node": 9}, {"key": 1}, {"file": 0},
        {"process": 2**22 + 1},
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(arenas, wrong: dict[str, int]) -> None:
    one, two = arenas
    with pytest.raises(WireError, match="shared memory of rank"):
        two.view(one.refer(one.slot(1))._replace(**wrong))


def test_what_is_no_arena_is_not_opened(arenas) -> None:
    """A reference may name any file of any process: a pipe would be waited for, and data of others mapped."""
    one, two = arenas
    reference = one.refer(one.slot(1))
    reading, writing = os.pipe()
    stranger = os.memfd_create("somebody-elses")
    small = os.memfd_create(f"{RUN}-1")
    for file in (reading, writing, stranger, small):
        with pytest.raises(WireError, match="shared memory of rank 1 is not available"):
            two.view(reference._replace(file=file))
        os.close(file)


def test_a_process_that_was_started_again_has_another_arena(arenas) -> None:
    old, two = arenas
    old.vector(1)[:] = 1
    old.stamp(1, 1)
    before = two.view(old.refer(old.vector(1)))
    again = Arena(RUN, 1, slots=4, length=1000)
    reference = again.refer(again.vector(1))
    with pytest.raises(WireError, match="belongs to another process"):
        two.view(reference._replace(file=old.refer(old.vector(1)).file))
    after = two.view(reference)
    assert (before[0], after[0]) == (1, 0)
    assert two.is_stamped(before, 1)
    assert not two.is_stamped(after, 1)
    old.stamp(1, 3)
    assert not two.is_stamped(before, 1), "what was read is not forgotten to be the old one's"
    again.close()


def test_what_is_passed_on_is_there_though_its_owner_is_not() -> None:
    """An owner that has died; and neither does anything stay that nobody reads."""
    reading, writing = os.pipe()
    owner = os.fork()
    if not owner:
        arena = Arena(RUN, 7, slots=4, length=1000)
        arena.slot(1)[:] = np.arange(1000)
        os.write(writing, msgspec.msgpack.encode(arena.refer(arena.vector(1))))
        signal.pause()
    one, two = (Arena(RUN, node, slots=4, length=1000) for node in (1, 2))
    reference = msgspec.msgpack.decode(os.read(reading, 1000), type=Reference)
    seen = one.view(reference)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    with pytest.raises(WireError, match="the shared memory of rank 7 is not available"):
        two.view(reference)
    np.testing.assert_array_equal(two.view(one.refer(seen)), np.arange(1000))
    one.close()
    two.close()
    del one, two, seen
    gc.collect()
    assert not arenas_of(RUN)


def test_memory_for_more_than_is_needed_is_done_without(monkeypatch: pytest.MonkeyPatch, arenas) -> None:
    one, _ = arenas
    assert one.slot(1) is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert one.slot(1) is None
    assert one.slot(2) is not None, "what every round needs is there from the start"
