"""Samplers: orders that lose nothing, draws as likely as they should be, at the cost of what is asked for."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codedreduce.errors import UsageError
from codedreduce.training.batches import TOGETHER, Batches, batch_indices
from codedreduce.training.permutation import TURNS, Permutation
from codedreduce.training.samplers import Sequential, Shuffled, Weighted, WithReplacement

SIZES = [*range(1, 70), 97, 127, 128, 129, 997, 1023, 1024, 1025, 4095, 4096, 4097, 7919, 65535, 65536, 65537, 104729]


def chi_square(counts: np.ndarray, expected: np.ndarray | float, taken: float = 0.0) -> float:
    """In standard deviations from what chance gives; `taken`: which part of all was drawn, without replacement."""
    freedom = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum()) / (1 - taken)
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("count", SIZES)
def test_an_order_has_everything_once(count: int) -> None:
    for key in ([0, 0], [7, 3]):
        order = Permutation(count, key)(np.arange(count))
        assert (np.sort(order) == np.arange(count)).all()


def in_plain_integers(count: int, key: list[int], place: int) -> int:
    """The definition again, without NumPy's arithmetic."""
    a = math.isqrt(count - 1) + 1
    b = -(-count // a)
    keys = [int(one) for one in np.random.SeedSequence(key).generate_state(TURNS, np.uint64)]
    while True:
        right, left = divmod(place, a)
        for turn, one in enumerate(keys):
            x = ((right if turn % 2 == 0 else left) + one) % 2**64
            x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
            x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
            x = (x ^ x >> 31) >> 1
            if turn % 2 == 0:
                left = (left + x) % a
            else:
                right = (right + x) % b
        place = left + a * right
        if place < count:
            return place


@given(st.integers(1, 2**62), st.integers(0, 2**40), st.integers(0, 2**40), st.data())
def test_a_place_by_itself_is_what_it_is_in_the_whole(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    """Also for more things than could ever be laid out; and without an overflow anywhere."""
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    found = Permutation(count, [seed, epoch])(np.array(places))
    assert found.tolist() == [in_plain_integers(count, [seed, epoch], place) for place in places]
    assert len(set(found.tolist())) == len(set(places))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_orders_are_alike_likely(count: int) -> None:
    """A network of 8 turns is found out: 15 standard deviations for five things."""
    tries = 100 * math.factorial(count)
    seen = Counter(tuple(Permutation(count, [5, epoch])(np.arange(count)).tolist()) for epoch in range(tries))
    counts = np.array([seen[order] for order in itertools.permutations(range(count))])
    assert abs(chi_square(counts, 100.0)) < 4


@pytest.mark.parametrize("count", [10, 64, 65, 97])
def test_every_sample_comes_at_every_place(count: int) -> None:
    counts = np.zeros((count, count))
    for epoch in range(6000):
        counts[np.arange(count), Permutation(count, [1, epoch])(np.arange(count))] += 1
    assert abs(chi_square(counts, 6000 / count)) < 4


def test_an_order_has_no_structure() -> None:
    """What an order of a large number of things is like: neighbours, fixed points, runs, low bits; and of epochs."""
    count = 1_000_003
    places = np.arange(200_000)
    orders = [Permutation(count, [3, epoch])(places).astype(float) for epoch in range(2)]
    deviation = 1 / math.sqrt(len(places))
    for order in orders:
        assert abs(np.corrcoef(order, places)[0, 1]) < 4 * deviation
        for lag in (1, 2, 3, 1000, 1001):  # 1001 = the width of the network
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 4 * deviation
        assert abs((np.diff(order) > 0).mean() - 0.5) < 4 * deviation
        for modulus in (2, 7, 1001):
            counts = np.bincount((order % modulus).astype(int), minlength=modulus)
            assert abs(chi_square(counts, len(places) / modulus, len(places) / count)) < 4
        assert (order == places).sum() <= 5, "about one in five orders has one there"
        steps = np.diff(order) % count
        assert len(np.unique(steps)) > 0.85 * len(steps), "of 200,000 random steps 0.9 differ"
    assert abs(np.corrcoef(*orders)[0, 1]) < 4 * deviation
    assert (orders[0] == orders[1]).sum() <= 5


def test_a_batch_of_very_much_data_has_no_sample_twice() -> None:
    batches = Batches(10**12, 50_000, seed=2)
    found = np.concatenate([batches.indices(round_) for round_ in (1, 2, 20_000_000)])
    assert len(set(found.tolist())) == len(found)
    assert found.min() >= 0
    assert found.max() < 10**12
    assert abs(found.mean() / 10**12 - 0.5) < 4 / math.sqrt(12 * len(found))


def test_only_what_is_asked_for_is_drawn(monkeypatch) -> None:
    asked = []
    pick = Shuffled.pick

    def counted(self: Shuffled, samples: int, seed: int, epoch: int, places: np.ndarray) -> np.ndarray:
        asked.append(len(places))
        return pick(self, samples, seed, epoch, places)

    monkeypatch.setattr(Shuffled, "pick", counted)
    batches = Batches(10**9, 1_000_000)
    unit = np.concatenate([batches.indices(3, start, start + 8) for start in range(500_000, 500_512, 8)])
    assert sum(asked) <= 512 + 2 * TOGETHER
    assert (unit == batches.indices(3)[500_000:500_512]).all()


def test_a_last_batch_is_kept_or_left_out() -> None:
    dropped, kept = Batches(10, 4, seed=1), Batches(10, 4, seed=1, drop_last=False)
    assert [dropped.size(round_) for round_ in range(1, 5)] == [4, 4, 4, 4]
    assert [dropped.epoch(round_) for round_ in range(1, 5)] == [1, 1, 2, 2]
    assert [kept.size(round_) for round_ in range(1, 7)] == [4, 4, 2, 4, 4, 2]
    assert [kept.epoch(round_) for round_ in range(1, 7)] == [1, 1, 1, 2, 2, 2]
    for epoch in range(3):
        rounds = range(3 * epoch + 1, 3 * epoch + 4)
        assert sorted(np.concatenate([kept.indices(round_) for round_ in rounds]).tolist()) == list(range(10))
    assert (kept.indices(1) == dropped.indices(1)).all()
    small = Batches(3, 8, drop_last=False)
    assert sorted(small.indices(1).tolist()) == [0, 1, 2]


def test_in_the_order_of_their_numbers() -> None:
    batches = Batches(10, 4, sampler=Sequential(), drop_last=False)
    assert [batches.indices(round_).tolist() for round_ in (1, 2, 3, 4)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3],
    ]  # fmt: skip


def test_with_replacement_every_sample_is_alike_likely() -> None:
    batches = Batches(50, 1000, seed=3, sampler=WithReplacement())
    found = np.concatenate([batches.indices(round_) for round_ in range(1, 101)])
    assert abs(chi_square(np.bincount(found, minlength=50), 2000.0)) < 4
    pairs = np.bincount(found[:-1] * 50 + found[1:], minlength=2500)
    assert abs(chi_square(pairs, (len(found) - 1) / 2500)) < 4
    assert (Batches(50, 1000, seed=4, sampler=WithReplacement()).indices(1) != batches.indices(1)).any()
    wide = batch_indices(10**12, 100_000, 7, sampler=WithReplacement()) / 10**12
    assert abs(wide.mean() - 0.5) < 4 / math.sqrt(12 * 100_000)


def test_with_replacement_is_the_upper_half_of_a_product() -> None:
    words = np.random.Philox(key=np.random.SeedSequence([9, 0x5A4D]).generate_state(2, np.uint64)).random_raw(40)
    for samples in (3, 10**12 + 7, 2**62):
        batches = Batches(samples, 10, seed=9, sampler=WithReplacement())
        found = [int(one) for round_ in (1, 2, 3, 4) for one in batches.indices(round_)]
        assert found == [int(word) * samples >> 64 for word in words]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_weighted_draws_are_as_likely_as_said(kind) -> None:
    weights = [0.0, 1.0, 2.0, 0.0, 0.5, 6.5, 0.0]
    batches = Batches(7, 500, seed=6, sampler=Weighted(kind(weights)))
    counts = np.bincount(np.concatenate([batches.indices(round_) for round_ in range(1, 101)]), minlength=7)
    assert counts[[0, 3, 6]].sum() == 0
    drawn = [1, 2, 4, 5]
    assert abs(chi_square(counts[drawn], 50_000 * np.array(weights)[drawn] / sum(weights))) < 4


@pytest.mark.parametrize("sampler", [None, Sequential(), WithReplacement(), Weighted(np.arange(1000.0))])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_part_of_a_batch_is_a_part_of_the_whole(sampler, drop_last: bool) -> None:
    for round_ in (1, 3, 4, 29):
        whole = batch_indices(1000, 300, round_, seed=2, sampler=sampler, drop_last=drop_last)
        asked = Batches(1000, 300, seed=2, sampler=sampler, drop_last=drop_last)
        for start, stop in ((250, 300), (0, 1), (7, 260), (299, 300), (5, 5)):
            assert (asked.indices(round_, start, stop) == whole[start:stop]).all()


def hard_ones(seed: int, round_: int) -> np.ndarray:
    return np.random.default_rng([seed, round_]).integers(0, 10, 4 if round_ % 2 else 3)


def test_a_function_of_seed_and_round() -> None:
    batches = Batches(10, 4, seed=8, sampler=hard_ones)
    for round_ in (1, 2, 5, 1):
        assert (batches.indices(round_) == hard_ones(8, round_)).all()
        assert (batches.indices(round_, 1, 3) == hard_ones(8, round_)[1:3]).all()
        assert batches.size(round_) == len(hard_ones(8, round_))
    assert str(batches) == str(Batches(10, 4, seed=8, sampler=hard_ones))
    assert str(batches) != str(Batches(10, 4, seed=8, sampler=lambda seed, round_: hard_ones(seed + 1, round_)))
    assert str(batches).startswith("by hard_ones, digest ")


def test_samplers_that_differ_say_so() -> None:
    said = [
        str(Batches(4, 2, sampler=sampler, drop_last=drop_last))
        for drop_last in (True, False)
        for sampler in (None, Sequential(), Weighted([1, 2, 3, 4]), Weighted([1, 2, 3, 5]), WithReplacement())
    ]
    assert len(set(said)) == 7, "draws with replacement are always of full batches"
    assert said[0] == str(Batches(4, 2, sampler=Shuffled()))


own = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda seed, round_: own.integers(0, 10, 4), "returned other samples for round"),
        (lambda seed, round_: [0, 1, 2, 3, 4], "numbers of 1 to 4 samples"),
        (lambda seed, round_: [], "numbers of 1 to 4 samples"),
        (lambda seed, round_: [0.5], "numbers of 1 to 4 samples"),
        (lambda seed, round_: [3, 10], "returned sample 10 for round 1; samples are 0 to 9"),
        (lambda seed, round_: [-1], "returned sample -1 for round 1"),
        ([0, 1, 2], "cannot compute the samples of any round"),
        (Shuffled, r"write Shuffled\(...\)"),
        (Weighted([1.0, 2.0]), "2 weights for 10 samples"),
    ],
)
def test_samplers_that_cannot_be(sampler, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Batches(10, 4, sampler=sampler)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0], "sample 1 has -1.0"),
        ([1.0, math.nan], "sample 1 has nan"),
        ([0.0, 0.0], "all weights are 0"),
        ([[1.0]], "one number for each sample"),
        ([], "one number for each sample"),
        ([1e308, 1e308], "not finite"),
    ],
)
def test_weights_that_cannot_be(weights: list, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Weighted(weights)
