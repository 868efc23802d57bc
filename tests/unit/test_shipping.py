"""Batches on their way from a process that loads them: the same numbers, types and strides, short or long."""

import multiprocessing
from collections.abc import Callable

import pytest
import torch

from codedreduce.torch.data.batch_bytes import SHORT, packed, unpacked

KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.arange(12.0).reshape(3, 4),
    "bfloat16": lambda: torch.arange(12.0).to(torch.bfloat16),
    "bool": lambda: torch.tensor([True, False, True]),
    "complex": lambda: torch.arange(3.0) * 1j,
    "a number": lambda: torch.tensor(7, dtype=torch.int64),
    "nothing": lambda: torch.empty(0, 5),
    "turned": lambda: torch.arange(12.0).reshape(3, 4).T,
    "channels last": lambda: torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part of another": lambda: torch.arange(100.0)[10:20],
    "a parameter's values": lambda: torch.nn.Parameter(torch.arange(4.0)).data,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "long": lambda: torch.arange(SHORT // 4 + 1.0),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.to_dense(), other.to_dense()
    is_alike = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
    return is_alike and torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_batch_comes_as_it_was_in_another_process() -> None:
    def load(end: multiprocessing.connection.Connection) -> None:
        end.send_bytes(packed({name: [make(), name] for name, make in KINDS.items()}))
        end.recv_bytes()  # memory that is shared is asked for here

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=load, args=(there,))
    process.start()
    found = unpacked(here.recv_bytes())
    for name, make in KINDS.items():
        assert same(found[name][0], make()), name
        assert found[name][1] == name
    here.send_bytes(b"taken")
    process.join()
    assert process.exitcode == 0


def test_short_tensors_can_be_written_to_and_share_nothing() -> None:
    data = packed(torch.arange(4.0))
    one, other = unpacked(data), unpacked(data)
    one += 1
    assert one.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert other.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_short_tensors_lie_where_torch_begins_its_own(length: int) -> None:
    """Some kernels round by how memory is aligned, and a batch has the same bits wherever it is read."""
    assert unpacked(packed(torch.ones(length))).data_ptr() % 64 == torch.ones(length).data_ptr() % 64
