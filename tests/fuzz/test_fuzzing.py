"""27,000 messages that are none, to every role, over real sockets: by strangers, by neighbours with a session, and by
members with keys.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.fuzzing import GROWTH, fuzz
from tests.fuzz.insiders import SENDERS, fuzz_from_within
from tests.fuzz.members import ROLES, Members
from tests.fuzz.mutations import Mutations
from tests.fuzz.runs import PLANS

FRAMES = 18_000
BY_A_NEIGHBOUR = 2_000
BY_A_NEIGHBOUR_WITH_KEYS = 1_000
BY_A_MEMBER = 6_000


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


@pytest.mark.parametrize("role", ROLES)
def test_a_node_bears_whatever_a_neighbour_sends_that_has_the_key(role: str) -> None:
    """The same over CURVE's connections, to which it was named."""
    frames = BY_A_NEIGHBOUR_WITH_KEYS // len(ROLES)
    assert Members(role, frames, seed=Random(role).randrange(1000), has_keys=True).run().grew < GROWTH


@pytest.mark.parametrize("sender", SENDERS)
def test_a_run_is_the_same_whatever_those_send_who_have_the_key(sender: str) -> None:
    """A member, to its neighbours, and somebody who knows the secret, where the run meets."""
    sent = fuzz_from_within(sender, BY_A_MEMBER // len(SENDERS), seed=1)
    assert sent.total() > BY_A_MEMBER // len(SENDERS)
    assert sent["book of addresses"] > 100


def test_the_same_seed_gives_the_same_messages() -> None:
    one, other = (Mutations(3, 100) for _ in range(2))
    first = [one.frames(bytes(16)) for _ in range(500)]
    assert first == [other.frames(bytes(16)) for _ in range(500)]
    assert len(set(first)) > 300
