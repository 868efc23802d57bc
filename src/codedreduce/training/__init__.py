"""Training on the root: objectives in NumPy, optimizers, data, and the loop.

`rounds` is the loop; `loop` runs a job in its world. `gradient` computes an objective of `objectives` over samples.
`optimizers` take steps, and pack the state of a rank. `batches`, `samplers` and `permutation` draw the samples
of a round; `data` and `files` read them. `checkpoints` writes files; `kept` decides when.
"""

from codedreduce.run.journal import RoundLog
from codedreduce.training.data import Arrays, Source, synthetic
from codedreduce.training.files import CsvFile, LibsvmFile, NpzFile, open_data
from codedreduce.training.loop import TrainingResult, train
from codedreduce.training.objectives import LinearRegression, LogisticRegression, Objective, Softmax
from codedreduce.training.optimizers import SGD, Adam, Optimizer

__all__ = [
    "SGD",
    "Adam",
    "Arrays",
    "CsvFile",
    "LibsvmFile",
    "LinearRegression",
    "LogisticRegression",
    "NpzFile",
    "Objective",
    "Optimizer",
    "RoundLog",
    "Softmax",
    "Source",
    "TrainingResult",
    "open_data",
    "synthetic",
    "train",
]
