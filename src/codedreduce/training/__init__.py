"""Training on the root: objectives in NumPy, optimizers, data, and the loop.

What lives here: `rounds` the one loop, `loop` a job and its world, `replica` what every rank has, as bytes, `batches`
which samples, `samplers` and `permutation` in which order, `data` and `files` where they come from; objectives,
optimizers.
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
