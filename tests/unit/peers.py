"""Whatever a neighbour may say, as strategies: any message that can be read off the wire."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from hypothesis import strategies as st

from codedreduce.protocol import messages as said

#: The largest number a message can carry.
LARGEST = 2**53

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
