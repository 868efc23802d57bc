import pytest

from codedreduce import (
    CodedReduce,
    GradientCoding,
    LiveCompensation,
    MasterWorker,
    RingAllReduce,
    Scheme,
    Striped,
    Tree,
)

from .check_world import check_world, local, simulated

TREE = Tree.regular(fanout=2, depth=2)
SCHEMES: list[Scheme] = [
    MasterWorker(4),
    GradientCoding(4, 1),
    GradientCoding(5, 2, code="cyclic"),
    LiveCompensation(4, wait_for=4, blocks=2),  # it waits for all, so it is exact
    CodedReduce(TREE, 1),
    CodedReduce(TREE, 1, order="eager"),
    CodedReduce(TREE, 1, order="eager", code="cyclic"),
    CodedReduce(Tree.balanced(workers=7, fanout=4, stragglers=1), 1),
    RingAllReduce(4),
    Striped(4),
    Striped(5, reach=2, blocks=2),
    Striped(3, stripes=2),
    Striped(1),
]
WORLDS = {
    "simulated": simulated,
    "shared memory": local(shared_memory=True),
    "sockets": local(shared_memory=False),
}


STRIPED: list[Scheme] = [
    Striped(1),
    Striped(4, stripes=4),
    Striped(5, reach=2, blocks=3, stripes=2),
    Striped(6, blocks=1),
]


@pytest.mark.parametrize("scheme", STRIPED, ids=str)
@pytest.mark.parametrize(("parameters", "chunk"), [(500, 1 << 18), (5000, 640)])
def test_simulated_world_of_ranks(scheme: Scheme, parameters: int, chunk: int) -> None:
    check_world(simulated, scheme, parameters=parameters, chunk=chunk)


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(("parameters", "chunk"), [(500, 1 << 18), (5000, 640)])
def test_world(world, scheme: Scheme, parameters: int, chunk: int) -> None:
    check_world(world, scheme, parameters=parameters, chunk=chunk)
