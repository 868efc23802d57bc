"""Gradient codes: siblings share the parts of a sum, and a parent decodes the sum from some of their messages."""

from codedreduce.codes.code import Approximation, GradientCode
from codedreduce.codes.cyclic import cyclic
from codedreduce.codes.repetition import repetition, uncoded

__all__ = ["Approximation", "GradientCode", "cyclic", "repetition", "uncoded"]
