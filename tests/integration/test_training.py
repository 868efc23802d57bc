import numpy as np
import pytest

from codedreduce import CodedReduce, GradientCoding, MasterWorker, RingAllReduce, Tree, train
from codedreduce.errors import Diverged, UsageError
from codedreduce.training import SGD, Adam, Arrays, LinearRegression, LogisticRegression, Softmax, synthetic
from codedreduce.training.gradient import BatchGradient
from codedreduce.training.loop import Job, reference_run

TREE = Tree.regular(fanout=2, depth=2)
DATA = synthetic(300, 20, seed=1)


def by_hand(rounds: int, lr: float) -> np.ndarray:
    """The same training, full batch, in float64 and in a few lines."""
    x, y, w = DATA.x.astype(np.float64), DATA.y.astype(np.float64), np.zeros(20)
    for _ in range(rounds):
        w -= lr * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
    return w


@pytest.mark.parametrize(
    "scheme",
    [
        MasterWorker(3),
        RingAllReduce(3),
        GradientCoding(4, 1),
        CodedReduce(TREE, 1),
        CodedReduce(TREE, 1, order="eager"),
        CodedReduce(TREE, 1, order="eager", code="cyclic"),
    ],
    ids=str,
)
def test_training_is_gradient_descent_whoever_straggles(scheme) -> None:
    result = train(
        LogisticRegression(), DATA, scheme=scheme, rounds=12, optimizer=SGD(0.5), inject="stalls:0.1:0.1s", seed=2
    )
    np.testing.assert_allclose(result.parameters, by_hand(12, 0.5), rtol=1e-4, atol=1e-5)
    assert len(result.history) == 12
    assert result.history[-1].loss < result.history[0].loss
    job = Job(objective=LogisticRegression(), source=DATA, scheme=scheme, rounds=12, optimizer=SGD(0.5))
    parameters, error = reference_run(job, 12)
    assert error < 1e-5
    if getattr(scheme, "bit_identical", True):
        assert parameters.tobytes() == result.parameters.tobytes(), "to the bit, as evaluated in one process"


@pytest.mark.parametrize("objective", [LinearRegression(), LogisticRegression(), Softmax(3)])
def test_gradients_are_those_of_the_loss(objective) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((7, 4)), random.integers(0, 2, 7).astype(float)
    weights = random.uniform(0.5, 2, 7)
    model = random.standard_normal(objective.parameters(4))
    gradient, other = np.empty_like(model), np.empty_like(model)
    objective.evaluate(model, x, y, weights, gradient)
    for index in range(len(model)):
        step = np.zeros_like(model)
        step[index] = 1e-6
        up, down = (objective.evaluate(model + sign * step, x, y, weights, other) for sign in (1, -1))
        assert gradient[index] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-6)
    both = objective.evaluate(model, x, y, None, other)
    assert both == pytest.approx(objective.evaluate(model, x, y, np.ones(7), other))


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), SGD(0.1, 0.9, nesterov=True), Adam(0.05)])
def test_optimizers_find_the_bottom(optimizer) -> None:
    model = np.array([3.0, -2.0])
    for _ in range(400):
        optimizer.step(model, 2 * model)
    assert np.abs(model).max() < 0.05


def test_mini_batches_are_a_function_of_seed_and_round() -> None:
    one = train(LogisticRegression(), DATA, scheme=CodedReduce(TREE, 1), rounds=5, batch=60, seed=7)
    two = train(
        LogisticRegression(), DATA, scheme=CodedReduce(TREE, 1), rounds=5, batch=60, seed=7, inject="stalls:0.2:0.1s"
    )
    assert one.parameters.tobytes() == two.parameters.tobytes()


def test_a_worker_reads_only_what_it_may_need() -> None:
    asked: list[range] = []

    class Watching(Arrays):
        def read(self, ranges):
            asked.extend(ranges)
            return super().read(ranges)

    plan = CodedReduce(Tree.regular(fanout=4, depth=2), 1).plan(samples=300)
    gradient = BatchGradient(LogisticRegression(), Watching(DATA.x, DATA.y), plan, batch=None, seed=0)
    out = np.empty(21, np.float32)
    for unit in plan.held(5):
        for piece in unit.pieces:
            gradient(piece, np.zeros(21, np.float32), 1, out, 5)
    assert sum(map(len, asked)) == plan.load(5) + plan.load(1), "its own units and its parent's"
    with pytest.raises(UsageError, match=r"node 5 was asked for samples 299\.\.299"):
        gradient.rows(299, 300, 1)


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="1 to 300 samples, as many as there are; got 301"):
        train(LogisticRegression(), DATA, rounds=1, batch=301)
    with pytest.raises(UsageError, match="above zero, got 0"):
        SGD(0)
    with pytest.raises(UsageError, match=r"20 parameters; the start has the shape \(3,\)"):
        train(LogisticRegression(), DATA, rounds=1, start=np.zeros(3))
    with pytest.raises(Diverged, match=r"round .*: the gradient is not finite"):
        train(LinearRegression(), DATA, rounds=60, optimizer=SGD(1e6))
