"""The thread that computes: what replaces an order, and what does not."""

import numpy as np
import pytest

from codedreduce import MasterWorker
from codedreduce.net.buffers import Buffers
from codedreduce.node.computing import Computing
from codedreduce.protocol import Settings
from codedreduce.protocol.core.events import Compute, Computed, Event, Finished, Note
from codedreduce.run.agreement import Meeting, Run
from codedreduce.schemes import Range
from codedreduce.timing import TIMING

RUN = Run(
    meeting=Meeting(run="x", shared_memory=False), plan=MasterWorker(2).plan(samples=6), settings=Settings(length=3)
)
NOTE = Note(kind="redundant", reason="asked somebody", round=1)


def order(round_: int) -> Compute:
    return Compute(round=round_, task=1, pieces=((Range(0, 3),),), model=np.ones(3, np.float32))


def computed(*told: object) -> list[int]:
    """The rounds that are computed, of what the driver told before the thread looked."""

    def gradient(piece, model, round_, out, node) -> None:
        out[:] = round_

    computing = Computing(1, Buffers(RUN, 1), gradient, timing=TIMING)
    for what in told:
        computing.tell(what)
    posted: list[Event] = []

    def post(event: Event) -> None:
        posted.append(event)
        if isinstance(event, Computed):
            computing.tell(Finished(reason="over"))

    for news in computing.news(post):
        if isinstance(news, Finished):
            break
    return [event.round for event in posted if isinstance(event, Computed)]


def test_what_is_only_told_does_not_replace_an_order() -> None:
    assert computed(NOTE, order(1), NOTE, NOTE) == [1]


def test_an_order_replaces_those_before_it() -> None:
    assert computed(order(1), NOTE, order(2)) == [2]


def test_that_the_node_has_left_is_given_to_whoever_asks() -> None:
    computing = Computing(1, Buffers(RUN, 1), timing=TIMING)
    computing.tell(Finished(reason="over"))
    heard: list[object] = []
    for _ in range(3):
        waits = computing.news(heard.append, lambda: pytest.fail("nothing is given"))
        heard.append(next(waits))
    assert heard == [Finished(reason="over")] * 3
