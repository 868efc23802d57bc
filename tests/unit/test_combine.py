import threading
import tracemalloc

import numpy as np
import pytest

from codedreduce.errors import UsageError
from codedreduce.vectors import combine

LENGTHS = [1, 1000, (1 << 18) - 1, (1 << 18) + 1, 700_001]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 0, 1], [0, 0, 1], [0.5, -2, 1], [2, 0, 3]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weighted_sum(length: int, weights: list[float], dtype: type) -> None:
    random = np.random.default_rng(0)
    vectors = [random.integers(-9, 9, length).astype(dtype) for _ in weights]
    out = np.full(length, np.nan, dtype)
    assert combine(vectors, weights, out) is out
    np.testing.assert_array_equal(out, sum(w * v for w, v in zip(weights, vectors, strict=True)))


def test_fixed_order_gives_left_to_right_bits() -> None:
    vectors = [np.random.default_rng(i).standard_normal(5000).astype(np.float32) for i in range(6)]
    expected = vectors[0].copy()
    for vector in vectors[1:]:
        expected += vector
    assert combine(vectors, None, np.empty_like(expected)).tobytes() == expected.tobytes()


def test_first_vector_may_be_the_result() -> None:
    vectors = [np.full(10, float(i)) for i in range(4)]
    combine(vectors, None, vectors[0])
    np.testing.assert_array_equal(vectors[0], 6.0)


def test_a_vector_of_weight_zero_is_not_read() -> None:
    vectors = [np.ones(5), np.full(5, np.nan), np.ones(5)]
    np.testing.assert_array_equal(combine(vectors, [1, 0, 1], np.empty(5)), 2.0)
    np.testing.assert_array_equal(combine(vectors, [0, 0, 0], np.empty(5)), 0.0)


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, -3.0]])
def test_allocates_nothing(weights: list[float] | None) -> None:
    vectors = [np.ones(1 << 20, np.float32) for _ in range(3)]
    out = np.empty_like(vectors[0])
    combine(vectors, weights, out)  # the scratch block of this thread is made once
    tracemalloc.start()
    combine(vectors, weights, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000, "only views and Python numbers"


def test_threads_do_not_share_their_scratch_block() -> None:
    results: list[np.ndarray] = []

    def work(value: float) -> None:
        vectors = [np.full(1 << 19, value, np.float32)] * 4
        for _ in range(20):
            results.append(combine(vectors, [0.5] * 4, np.empty(1 << 19, np.float32)))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted({float(x) for r in results for x in np.unique(r)}) == [2.0, 4.0, 6.0]


def test_mismatches_are_named() -> None:
    with pytest.raises(UsageError, match="2 vectors need as many weights, got 1"):
        combine([np.ones(2), np.ones(2)], [1.0], np.empty(2))
    with pytest.raises(UsageError, match=r"float64\(3,\) into float64\(2,\)"):
        combine([np.ones(3)], None, np.empty(2))
    with pytest.raises(UsageError, match=r"float64\(2,\) into float32\(2,\)"):
        combine([np.ones(2)], None, np.empty(2, np.float32))
