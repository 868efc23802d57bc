"""The sum is the same to the last bit whoever straggles: train twice, once calm and once with stalling workers.

python examples/same_bits.py
"""

from codedreduce import CodedReduce, Tree, train
from codedreduce.training import SGD, LogisticRegression, synthetic


def main():
    data = synthetic(1200, 100)
    scheme = CodedReduce(Tree.regular(fanout=4, depth=1), stragglers=1)
    calm = train(LogisticRegression(), data, scheme=scheme, rounds=30, optimizer=SGD(1.0))
    late = train(LogisticRegression(), data, scheme=scheme, rounds=30, optimizer=SGD(1.0), inject="stalls:0.1:0.3s")
    same = calm.parameters.tobytes() == late.parameters.tobytes()
    print(f"calm {calm.history[-1].loss:.6f}, stalled {late.history[-1].loss:.6f}, same bits: {same}")
    assert same


if __name__ == "__main__":
    main()
