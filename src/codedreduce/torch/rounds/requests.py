"""What each round of a run is for: a step of one of its trainings, or another evaluation of a step's batch.

Several trainings may share a run. The order of the script's requests, which is the same on all ranks, assigns the
rounds. A rank that catches up by state transfer also receives the progress of each training, and the next request of
the other rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from codedreduce.errors import CodedReduceError


@dataclass(frozen=True, slots=True)
class Request:
    """What a round is for: a step of a training (counted from 0), or another evaluation of that step (from 1)."""

    training: int
    step: int
    evaluation: int = 0

    @property
    def is_step(self) -> bool:
        """Whether it begins a new step."""
        return self.evaluation == 0

    def __str__(self) -> str:
        step = f"step {self.step} of training {self.training + 1}"
        return step if self.is_step else f"evaluation {self.evaluation} of {step}"


class Requests:
    """The progress of the trainings of a run, and the next request.

    >>> requests = Requests()
    >>> requests.add(0, stream=0); requests.add(0, stream=1)
    >>> for training in (0, 1):
    ...     requests.asked = requests.step_of(training)
    ...     requests.answered(requests.round + 1)
    >>> requests.round, str(requests.step_of(0)), str(requests.evaluation_of(1))
    (2, 'step 2 of training 1', 'evaluation 1 of step 1 of training 2')
    """

    def __init__(self) -> None:
        self.steps: list[int] = []  # the steps that each training has received
        self.round = 0  # of the run
        self.asked: Request | None = None  # None: the script has finished
        self.streams: list[int] = []  # each training's number in its script, which seeds the draws of its loop body
        self._evaluations: list[int] = []

    def step_of(self, training: int) -> Request:
        """Return the request for the next step of a training."""
        return Request(training, self.steps[training] + 1)

    def evaluation_of(self, training: int) -> Request:
        """Return the request for another evaluation of the current step of a training."""
        return Request(training, self.steps[training], self._evaluations[training] + 1)

    def answered(self, round_: int) -> None:
        """Record that this round of the run answered the request."""
        assert self.asked is not None
        self.round = round_
        self.steps[self.asked.training] = self.asked.step
        self._evaluations[self.asked.training] = self.asked.evaluation

    def add(self, after: int, stream: int) -> None:
        """Add a training, which begins after step `after`."""
        self.steps.append(after)
        self.streams.append(stream)
        self._evaluations.append(0)
        self.round = max(self.round, after)

    def begin_after(self, training: int, step: int) -> None:
        """Continue a training after the step of a checkpoint."""
        self.asked = None
        self.steps[training] = step
        self.round = max(self.round, step)

    def packed(self) -> dict[str, Any]:
        """Return all of it, to send with a state."""
        asked = self.asked
        return {
            "round": self.round, "steps": list(self.steps), "evaluations": list(self._evaluations),
            "streams": list(self.streams),
            "asked": None if asked is None else [asked.training, asked.step, asked.evaluation],
        }  # fmt: skip

    def read(self, packed: Mapping[str, Any]) -> Self:
        """Load what another rank packed."""
        if len(packed["steps"]) != len(self.steps):
            raise CodedReduceError(
                f"the state has {len(packed['steps'])} trainings, but this process has {len(self.steps)}: it is at "
                "another place of the script than the others, which have made more or fewer trainings"
            )
        self.round, self.steps = packed["round"], list(packed["steps"])
        self._evaluations = list(packed["evaluations"])
        self.streams = list(packed.get("streams", self.streams))  # older checkpoints have none
        self.asked = None if packed["asked"] is None else Request(*packed["asked"])
        return self
