"""Gradient codes: how siblings share the parts of a sum, and how a parent gets the sum back from some of them."""

from codedreduce.codes.code import Approximation, GradientCode
from codedreduce.codes.cyclic import cyclic
from codedreduce.codes.repetition import repetition
from codedreduce.codes.uncoded import uncoded

__all__ = ["Approximation", "GradientCode", "cyclic", "repetition", "uncoded"]
