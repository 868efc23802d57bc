"""What a stranger on the network does to chunks under way, and chance: it is found, told, and the sums have their bits.

Whole runs over TCP, in which every connection leads through a proxy that changes, repeats, swaps or makes up messages.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.net.carrier import Carrier
from codedreduce.net.connections import Endpoints, PeerLink
from codedreduce.net.sessions import DATA, SessionStep
from codedreduce.node.local import LocalCluster
from codedreduce.process.addresses import free_port
from codedreduce.process.secrets import Secret
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.journal import Journal
from codedreduce.run.world import World
from codedreduce.schemes import Piece, Plan
from codedreduce.timing import Timing
from tests.proxies import Act, Message, Proxy, flipped
from tests.sums import sums
from tests.waiting import PATIENCE

TREE = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)
STRIPES = Striped(4).plan(samples=60)
LENGTH, CHUNK = 20_000, 2048
MODEL = (np.arange(LENGTH, dtype=np.float32) % 1000) + 1
ROUNDS = 80

ENCRYPTED, INSECURE = "encrypted", "insecure"

#: A connection that was lost is made again soon.
SOON = Timing(renew_connection=0.3, unidentified_check=0.2)
PLANS = pytest.mark.parametrize("plan", [TREE, STRIPES], ids=["tree", "stripes"])

#: Of how many messages one is disturbed, on each plane; and how many by one proxy.
ONE_OF, MOST = (30, 60), 3


def counting(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
    np.multiply(model, np.float32(sum(len(part) for part in piece)), out=out)


def rounds(world: World, count: int = ROUNDS) -> None:
    for number, vector in enumerate(sums(world, MODEL, count), 1):
        assert vector.tobytes() == (60 * MODEL).tobytes()
        time.sleep(0.005)
        if isinstance(world, LocalCluster):
            REACHED.value = number
        else:
            wait_for_first(number - AHEAD)


#: How far the first process, which is that of a test, has come; and how far ahead of it others go.
REACHED, AHEAD = multiprocessing.Value("i", 0), 30


def wait_for_first(number: int) -> None:
    """Be there for the first, which may be cut off from all: who comes back when others have ended finds nobody."""
    until = time.monotonic() + PATIENCE
    while REACHED.value < number and time.monotonic() < until:
        time.sleep(0.01)


def member(world: World) -> None:
    """The life of another."""
    rounds(world)
    wait_for_first(ROUNDS)


def meeting(mode: str) -> Meeting:
    at = Meeting(
        run=f"codedreduce-{os.getpid()}-{time.monotonic_ns()}", port=free_port(), same_machine=False,
        shared_memory=False, root_within=PATIENCE, timing=SOON,
    )  # fmt: skip
    return replace(at, insecure=True) if mode == INSECURE else replace(at, secret=Secret.fresh())


@contextlib.contextmanager
def running(plan: Plan, at: Meeting, journal: Journal | None = None) -> Iterator[LocalCluster]:
    run = Run.of(at, plan, LENGTH)
    run = replace(run, settings=replace(run.settings, chunk=CHUNK, least_head_start=0.02))
    REACHED.value = 0
    with LocalCluster(run, counting, member=member, journal=journal or Journal()) as cluster:
        yield cluster


class Disturbance:
    """What is done to one of so many messages, drawn by a seed; written down, by whichever process it is in."""

    def __init__(self, kind: str, path: Path, plane: int, seed: int) -> None:
        self._kind = kind
        self._path = path
        self._plane = plane
        self._random = Random(seed)
        self._past: list[Message] = []
        self._left = MOST
        self._until = time.monotonic() + 0.3  # nodes come together first

    def __call__(self, up: bool, messages: list[Message]) -> list[Message]:
        passed: list[Message] = []
        for number, one in enumerate(messages):
            is_spared = not self._left or time.monotonic() < self._until
            if is_spared or self._random.random() > 1 / ONE_OF[self._plane]:
                passed.append(one)
                continue
            if self._kind == "swap" and number + 1 == len(messages):
                passed.append(one)  # with what?
                continue
            self._until = time.monotonic() + 0.2
            self._left -= 1
            self._write()
            if self._kind == "flip":
                passed.append(flipped(one, self._random))
            elif self._kind == "repeat":
                passed += [one, one]
            elif self._kind == "swap":
                messages[number + 1], one = one, messages[number + 1]
                passed.append(one)
            elif self._kind == "make up":
                passed += [one, self._made_up(one)]
            elif self._kind == "repeat an old one":
                passed += [one, self._random.choice(self._past or [one])]
            self._past.append(one)
        return passed

    def _made_up(self, one: Message) -> Message:
        """As the last one was, with other numbers."""
        body = bytearray(one[-1])
        body[-8:] = self._random.randbytes(8)
        return (*one[:-1], bytes(body))

    def _write(self) -> None:
        write(self._path, f"{self._kind} plane {self._plane}")


def write(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Between:
    return Between(monkeypatch, tmp_path / "diary")


class Between:
    """Leads connections of all nodes of a run, which are forked from this process, through proxies; and keeps a diary
    of what is done there and what nodes tell.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self._patch = monkeypatch
        self._path = path

    def disturb(self, kind: str, planes: tuple[int, ...] = (DATA,)) -> None:
        move, complain, follow = Carrier.move, Carrier._complain, Carrier._follow
        path, made = self._path, {}

        def moved(carrier: Carrier, peer: int, endpoints: Endpoints) -> None:
            found = list(endpoints)
            for plane in planes:
                where = endpoints[plane]
                if where not in made:
                    act: Act = Disturbance(kind, path, plane, 100 * carrier.node + peer + 7 * len(made))
                    made[where] = Proxy(where, act)
                found[plane] = made[where].address
            move(carrier, peer, Endpoints(*found))

        def told(carrier: Carrier, sender: int | None, why: str) -> None:
            write(path, f"told: {why}")
            complain(carrier, sender, why)

        def followed(carrier: Carrier, link: PeerLink, step: SessionStep) -> None:
            if step.gone:
                write(path, "gone")
            follow(carrier, link, step)

        self._patch.setattr(Carrier, "move", moved)
        self._patch.setattr(Carrier, "_complain", told)
        self._patch.setattr(Carrier, "_follow", followed)

    @property
    def diary(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def count(self, words: str) -> int:
        return sum(words in line for line in self.diary)


@PLANS
@pytest.mark.parametrize("kind", ["flip", "repeat", "repeat an old one", "swap", "make up"])
def test_who_is_between_two_nodes_changes_no_bit(plan: Plan, kind: str, between: Between) -> None:
    """Of encrypted runs, whatever is done to chunks."""
    between.disturb(kind)
    with running(plan, meeting(ENCRYPTED)) as cluster:
        rounds(cluster)
    assert between.count(f"{kind} plane") >= 3, "it was done"
    assert between.count("gone") >= 3, "and cost connections"


@PLANS
@pytest.mark.parametrize("planes", [(0,), (1,)], ids=["control", "chunks"])
def test_bits_that_flip_on_the_way_are_found_where_nothing_is_encrypted(
    plan: Plan, planes: tuple[int, ...], between: Between
) -> None:
    between.disturb("flip", planes)
    with running(plan, meeting(INSECURE)) as cluster:
        rounds(cluster)
    assert between.count("flip plane") >= 3, "it was done"
    assert between.count("digest is wrong") >= 3, "and was told"
