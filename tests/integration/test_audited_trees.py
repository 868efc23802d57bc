"""Real processes over a tree, of which one computes wrongly in a bit: found, put right, named, not used any more."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from codedreduce import CodedReduce, MasterWorker, Tree, train
from codedreduce.errors import SchemeError
from codedreduce.protocol import Settings
from codedreduce.protocol.audits import Audit
from codedreduce.schemes import Piece
from codedreduce.training import LogisticRegression, synthetic
from codedreduce.worlds.buffers import Buffers
from codedreduce.worlds.journal import RoundLog
from codedreduce.worlds.zeromq.local import LocalCluster

MODEL = np.arange(1, 1001, dtype=np.float32)
SAMPLES, ROUNDS = 60, 8
AUDIT = Audit(fraction=0.5, seed=4)
DRAWN = [round_ for round_ in range(1, ROUNDS + 1) if AUDIT.is_drawn(round_)]
SETTINGS = Settings(length=1000, chunk=300, least_head_start=0.3, audit=AUDIT)
DATA = synthetic(samples=120, features=5, seed=0)

Gradient = Callable[[Piece, np.ndarray, int, np.ndarray, int], None]
CASES = [("2x2", node) for node in range(1, 7)] + [("3x2", node) for node in (1, 3, 5, 12)]


def wrong_in_a_bit(who: int, when: Callable[[int], bool] = lambda round_: True) -> Gradient:
    """Counts samples; at that node, in those rounds, a bit of one number is another than it should be."""

    def gradient(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        np.multiply(model, np.float32(sum(len(part) for part in piece)), out=out)
        if node == who and when(round_):
            out.view(np.uint32)[17] ^= np.uint32(1 << 12)

    return gradient


def plan_of(tree: str):
    fanout, depth = map(int, tree.split("x"))
    return CodedReduce(Tree.regular(fanout=fanout, depth=depth), 1).plan(samples=SAMPLES)


@pytest.mark.parametrize(("tree", "node"), CASES)
def test_one_that_is_always_wrong_is_found_on_any_level_and_then_not_used(tree: str, node: int) -> None:
    right = []
    with LocalCluster.of(plan_of(tree), wrong_in_a_bit(node), SETTINGS) as cluster:
        for _ in range(ROUNDS):
            right.append(bool((cluster.sum_of(MODEL).vector == SAMPLES * MODEL).all()))
        journal = cluster.journal
    late = {note.round for note in journal.of_kind("unaudited")}
    looked_at = [round_ for round_ in DRAWN if round_ not in late]
    assert all(right[round_ - 1] for round_ in looked_at)
    found = [(note.round, note.nodes) for note in journal.of_kind("mistaken")]
    assert found == [(round_, (node,)) for round_ in looked_at[:2]]
    assert [note.nodes for note in journal.of_kind("quarantined")] == [(node,)]
    assert all(right[looked_at[1] :]), "it is not used any more"
    assert not any(right[round_ - 1] for round_ in range(1, looked_at[1]) if round_ not in looked_at)


@pytest.mark.parametrize("seed", range(8))
def test_one_that_is_wrong_now_and_then_is_found_where_somebody_looks(seed: int) -> None:
    random = np.random.default_rng(seed)
    node, when = int(random.integers(1, 7)), {int(one) for one in random.permutation(np.arange(1, ROUNDS + 1))[:3]}
    with LocalCluster.of(plan_of("2x2"), wrong_in_a_bit(node, when.__contains__), SETTINGS) as cluster:
        right = [bool((cluster.sum_of(MODEL).vector == SAMPLES * MODEL).all()) for _ in range(ROUNDS)]
        journal = cluster.journal
    late = {note.round for note in journal.of_kind("unaudited")}
    looked_at = [round_ for round_ in DRAWN if round_ not in late]
    found = [(note.round, note.nodes) for note in journal.of_kind("mistaken")]
    assert found == [(round_, (node,)) for round_ in looked_at if round_ in when][:2]
    used_until = found[1][0] if len(found) > 1 else ROUNDS
    for round_ in range(1, ROUNDS + 1):
        assert right[round_ - 1] is (round_ in looked_at or round_ not in when or round_ > used_until)


@pytest.mark.parametrize("node", [3, 4, 5, 6])
def test_what_is_damaged_on_its_way_is_put_right_and_nobody_is_blamed(node: int, monkeypatch) -> None:
    """A bit of what a leaf sends is another when it leaves."""
    whose: dict[int, int] = {}
    as_made, as_sent = Buffers.__init__, Buffers.to_bytes

    def make(buffers: Buffers, run: object, number: int, *memory: object) -> None:
        whose[id(buffers)] = number
        as_made(buffers, run, number, *memory)

    def to_bytes(buffers: Buffers, chunk: np.ndarray, exact: int = 0) -> memoryview:
        if whose[id(buffers)] == node and len(chunk) == 300:
            chunk = chunk.copy()
            chunk.view(np.uint32)[17] ^= np.uint32(1 << 12)
        return as_sent(buffers, chunk, exact)

    monkeypatch.setattr(Buffers, "__init__", make)
    monkeypatch.setattr(Buffers, "to_bytes", to_bytes)
    with LocalCluster.of(plan_of("2x2"), wrong_in_a_bit(-1), SETTINGS, shared_memory=False) as cluster:
        right = [bool((cluster.sum_of(MODEL).vector == SAMPLES * MODEL).all()) for _ in range(ROUNDS)]
        journal = cluster.journal
    late = {note.round for note in journal.of_kind("unaudited")}
    looked_at = [round_ for round_ in DRAWN if round_ not in late]
    assert [round_ for round_ in range(1, ROUNDS + 1) if right[round_ - 1]] == looked_at
    assert {note.nodes for note in journal.of_kind("damaged")} == {(node,)}
    assert journal.of_kind("mistaken") == []


def test_a_training_with_audits_ends_with_the_same_bits_whoever_stalls_or_is_killed() -> None:
    scheme = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
    without = train(LogisticRegression(), DATA, scheme=scheme, rounds=8)
    kinds: set[str] = set()

    def kill_one(log: RoundLog) -> None:
        if log.round == 3:
            psutil.Process().children(recursive=True)[-1].kill()

    audited = train(
        LogisticRegression(), DATA, scheme=scheme, rounds=8, audit=1.0, inject="stalls:0.1:0.1s", on_round=kill_one,
        on_note=lambda note: kinds.add(note.kind),
    )  # fmt: skip
    assert audited.parameters.tobytes() == without.parameters.tobytes()
    assert not kinds & {"mistaken", "damaged", "quarantined"}


class Mistaken(LogisticRegression):
    """The process that comes first is wrong in a bit, from then on; the root's is none of them."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.root = os.getpid()
        self.mark = mark
        self.is_wrong: bool | None = None

    def evaluate(self, model, x, y, weights, gradient):
        if self.is_wrong is None and os.getpid() != self.root:
            try:
                self.mark.touch(exist_ok=False)
                self.is_wrong = True
            except FileExistsError:
                self.is_wrong = False
        time.sleep(0.05)  # who computes it again has as long, and more: long enough on a machine that is busy
        loss = super().evaluate(model, x, y, weights, gradient)
        if self.is_wrong:
            gradient.view(np.uint32)[:1] ^= np.uint32(1 << 12)
        return loss


def test_a_training_ends_with_the_right_bits_and_says_who_was_wrong(tmp_path: Path) -> None:
    scheme = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
    right = train(LogisticRegression(), DATA, scheme=scheme, rounds=6)
    said: list[tuple[str, str]] = []
    mistaken = train(
        Mistaken(tmp_path / "mark"), DATA, scheme=scheme, rounds=6, audit=1.0, quarantine=1,
        on_note=lambda note: said.append((note.kind, note.reason)),
    )  # fmt: skip
    assert mistaken.parameters.tobytes() == right.parameters.tobytes()
    assert [kind for kind, _ in said][:2] == ["mistaken", "quarantined"]
    assert {kind for kind, _ in said[2:]} <= {"unaudited"}, "of its group only one may be left"
    assert re.match(r"worker \d computed wrongly in round \d, which an audit found and put right", said[0][1])


def test_where_nobody_can_be_asked_audits_are_refused() -> None:
    with pytest.raises(SchemeError, match="nobody can be asked to compute what another does"):
        train(LogisticRegression(), DATA, scheme=MasterWorker(2), rounds=1, audit=0.1)
