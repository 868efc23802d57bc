"""Whatever a neighbour may say: any message that can be read off the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from codedreduce.protocol.core import messages as said

#: The largest number a message can carry.
LARGEST = 2**53

#: Whose word may be said to count.
VOTERS = (
    said.Voters(),
    said.Voters(number=1, ranks=((0, 1), (1, 1), (2, 1))),
    said.Voters(made_in=1, number=2, ranks=((1, 1),), coming=((0, 2), (2, 9))),
    said.Voters(made_in=4, number=9, ranks=((99, 1), (0, 0)), coming=((LARGEST, LARGEST),)),
)

#: Some of every type, as they are said in a run, and as nobody should say them.
MESSAGES: list[said.AnyMessage] = [
    said.Hello(plan="the plan, 60 samples, 10 numbers"),
    said.Hello(plan="something else"),
    said.Welcome(),
    said.Refuse(reason="no"),
    said.Ready(),
    said.Ready(missing=(4, 99)),
    said.Hello(plan="the plan, 60 samples, 10 numbers", generation=3, round=7),
    said.Goodbye(reason="bye"),
    said.Leaving(round=1, reason="bye"),
    *(said.ModelChunk(round=r, index=i) for r in (0, 1, 2) for i in (0, 1, 2)),
    *(said.ShareChunk(round=r, task=t, index=i) for r in (0, 1) for t in (0, 3, 9) for i in (0, 2)),
    *(said.ShareChunk(round=1, task=t, index=i, covered=0.5) for t in (0, 3, 9) for i in (0, 2)),
    *(said.Offer(round=r, task=t) for r in (0, 1) for t in (0, 3, 4, 99)),
    *(said.Send(round=r, task=3, chunks=c) for r in (0, 1) for c in ((), (1,), (50,))),
    *(said.Next(round=r, task=t, push=p) for r in (0, 1) for t in (3, 4) for p in (True, False)),
    *(said.Enough(round=r, task=t) for r in (0, 1) for t in (1, 3)),
    said.Settle(round=1),
    said.Late(round=1, node=4, seconds=0.5),
    *(said.Unable(round=r, task=t, troubles=w) for r in (0, 1) for t in (3, 99) for w in ((), ((3, "no"), (99, "")))),
    *(said.Failure(round=r, troubles=((3, "no"),), ends=e) for r in (0, 1) for e in (False, True)),
    said.RingChunk(round=1, segment=0, index=0, finished=False),
    said.RingChunk(round=1, segment=99, index=7, finished=True),
    said.Welcome(generation=5),
    *(said.Go(round=r, parts=p) for r in (1, 2) for p in ((), ((2, 0, 2),))),
    said.Go(round=1, reducers=((1, 0), (99, 3))),
    said.Go(round=1, parts=((99, 0, 1), (0, 1, 9), (2, 1, 1))),
    *(said.Do(round=r, parts=p) for r in (0, 1) for p in (((0, 0, 2),), ((2, 1, 2), (9, 0, 1)))),
    *(said.Cut(round=1, unit=u, end=e) for u in (2, 9) for e in (0, 1, 4096)),
    said.Tell(round=1),
    *(said.Check(round=r, blocks=b) for r in (0, 1) for b in (((0, 0), (2, 1)), ((99, 4096),))),
    *(said.Checked(round=1, unit=u, block=b, digest=b"x") for u in (0, 1, 99) for b in (0, 1, 4096)),
    *(said.Passed(round=1, unit=u, block=b, digest=b"x" * 16) for u in (2, 99) for b in (0, 1, 4096)),
    *(said.Mistaken(round=1, node=n, times=t) for n in (0, 1, 2, 99) for t in (1, LARGEST)),
    *(said.DamagedChunk(round=1, unit=u, first=0, last=2, index=i) for u in (2, 99) for i in (0, 99)),
    *(said.Status(round=r, done=d, lacks=u) for r in (0, 1, 2) for d in (0, 9) for u in ((), (1, 99))),
    said.Status(round=1, digest="x"),
    *(said.Done(round=r, unit=u, first=0, last=2) for r in (0, 1) for u in (1, 99)),
    said.Done(round=1, unit=1, first=1, last=2, worked=2.0, block=5e-324, digest="y"),
    *(said.NewReducer(round=1, stripe=t, reducer=k) for t in (0, 2, 99) for k in (0, 2, 99)),
    *(said.PartChunk(round=r, unit=1, first=f, last=2, index=i) for r in (0, 1, 2) for f in (0, 1) for i in (0, 2)),
    said.PartChunk(round=1, unit=99, first=3, last=2, index=0),
    *(said.SumChunk(round=r, index=i) for r in (0, 1, 2) for i in (0, 1, 2)),
    *(said.Want(round=r, chunks=c) for r in (0, 1) for c in ((), (0, 2, 50))),
    *(said.Past(round=r) for r in (0, 1)),
    said.Renew(round=1),
    *(said.Give(round=1, to=t) for t in (0, 2, 99)),
    *(said.StateOffer(round=r, of=2, digest=d) for r in (0, 1, 2) for d in ("", "the same")),
    *(said.Take(round=r, pieces=p) for r in (0, 1) for p in ((), (0, 1), (50,))),
    *(said.StateChunk(round=r, index=i, of=2) for r in (0, 1, 2) for i in (0, 1, 2)),
    *(said.End(round=r) for r in (0, 1)),
    said.Have(round=1),
    *(said.Stand(generation=g, round=r, lost=yes) for g in (0, 4) for r in (0, 1) for yes in (False, True)),
    said.Stand(round=1, asks=True),
    *(said.Stand(generation=g, round=1, lost=False, asks=True, process=7, voters=v) for g in (0, 4) for v in VOTERS),
    *(said.Welcome(generation=g, round=1, voters=v) for g in (0, 5) for v in VOTERS),
    *(said.Lead(generation=g, round=r) for g in (0, 1, 2, 3) for r in (0, 1, 9)),
    *(said.Follow(generation=g, round=1) for g in (0, 1, 2)),
]  # fmt: skip

ROUNDS = (0, 1, 1, 1, 2, 2, 3, 4, LARGEST)
INDICES = (0, 0, 1, 1, 2, 2, 3, LARGEST)
SECONDS = (0.0, 0.5, 1.0, 3.0, said.LONGEST)
NODES = (0, 1, 2, 3, 4, 5, 16, LARGEST)
WORDS = ("", "no", "x" * 1000)
LATE = ((), (), (1,), (4, 2), (0,), (99, 3), (LARGEST,) * 4096)

TROUBLES = ((), ((3, "no"),), ((1, "no"), (4, "x" * 400)), ((LARGEST, ""), (0, "no")), ((2, "no"),) * 16)

UNITS = (0, 0, 1, 1, 2, 2, 3, LARGEST)
BLOCKS = (0, 1, 1, 2, 2, 2, 3, 4, 4096)
PARTS = (
    (), ((0, 0, 2),), ((2, 0, 2),), ((2, 0, 1), (2, 1, 2)), ((1, 1, 2), (0, 0, 1)), ((2, 0, 4), (3, 2, 3)),
    ((LARGEST, 0, 1),), ((0, 4096, 0), (1, 1, 1)),
)  # fmt: skip
ONE_BLOCKS = ((), ((0, 0),), ((2, 1), (1, 0)), ((2, 4096), (LARGEST, 0)))
SHORT = (b"", b"0123456789abcdef", b"0123456789abcdef", b"another")
DIGESTS = ("", "", "", "the same", "the same", "another", "x" * 1000)

#: By type of message and field, what may stand there.
Choices = Mapping[type, Mapping[str, Sequence[Any]]]


def choices(plan: str, likely: Sequence[int]) -> Choices:
    """Any message, of any round and generation, about any task; `plan` is the one that this run has."""
    tasks = (*likely, *likely, 0, max(likely) + 1, LARGEST)
    fields: dict[type, dict[str, Sequence[Any]]] = {
        said.Hello: {"plan": (plan, plan, "another plan")},
        said.Welcome: {"voters": VOTERS},
        said.Refuse: {"reason": WORDS},
        said.Ready: {"missing": LATE},
        said.Goodbye: {"reason": WORDS},
        said.Leaving: {"reason": WORDS},
        said.ModelChunk: {"index": INDICES},
        said.ShareChunk: {
            "task": tasks, "index": INDICES, "covered": (1.0, 1.0, 0.5, 0.25, 5e-324), "worked": SECONDS, "late": LATE,
        },
        said.Offer: {"task": tasks, "worked": SECONDS},
        said.Send: {"task": tasks, "chunks": ((), (0,), (2, 0), (1, 1, 1), (3,), (LARGEST, 1))},
        said.Next: {"task": tasks, "push": (False, True)},
        said.Enough: {"task": tasks},
        said.Settle: {},
        said.Late: {"node": NODES, "seconds": SECONDS},
        said.Unable: {"task": tasks, "troubles": TROUBLES},
        said.Failure: {"troubles": TROUBLES, "ends": (False, False, True)},
        said.RingChunk: {"segment": (0, 0, 1, 1, 2, 2, 3, LARGEST), "index": INDICES, "finished": (False, True)},
        said.Go: {"parts": PARTS, "reducers": ((), (), ((0, 0), (1, 4096)), ((0, 0), (1, 0), (2, 0)), ((LARGEST, 1),))},
        said.Do: {"parts": PARTS},
        said.Cut: {"unit": UNITS, "end": BLOCKS},
        said.Tell: {},
        said.Status: {"done": BLOCKS, "lacks": ((), (), (0,), (2, 1), (99,), (LARGEST,) * 4096), "digest": DIGESTS},
        said.Done: {
            "unit": UNITS, "first": (0, 0, 0, 0, *BLOCKS), "last": BLOCKS, "worked": SECONDS,
            "block": (*SECONDS, 5e-324), "digest": DIGESTS,
        },
        said.NewReducer: {"stripe": UNITS, "reducer": UNITS},
        said.Check: {"blocks": ONE_BLOCKS},
        said.Checked: {"unit": UNITS, "block": BLOCKS, "digest": SHORT},
        said.Passed: {"unit": UNITS, "block": BLOCKS, "digest": SHORT},
        said.Mistaken: {"node": NODES, "times": (1, 1, 2, LARGEST)},
        said.DamagedChunk: {"unit": UNITS, "first": BLOCKS, "last": BLOCKS, "index": INDICES},
        said.PartChunk: {"unit": UNITS, "first": (0, 0, 0, 0, *BLOCKS), "last": BLOCKS, "index": INDICES},
        said.SumChunk: {"index": INDICES},
        said.Want: {"chunks": ((), (0,), (2, 0), (1, 1, 1), (3,), (LARGEST, 1))},
        said.Past: {},
        said.Renew: {},
        said.Give: {"to": NODES},
        said.StateOffer: {"of": (1, 1, 2, 2, 2**24), "digest": DIGESTS},
        said.Take: {"pieces": ((), (0,), (1, 0), (0, 0), (LARGEST, 1))},
        said.StateChunk: {"index": (0, 0, 0, 1, LARGEST), "of": (1, 1, 2, 2, 2**24)},
        said.End: {},
        said.Have: {},
        said.Stand: {"lost": (True, True, False), "asks": (False, True), "process": (0, 1, 2, 9), "voters": VOTERS},
        said.Lead: {"voters_made_in": (0, 0, 1, LARGEST), "voters_number": (0, 0, 1, LARGEST)},
        said.Follow: {"process": (0, 1, 2, 9)},
    }  # fmt: skip
    common = {"round": ROUNDS, "generation": (0,) * 12 + (1, LARGEST)}
    return {kind: {**common, **own} for kind, own in fields.items()}


def messages(among: Choices) -> st.SearchStrategy[said.AnyMessage]:
    """Any of these."""
    of = {kind: {name: st.sampled_from(values) for name, values in fields.items()} for kind, fields in among.items()}
    built = {kind: st.builds(kind, **fields) for kind, fields in of.items()}  # once, not for each that is drawn
    return st.sampled_from(list(built)).flatmap(built.__getitem__)


def draw(random: Random, among: Choices, kind: Any, **fixed: Any) -> Any:
    """One of a type."""
    drawn = {name: random.choice(values) for name, values in among[kind].items()}
    return kind(**{**drawn, **fixed})


def chunks(right: int) -> st.SearchStrategy[np.ndarray | None]:
    """A chunk of the right length mostly; else of another, or none."""
    lengths = st.sampled_from([right] * 8 + [0, right + 1, right + 7, None])
    return lengths.map(lambda length: None if length is None else np.full(length, 3.0, np.float32))
