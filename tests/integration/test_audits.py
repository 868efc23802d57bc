"""Ranks that compute wrongly, and memory that forgets, in real processes: found before the sum is used, and named."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import codedreduce.torch as cr
from codedreduce import CodedReduce, MasterWorker, RingAllReduce, Striped, Tree
from codedreduce.errors import CodedReduceError, SchemeError, UsageError
from codedreduce.protocol.core.audits import Audit
from codedreduce.protocol.rank.exchange import Exchange
from codedreduce.run.journal import Journal
from codedreduce.schemes import Part, Piece
from codedreduce.schemes.names import DEFAULT_WORKERS
from codedreduce.simulator.wrong import flipped_anywhere
from codedreduce.training import LogisticRegression, synthetic, train

from .test_striped import BOTH, Bits
from .test_torch_striped import bits_of, digest, run
from .torch_model import BATCH, Model, data, losses


class Audited(Bits):
    """The same, with audits; one rank flips a bit of some of what it computes, and writes down when."""

    def __init__(
        self, folder: Path, *, wrong: int, part: float, ranks: int = 4, rounds: int = 30, fraction: float = 1.0,
        quarantine: int = 1000, first: int = 1, **options,
    ) -> None:  # fmt: skip
        super().__init__(ranks, rounds, folder, **options)
        self.settings = replace(self.settings, audit=Audit(fraction=fraction, seed=3, quarantine=quarantine))
        self.wrong, self.part, self.first = wrong, part, first
        self.draw = random.Random(11)

    def gradient(self, piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        super().gradient(piece, model, round_, out, node)
        time.sleep(0.001)  # so that all have come to a round before it is over
        if node == self.wrong and round_ >= self.first and self.draw.random() < self.part:
            out[:] = flipped_anywhere(out, self.draw)
            self.write("flips", round_)
        self.write(f"computed {node}", round_)

    def write(self, what: str, round_: int) -> None:
        with (self.folder / what).open("a") as file:
            file.write(f"{round_}\n")

    def rounds_of(self, what: str) -> list[int]:
        path = self.folder / what
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def found(journal: Journal) -> list[tuple[int, int]]:
    """Who was said to be wrong, and when."""
    return [(note.nodes[0], note.round) for _, _, note in journal.notes if note.kind == "mistaken"]


@BOTH
@pytest.mark.parametrize("wrong", [0, 2], ids=["rank 0", "rank 2"])
def test_whoever_computes_wrongly_now_and_then_is_found_every_time(
    tmp_path: Path, shared_memory: bool, wrong: int
) -> None:  # fmt: skip
    """Rank 0 makes 50 injections and more; another is left out for a while when what it did was of no use."""
    bits = Audited(tmp_path, wrong=wrong, part=0.2, shared_memory=shared_memory, rounds=50)
    journal, _ = bits.run()  # which compares every sum at every rank with the reference
    flips = {(wrong, round_) for round_ in bits.rounds_of("flips")}
    assert set(found(journal)) <= flips, "others may have been quicker, and then nobody asks what it computed"
    assert len(found(journal)) > (25 if wrong == 0 else 2)


@BOTH
def test_whoever_is_always_wrong_is_not_used_any_more(tmp_path: Path, shared_memory: bool) -> None:
    bits = Audited(tmp_path, wrong=2, part=1.0, first=3, quarantine=2, rounds=12, shared_memory=shared_memory)
    journal, _ = bits.run()
    first, second = found(journal)
    assert first == (2, 3)
    said = [note.reason for _, _, note in journal.notes if note.kind == "mistaken"]
    assert "last found to be right in round 2" in said[0]
    assert "not used any more" in said[1]
    assert max(bits.rounds_of("computed 2")) == second[1] < 12
    assert sum(bits.seen(2)) == 12, "it goes on with the sums of the others"


@BOTH
def test_a_part_of_all_is_looked_at_and_what_is_wrong_there_is_found(tmp_path: Path, shared_memory: bool) -> None:
    """What nobody looks at is right, and the rest wrong, in every round that is audited."""
    bits = Audited(tmp_path, wrong=1, part=1.0, fraction=0.06, rounds=40, shared_memory=shared_memory)
    audit, plan = bits.settings.audit, bits.plan
    assert audit is not None
    gradient = bits.gradient

    def wrong_where_audited(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
        audited = [
            plan.pieces(Part(unit, block, block + 1)) for unit in plan.all_units
            for block in audit.blocks(round_, unit, plan.blocks)
        ]  # fmt: skip
        bits.part = 1.0 if (piece,) in audited else 0.0
        gradient(piece, model, round_, out, node)

    bits.gradient = wrong_where_audited  # type: ignore[method-assign]
    journal, _ = bits.run()
    drawn = {round_ for round_ in range(1, 41) if audit.blocks(round_, 0, plan.blocks)}
    assert 8 < len(drawn) < 40
    assert {round_ for _, round_ in found(journal)} <= set(bits.rounds_of("flips")) <= drawn
    assert {node for node, _ in found(journal)} == {1}


@BOTH
@pytest.mark.parametrize("forgetful", [0, 2], ids=["rank 0", "rank 2"])
def test_memory_that_forgets_a_bit_is_found(
    tmp_path: Path, shared_memory: bool, forgetful: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """After a part is complete, where it lies: every one of these would have been in the sum."""
    bits = Audited(tmp_path, wrong=-1, part=0.0, rounds=20, shared_memory=shared_memory)
    bits.settings = replace(bits.settings, least_head_start=2.0)  # who forgets computes its part itself, however busy
    seal, draw, seen = Exchange.seal, random.Random(7), set()

    def forget(exchange: Exchange, part: Part, vector: np.ndarray) -> None:
        seal(exchange, part, vector)
        if exchange._node == forgetful and (exchange._round, part) not in seen:
            seen.add((exchange._round, part))
            vector[:] = flipped_anywhere(vector, draw)
            bits.write("forgotten", exchange._round)

    monkeypatch.setattr(Exchange, "seal", forget)
    bits.run()
    assert len(bits.rounds_of("forgotten")) > (12 if forgetful == 0 else 2)


def test_two_that_differ_and_nobody_to_decide_end_the_run(tmp_path: Path) -> None:
    bits = Audited(tmp_path, wrong=1, part=1.0, ranks=2, rounds=4)
    with pytest.raises(CodedReduceError, match="other bits than another"):
        bits.run()


def test_the_bits_do_not_follow_from_the_audits() -> None:
    job = {"rounds": 6, "scheme": Striped(3)}
    source = synthetic(300, 20)
    plain, looked_at = (train(LogisticRegression(), source, audit=audit, **job) for audit in (None, 0.5))
    assert plain.parameters.tobytes() == looked_at.parameters.tobytes()


@pytest.mark.parametrize(
    "scheme",
    [MasterWorker(4), RingAllReduce(4), CodedReduce(Tree.regular(fanout=2, depth=2), 1), Striped(4, reach=1)],
    ids=str,
)
def test_where_nobody_computes_the_same_audits_are_refused(scheme) -> None:
    with pytest.raises(SchemeError, match=r"audit|compare"):
        train(LogisticRegression(), synthetic(300, 20), scheme=scheme, rounds=2, audit=0.1)


def test_a_run_that_is_audited_is_striped_if_no_scheme_is_named() -> None:
    source = synthetic(300, 20)
    sides = ({"audit": 0.5}, {"scheme": Striped(DEFAULT_WORKERS)})
    audited, striped = (train(LogisticRegression(), source, rounds=3, **side) for side in sides)
    assert audited.parameters.tobytes() == striped.parameters.tobytes()


@pytest.mark.parametrize("options", [{"audit": -0.1}, {"audit": 1.5}, {"audit": 0.1, "quarantine": 0}], ids=str)
def test_what_cannot_be_is_refused(options: dict) -> None:
    with pytest.raises(UsageError):
        train(LogisticRegression(), synthetic(300, 20), rounds=2, **options)


def wrong_on_rank_2(model: torch.nn.Module, batch) -> torch.Tensor:
    """A gradient that is a little off, in every third piece: nothing that anybody would see in a loss."""
    global calls
    calls += 1
    is_wrong = os.environ["RANK"] == "2" and calls > 6 and calls % 3 == 0
    return losses(model, batch) * (1 + 1e-6 * is_wrong)


calls = 0


def test_a_script_whose_gradients_are_wrong_on_one_rank(tmp_path: Path) -> None:
    """It is found and left out, and all ranks end with the bits of a run in which nothing was wrong."""

    def script(folder: Path, what: Callable) -> Callable[[], None]:
        def trains() -> None:
            model = Model(dropout=0.2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            notes = []
            with cr.join(on_note=lambda note: notes.append(note.reason)) as cluster:
                for _ in cluster.train(model, data(), what, BATCH, 8, seed=3, state=[optimizer]):
                    optimizer.step()
            (folder / f"{cluster.rank}").write_text(digest(*model.parameters()))
            (folder / f"notes of {cluster.rank}").write_text("\n".join(notes))

        return trains

    for name, what, audit in (("right", losses, 0.0), ("wrong", wrong_on_rank_2, 1.0)):
        (tmp_path / name).mkdir()
        outcome = run(script(tmp_path / name, what), audit=audit)
        assert set(outcome.codes.values()) == {0}, outcome
    assert "rank 2 computed block" in (tmp_path / "wrong" / "notes of 0").read_text()
    assert bits_of(tmp_path / "right") == bits_of(tmp_path / "wrong")
