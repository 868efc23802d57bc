"""What every gradient code must do."""

import numpy as np
import pytest

from codedreduce.codes import GradientCode
from codedreduce.errors import CodeError, TooManyStragglers


def check_code(code: GradientCode) -> None:
    assert code.matrix.shape == (code.n, code.k)
    assert not code.matrix.flags.writeable
    gradients = np.random.default_rng(code.n).standard_normal((code.k, 50)).astype(np.float32)
    truth = gradients.astype(np.float64).sum(axis=0)
    messages = (code.matrix.astype(np.float32) @ gradients).astype(np.float32)
    amplification = code.amplification()
    bound = 4 * np.finfo(np.float32).eps * amplification
    for known in code.tolerated_sets():
        weights = code.decode(known)
        outside = sorted(set(range(code.n)) - known)
        assert not weights[outside].any()
        np.testing.assert_allclose(weights @ code.matrix, 1, atol=1e-9 * amplification)
        decoded = weights.astype(np.float32) @ messages
        assert np.linalg.norm(decoded - truth) <= bound * np.linalg.norm(truth)
        assert code.decode(known) is weights, "a set seen before is looked up"
        assert code.approximate(known).residual < 1e-9

    assert amplification >= 1 - 1e-9
    assert code.approximate(()).residual == pytest.approx(1)
    with pytest.raises(TooManyStragglers, match=rf"missing .*only {code.s} straggler"):
        code.decode(())
    with pytest.raises(CodeError, match=rf"\[{code.n}\] do not exist"):
        code.decode({0, code.n})
