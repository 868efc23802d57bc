import os

import numpy as np
import pytest

from codedreduce.errors import WireError
from codedreduce.worlds.buffers import FOLDER, Arena, Reference, remove_arenas

RUN = f"codedreduce-{os.getpid()}-arena-test"


@pytest.fixture
def arenas():
    one, two = (Arena(RUN, node, slots=4, length=1000) for node in (1, 2))
    yield one, two
    remove_arenas(RUN)
    assert not list(FOLDER.glob(f"{RUN}-*"))


def test_a_chunk_is_read_where_it_lies(arenas) -> None:
    one, two = arenas
    vector = one.slot(1)
    vector[:] = np.arange(1000)
    reference = one.refer(vector[100:200])
    seen = two.view(reference)
    np.testing.assert_array_equal(seen, np.arange(100, 200))
    vector[150] = -1
    assert seen[50] == -1, "the same memory"
    assert two.refer(seen) == reference, "passed on without copying"
    assert one.refer(np.ones(3)) is None


def test_slots_of_two_rounds_and_of_further_vectors_are_apart(arenas) -> None:
    one, _ = arenas
    slots = [one.slot(1), one.slot(1), one.slot(1), one.slot(2)]
    places = {slot.__array_interface__["data"][0] for slot in slots}
    assert len(places) == 4
    assert one.slot(3).__array_interface__["data"][0] == slots[0].__array_interface__["data"][0]


@pytest.mark.parametrize(
    "reference", [Reference(1, os.getpid(), 0, 10**9), Reference(1, os.getpid(), -4, 8), Reference(9, 1, 0, 4)]
)
def test_what_is_not_there_is_refused(arenas, reference: Reference) -> None:
    with pytest.raises(WireError, match="shared memory of node"):
        arenas[1].view(reference)
