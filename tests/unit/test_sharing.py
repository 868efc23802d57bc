"""Who is given which blocks, who keeps how much, and what idle ranks take over."""

from __future__ import annotations

import pytest

from codedreduce.protocol.leader.distribution import Allotment, Sending, Speed, share_out, stripe_weights, through_at
from codedreduce.protocol.leader.stragglers import Helper, Rest, relieve
from codedreduce.schemes import Part

BLOCKS = 8
STUCK = float("inf")


def anybody(rank: int, unit: int) -> bool:
    return True


def speeds(*slowness: float) -> dict[int, Speed]:
    return {rank: Speed(block=each / BLOCKS) for rank, each in enumerate(slowness)}


def covered(loads: dict[int, Allotment]) -> list[tuple[int, int]]:
    return sorted(
        (part.unit, block) for load in loads.values() for part in load.parts() for block in range(part.first, part.last)
    )


def everything(units: int) -> list[tuple[int, int]]:
    return [(unit, block) for unit in range(units) for block in range(BLOCKS)]


@pytest.mark.parametrize("vector", [0.0, 0.01, 0.3, 3.0])
@pytest.mark.parametrize("slowness", [(1.0,) * 6, (1, 1, 2, 2, 4, 4), (1, 1, 1, 1, 1, 50), (3, 1, 2)])
def test_every_block_is_given_once(slowness: tuple[float, ...], vector: float) -> None:
    loads = share_out(len(slowness), BLOCKS, speeds(*slowness), anybody, vector)
    assert covered(loads) == everything(len(slowness))


def test_who_is_about_as_quick_as_the_others_does_its_own_unit() -> None:
    loads = share_out(4, BLOCKS, speeds(1.0, 1.04, 0.97, 1.06), anybody, 0.01)
    assert [load.parts() for load in loads.values()] == [[Part(unit, 0, BLOCKS)] for unit in range(4)]


def test_unequal_ranks_are_through_at_the_same_time() -> None:
    known = speeds(1, 1, 2, 2, 4, 4)
    loads = share_out(6, BLOCKS, known, anybody, 0.001)
    finish = [loads[rank].blocks * known[rank].block for rank in known]
    assert max(finish) <= 1.05 * 6 / sum(1 / each for each in (1, 1, 2, 2, 4, 4))


def test_long_vectors_move_as_whole_units_or_not_at_all() -> None:
    known = speeds(1, 1, 1, 1, 1, 3)
    loads = share_out(6, BLOCKS, known, anybody, 1.0)
    assert all(part.blocks == BLOCKS for load in loads.values() for part in load.parts())
    stay = {rank: Allotment({rank: BLOCKS}) for rank in range(6)}
    assert through_at(loads, known, 1.0) < through_at(stay, known, 1.0)
    assert share_out(6, BLOCKS, known, anybody, 9.0)[5].parts() == [Part(5, 0, BLOCKS)]


def test_units_of_absent_ranks_are_done_by_the_others() -> None:
    known = {rank: speed for rank, speed in speeds(1, 1, 1, 1, 1, 1).items() if rank not in (2, 3)}
    loads = share_out(6, BLOCKS, known, anybody, 0.001)
    assert covered(loads) == everything(6)
    assert {load.blocks for load in loads.values()} == {12}


def test_work_goes_to_those_that_can_read_it() -> None:
    loads = share_out(4, BLOCKS, speeds(1, 5, 1, 1), lambda rank, unit: rank // 2 == unit // 2, 0.001)
    assert covered(loads) == everything(4)
    assert all(part.unit // 2 == rank // 2 for rank, load in loads.items() for part in load.parts())


def test_a_thousand_ranks_with_slow_ones_among_them() -> None:
    known = speeds(*(10.0 if rank % 10 == 0 else 1.0 for rank in range(1000)))
    loads = share_out(1000, BLOCKS, known, anybody, 0.001)
    assert len(covered(loads)) == 1000 * BLOCKS
    assert max(load.blocks * known[rank].block for rank, load in loads.items()) <= 1.26


def test_whoever_sends_later_keeps_less_and_nobody_keeps_more_than_most() -> None:
    plans = {rank: Sending(ready=1.0, sent=2.0) for rank in range(5)}
    weights = stripe_weights({**plans, 5: Sending(ready=1.2, sent=2.6), 6: Sending(ready=0.0, sent=0.0)}, 1.0)
    assert weights[5] < weights[0] == weights[6] == 16
    assert set(stripe_weights({**plans, 5: Sending(ready=1.05, sent=2.05)}, 1.0).values()) == {16}


# -- what is taken over


def helpers(count: int, block: float = 1.0, link: float = 0.0) -> list[Helper]:
    return [Helper(rank=rank, block=block, link=link) for rank in range(count)]


def test_what_is_begun_stays_with_a_rank_that_is_under_way() -> None:
    for done in range(BLOCKS - 1):
        relief = relieve(Rest(part=Part(9, 0, BLOCKS), pace=5.0, done=done, begun=done + 1), helpers(5), 0.0, 6)
        if relief is not None:
            assert relief.end > done
            taken = sorted(part.first for _, parts in relief.parts for part in parts)
            assert taken == list(range(relief.end, BLOCKS))


def test_nothing_is_taken_from_a_rank_that_is_nearly_through() -> None:
    assert relieve(Rest(part=Part(9, 0, BLOCKS), pace=1.0, done=7, begun=8), helpers(5), 0.0, 6) is None
    assert relieve(Rest(part=Part(9, 0, BLOCKS), pace=1.0, done=6, begun=7), helpers(5), 4.0, 6) is None


def test_all_is_taken_from_a_rank_that_is_stuck_its_first_block_last() -> None:
    relief = relieve(Rest(part=Part(9, 0, BLOCKS), pace=STUCK), helpers(3), 0.001, 6)
    assert relief is not None
    assert relief.end == 1
    assert sorted(part.first for _, parts in relief.parts for part in parts) == list(range(BLOCKS))
    assert [parts[-1].first for _, parts in relief.parts if any(part.first == 0 for part in parts)] == [0]


def test_long_vectors_are_taken_in_one_go_by_whoever_has_a_free_link() -> None:
    relief = relieve(Rest(part=Part(9, 0, BLOCKS), pace=STUCK), helpers(3, block=0.1), 10.0, 6)
    assert relief is not None
    assert relief.parts == ((0, (Part(9, 0, BLOCKS),)),)


def test_a_link_that_is_busy_is_no_help() -> None:
    rest = Rest(part=Part(9, 0, BLOCKS), pace=1.0, done=4, begun=5)
    assert relieve(rest, helpers(2), 0.5, 6) is not None
    assert relieve(rest, helpers(2, link=5.0), 0.5, 6) is None
