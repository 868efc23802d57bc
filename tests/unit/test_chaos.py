"""A schedule of faults: drawn alike from one seed, bounded, written down and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from codedreduce.errors import UsageError
from codedreduce.lab.chaos import schedule
from codedreduce.lab.chaos.chaos_run import ChaosProgress
from codedreduce.lab.chaos.diary import Diaries, Diary, RoundDone
from codedreduce.lab.chaos.schedule import KINDS, ChaosFault, drawn


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    assert drawn(20, 600.0, seed=7) == drawn(20, 600.0, seed=7)
    assert drawn(20, 600.0, seed=7) != drawn(20, 600.0, seed=8)


@pytest.mark.parametrize("nodes", [3, 7, 20, 21])
def test_every_kind_is_drawn_and_never_too_many_at_once(nodes: int) -> None:
    found = drawn(nodes, 1200.0, seed=3)
    assert len(found) == 1200
    assert {fault.kind for fault in found} == set(KINDS) - ({"partition"} if nodes < 6 else set())
    for fault in found:
        on = [one for one in found if one.at <= fault.at < one.until]
        disturbed = [node for one in on for node in one.nodes]
        assert len(disturbed) == len(set(disturbed)), "something happens twice to one node"
        lasting = {node for one in on if one.kind != "reset" for node in one.nodes}
        assert len(lasting) <= max(1, nodes // 3)
        assert all(0 <= node < nodes for node in fault.nodes)


def test_the_root_is_not_spared() -> None:
    assert any(0 in fault.nodes and fault.kind == "kill" for fault in drawn(20, 600.0, seed=7))


def test_a_schedule_is_written_and_read(tmp_path: Path) -> None:
    found = drawn(7, 60.0, seed=1)
    schedule.write(tmp_path / "trace", found)
    assert schedule.read(tmp_path / "trace") == found


@pytest.mark.parametrize("text", ["not json", '{"at": 1}', '{"at": 1, "kind": "fire", "nodes": [1], "seconds": 1}'])
def test_what_is_not_a_schedule_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(UsageError, match="is not a schedule of faults"):
        schedule.read(tmp_path / "trace")


def test_a_schedule_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        schedule.read(tmp_path / "nothing")


def test_what_processes_wrote_is_read_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    diary, diaries = Diary(tmp_path), Diaries(tmp_path)
    diary.round(1, leads=True)
    assert [(done.round, done.rank, done.leads) for done in diaries.news()] == [(1, 3, True)]
    assert list(diaries.news()) == []
    with (tmp_path / "rounds-3").open("a") as file:
        file.write("2 17")  # killed in the middle of a line
    assert list(diaries.news()) == []
    assert not diary.is_to_stop()
    diaries.stop()
    assert diary.is_to_stop()


def test_rounds_that_nobody_finished_are_lost_and_pauses_are_between_first_ends() -> None:
    progress = ChaosProgress(planned=0, seconds=1.0)
    for round_, at, rank in [(1, 1.0, 0), (1, 1.5, 1), (2, 2.0, 1), (4, 7.0, 0)]:
        progress.add(RoundDone(round_, at, False, rank))
    assert progress.rounds == 4
    assert progress.lost == 1
    assert progress.pauses() == [1.0, 5.0]
    assert progress.after(2.5) == 4.5
    assert ChaosFault(at=1.0, kind="kill", nodes=(1,), seconds=2.0).until == 3.0
