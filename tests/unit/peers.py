"""Whatever a neighbour may say: any message that can be read off the wire."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from hypothesis import strategies as st

from codedreduce.protocol import messages as said

#: The largest number a message can carry.
LARGEST = 2**53

#: Some of every type, as they are said in a run, and as nobody should say them.
MESSAGES: list[said.AnyMessage] = [
    said.Hello(plan="the plan, 60 samples, 10 numbers"),
    said.Hello(plan="something else"),
    said.Welcome(),
    said.Refuse(reason="no"),
    said.Ready(),
    said.Goodbye(reason="bye"),
    *(said.ModelChunk(round=r, index=i) for r in (0, 1, 2) for i in (0, 1, 2)),
    *(said.ShareChunk(round=r, task=t, index=i) for r in (0, 1) for t in (0, 3, 9) for i in (0, 2)),
    *(said.ShareChunk(round=1, task=t, index=i, covered=0.5) for t in (0, 3, 9) for i in (0, 2)),
    *(said.Offer(round=r, task=t) for r in (0, 1) for t in (0, 3, 4, 99)),
    *(said.Send(round=r, task=3, chunks=c) for r in (0, 1) for c in ((), (1,), (50,))),
    *(said.Next(round=r, task=t, push=p) for r in (0, 1) for t in (3, 4) for p in (True, False)),
    *(said.Enough(round=r, task=t) for r in (0, 1) for t in (1, 3)),
    said.Settle(round=1),
    said.Late(round=1, node=4, seconds=0.5),
    said.RingChunk(round=1, segment=0, index=0, finished=False),
    said.RingChunk(round=1, segment=99, index=7, finished=True),
    said.Welcome(generation=5),
]  # fmt: skip

rounds = st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4, LARGEST])
indices = st.sampled_from([0, 0, 1, 1, 2, 2, 3, LARGEST])
seconds = st.sampled_from([0.0, 0.5, 1.0, 3.0, said.LONGEST])
nodes = st.integers(0, 16) | st.sampled_from([LARGEST])
covers = st.sampled_from([1.0, 1.0, 0.5, 0.25, 5e-324])
words = st.sampled_from(["", "no", "x" * 1000])


def messages(plan: str, likely: Collection[int]) -> st.SearchStrategy[said.AnyMessage]:
    """Any message, of any round and generation, about any task; `plan` is the one that this run has."""
    tasks = st.sampled_from([*likely, *likely, 0, max(likely) + 1, LARGEST])
    common = {"round": rounds, "generation": st.sampled_from([0] * 12 + [1, LARGEST])}
    fields = {
        said.Hello: {"plan": st.sampled_from([plan, plan, "another plan"])},
        said.Welcome: {},
        said.Refuse: {"reason": words},
        said.Ready: {},
        said.Goodbye: {"reason": words},
        said.ModelChunk: {"index": indices},
        said.ShareChunk: {
            "task": tasks, "index": indices, "covered": covers, "worked": seconds,
            "late": st.lists(nodes, max_size=3).map(tuple) | st.just((LARGEST,) * 4096),
        },
        said.Offer: {"task": tasks, "worked": seconds},
        said.Send: {"task": tasks, "chunks": st.lists(indices, max_size=4).map(tuple)},
        said.Next: {"task": tasks, "push": st.booleans()},
        said.Enough: {"task": tasks},
        said.Settle: {},
        said.Late: {"node": nodes, "seconds": seconds},
        said.RingChunk: {"segment": st.integers(0, 4) | st.just(LARGEST), "index": indices, "finished": st.booleans()},
    }  # fmt: skip
    return st.sampled_from(list(fields)).flatmap(lambda kind: st.builds(kind, **common, **fields[kind]))


def chunks(right: int) -> st.SearchStrategy[np.ndarray | None]:
    """A chunk of the right length mostly; else of another, or none."""
    lengths = st.sampled_from([right] * 8 + [0, right + 1, right + 7, None])
    return lengths.map(lambda length: None if length is None else np.full(length, 3.0, np.float32))
