"""Train an objective of your own with stragglers injected: runs by itself, or under `codedreduce run`.

python examples/own_objective.py
codedreduce run --tree 2x2 --inject stalls:0.1:0.2s examples/own_objective.py
"""

import numpy as np

from codedreduce import CodedReduce, Tree, train
from codedreduce.training import SGD, synthetic


class HuberRegression:
    """Quadratic near the target, linear far from it: a few outliers do not spoil the fit."""

    def parameters(self, features):
        return features

    def evaluate(self, model, x, y, weights, gradient):
        residual = x @ model - y
        slope = np.clip(residual, -1, 1)
        losses = np.where(np.abs(residual) < 1, residual**2 / 2, np.abs(residual) - 0.5)
        if weights is not None:
            slope, losses = slope * weights, losses * weights
        np.dot(slope, x, out=gradient)
        return float(losses.sum())


def main():
    data = synthetic(1200, 50, kind="linear")
    scheme = CodedReduce(Tree.regular(fanout=2, depth=2), stragglers=1)
    result = train(
        HuberRegression(), data, scheme=scheme, rounds=40, optimizer=SGD(0.5, momentum=0.9), inject="stalls:0.1:0.2s"
    )
    if result.history:  # on the root
        first, last = result.history[0], result.history[-1]
        late = sorted({node for log in result.history for node in log.late})
        print(f"loss {first.loss:.4f} -> {last.loss:.4f}; workers {late} were late; {result.saved:.1f} s saved")


if __name__ == "__main__":
    main()
