"""Training on the root: objectives in NumPy, optimizers, data, and the loop."""

from codedreduce.training.data import Arrays, Source, synthetic
from codedreduce.training.files import CsvFile, LibsvmFile, NpzFile, open_data
from codedreduce.training.loop import TrainingResult, train
from codedreduce.training.objectives import LinearRegression, LogisticRegression, Objective, Softmax
from codedreduce.training.optimizers import SGD, Adam, Optimizer
from codedreduce.worlds.journal import RoundLog

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
