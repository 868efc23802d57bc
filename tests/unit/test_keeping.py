"""A keeper's arithmetic: units in order, blocks in order, whatever comes first; and no more is held than is needed."""

import itertools

import numpy as np
import pytest

from codedreduce.protocol.core.blocks import UnitParts
from codedreduce.protocol.core.settings import Settings
from codedreduce.protocol.rank.reducer import Reducer, StripeSum
from codedreduce.schemes import Part

BLOCKS = 3
NUMBERS = np.random.default_rng(1).standard_normal((2, BLOCKS, 4)).astype(np.float32) * [1, 1e3, 1e-3, 1e7]
NUMBERS = NUMBERS.astype(np.float32)


def vector(part: Part) -> np.ndarray:
    """The sum of the blocks of a part, from the first to the last."""
    total = NUMBERS[part.unit, part.first].copy()
    for block in range(part.first + 1, part.last):
        total += NUMBERS[part.unit, block]
    return total


def whole() -> np.ndarray:
    return vector(Part(0, 0, BLOCKS)) + vector(Part(1, 0, BLOCKS))


WAYS = [
    [Part(unit, 0, cut), *(Part(unit, block, block + 1) for block in range(cut, BLOCKS))]
    for unit in (0, 1)
    for cut in range(1, BLOCKS + 1)
]


@pytest.mark.parametrize("one", WAYS[:3], ids=len)
@pytest.mark.parametrize("other", WAYS[3:], ids=len)
def test_the_same_bits_in_whatever_parts_and_order_they_come(one: list[Part], other: list[Part]) -> None:
    for order in itertools.permutations([*one, *other]):
        stripe = StripeSum(range(1), units=2, blocks=BLOCKS)
        totals = [stripe.add(part, 0, vector(part)) for part in order]
        assert all(total is None for total in totals[:-1])
        assert totals[-1] is not None
        assert totals[-1].tobytes() == whole().tobytes()
        assert stripe.held() == 0
        assert stripe.lacks() == []


def test_what_it_was_given_is_not_written_into() -> None:
    given = {part: vector(part) for part in (Part(0, 0, 3), Part(1, 0, 2), Part(1, 2, 3))}
    for data in given.values():
        data.flags.writeable = False
    stripe = StripeSum(range(1), units=2, blocks=BLOCKS)
    totals = [stripe.add(part, 0, data) for part, data in given.items()]
    assert totals[-1] is not None


def test_a_longer_sum_makes_shorter_ones_needless() -> None:
    unit: UnitParts[str] = UnitParts(blocks=4)
    for first, last in [(0, 1), (1, 2), (3, 4), (0, 2), (0, 1), (1, 2)]:
        unit.add(Part(0, first, last), f"{first}-{last}")
    assert len(unit) == 2, "the first two in one sum, and the last block"
    assert unit.missing() == [2]
    unit.add(Part(0, 2, 3), "2-3")
    assert unit.chain() == ["0-2", "2-3", "3-4"]
    unit.add(Part(0, 0, 4), "0-4")
    assert (unit.chain(), len(unit)) == (["0-4"], 1)


def test_copies_take_no_room_and_change_nothing() -> None:
    stripe = StripeSum(range(1), units=2, blocks=BLOCKS)
    for _ in range(5):
        stripe.add(Part(1, 0, 3), 0, vector(Part(1, 0, 3)))
    assert stripe.held() == 1
    total = stripe.add(Part(0, 0, 3), 0, vector(Part(0, 0, 3)))
    assert total is not None
    assert stripe.add(Part(0, 0, 3), 0, np.full(4, 99, np.float32)) is None, "that was added"
    assert total.tobytes() == whole().tobytes()


def test_sums_of_the_last_rounds_are_held() -> None:
    reducer = Reducer(units=1, blocks=1, rounds_held=4)
    for round_ in range(1, 10):
        reducer.begin(round_, range(2))
        for index in range(2):
            reducer.add(Part(0, 0, 1), index, np.full(4, round_, np.float32))
    kept = [round_ for round_ in range(10) if list(reducer.sums(round_, [0, 1, 7]))]
    assert kept == list(range(10 - 4, 10))


def test_a_sum_stays_here_as_it_travels() -> None:
    reducer = Reducer(units=1, blocks=1, rounds_held=4, settings=Settings(length=1, wire=np.dtype(np.float16)))
    reducer.begin(1, range(1))
    total = reducer.add(Part(0, 0, 1), 0, np.array([1.0001], np.float32))
    ((_, held),) = reducer.sums(1, [0])
    assert total is not None
    assert total.tolist() == held.tolist() == [1.0]
