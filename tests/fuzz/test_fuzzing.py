"""20,000 messages that are none, to every role, over real sockets: by strangers, and by neighbours with a session."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.fuzzing import GROWTH, fuzz
from tests.fuzz.members import ROLES, Members
from tests.fuzz.mutations import Mutations
from tests.fuzz.runs import PLANS

FRAMES = 18_000
BY_A_NEIGHBOUR = 2_000


@pytest.mark.parametrize("kind", PLANS)
def test_a_run_is_the_same_whatever_strangers_send(kind: str) -> None:
    """Every round's sum is compared, at every node that has it."""
    fuzzed = fuzz(kind, FRAMES // len(PLANS), seed=1, shared_memory=kind == "stripes")
    assert sum(fuzzed.sent.values()) == FRAMES // len(PLANS)
    assert min(fuzzed.sent.values()) > 500, "every role had some"


@pytest.mark.parametrize("role", ROLES)
def test_a_node_bears_whatever_a_neighbour_sends(role: str) -> None:
    """It does not fall over or hang, and opens a session again each time that one was cut."""
    done = Members(role, BY_A_NEIGHBOUR // len(ROLES), seed=Random(role).randrange(1000)).run()
    assert done.grew < GROWTH


def test_the_same_seed_gives_the_same_messages() -> None:
    one, other = (Mutations(3, 100) for _ in range(2))
    first = [one.frames(bytes(16)) for _ in range(500)]
    assert first == [other.frames(bytes(16)) for _ in range(500)]
    assert len(set(first)) > 300
