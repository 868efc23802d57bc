"""Which round of a run is for what: a step of one of its trainings, or the batch of a step once more.

Several trainings may share a run. Whose round is next follows from the order in which the script asks, which is the
same on all ranks. A rank that fell behind, and takes another's state, is told with it how far each training has come,
and what that other asked for next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from codedreduce.errors import CodedReduceError


@dataclass(frozen=True, slots=True)
class Request:
    """What a round is for: a step of a training (counted from 0), or an evaluation more of that step (from 1)."""

    training: int
    step: int
    evaluation: int = 0

    @property
    def is_step(self) -> bool:
        """Whether a new step begins with it."""
        return self.evaluation == 0

    def __str__(self) -> str:
        step = f"step {self.step} of training {self.training + 1}"
        return step if self.is_step else f"evaluation {self.evaluation} of {step}"


class Requests:
    """How far the trainings of a run have come, and what is asked for next.

    >>> requests = Requests()
    >>> requests.add(0, stream=0); requests.add(0, stream=1)
    >>> for training in (0, 1):
    ...     requests.asked = requests.step_of(training)
    ...     requests.answered(requests.round + 1)
    >>> requests.round, str(requests.step_of(0)), str(requests.evaluation_of(1))
    (2, 'step 2 of training 1', 'evaluation 1 of step 1 of training 2')
    """

    def __init__(self) -> None:
        self.steps: list[int] = []  # that each training has been given
        self.round = 0  # of the run
        self.asked: Request | None = None  # nothing: the script is through
        self.streams: list[int] = []  # which of its script's each training is: its loop body draws numbers of its own
        self._evaluations: list[int] = []

    def step_of(self, training: int) -> Request:
        """The next step of a training."""
        return Request(training, self.steps[training] + 1)

    def evaluation_of(self, training: int) -> Request:
        """An evaluation more of the step that a training is in."""
        return Request(training, self.steps[training], self._evaluations[training] + 1)

    def answered(self, round_: int) -> None:
        """What was asked for is here, by that round of the run."""
        assert self.asked is not None
        self.round = round_
        self.steps[self.asked.training] = self.asked.step
        self._evaluations[self.asked.training] = self.asked.evaluation

    def add(self, after: int, stream: int) -> None:
        """One training more, which begins after a step."""
        self.steps.append(after)
        self.streams.append(stream)
        self._evaluations.append(0)
        self.round = max(self.round, after)

    def begin_after(self, training: int, step: int) -> None:
        """A training goes on after a step, as a checkpoint has it."""
        self.asked = None
        self.steps[training] = step
        self.round = max(self.round, step)

    def packed(self) -> dict[str, Any]:
        """All of it, to go with a state."""
        asked = self.asked
        return {
            "round": self.round, "steps": list(self.steps), "evaluations": list(self._evaluations),
            "streams": list(self.streams),
            "asked": None if asked is None else [asked.training, asked.step, asked.evaluation],
        }  # fmt: skip

    def read(self, packed: Mapping[str, Any]) -> Self:
        """Be as another's was."""
        if len(packed["steps"]) != len(self.steps):
            raise CodedReduceError(
                f"the state is of {len(packed['steps'])} trainings, and here are {len(self.steps)}: this process has "
                "not come to where the others made more of them, or is past that"
            )
        self.round, self.steps = packed["round"], list(packed["steps"])
        self._evaluations = list(packed["evaluations"])
        self.streams = list(packed.get("streams", self.streams))  # there are checkpoints from before it had them
        self.asked = None if packed["asked"] is None else Request(*packed["asked"])
        return self
