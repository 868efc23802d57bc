"""Trainings whose vectors are tensors: the same bits as with the host's arrays, however they are added up."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import codedreduce.torch as cr
from codedreduce import CodedReduce, Scheme, Striped, Tree
from codedreduce.torch.device import pinned
from codedreduce.torch.device.device_sums import add_up
from codedreduce.torch.rounds import roles
from codedreduce.vectors import combine, empty_like, is_finite, on_host, round_off

from .tensors import HERE, TensorMemory
from .test_torch_striped import digest
from .torch_model import BATCH, Model, data, losses, run_forked


def trained(out: Path, scheme: Scheme | None) -> None:
    model = Model(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with cr.join(scheme) as cluster:
        for _ in cluster.train(model, data(), losses, BATCH, 6, seed=3, state=[optimizer]):
            optimizer.step()
        (out / f"{cluster.rank}").write_text(digest(*model.parameters()))


@pytest.mark.parametrize("inject", ["", "worker:2:0.5:0.2s"], ids=["calm", "stalls"])
def test_in_stripes(inject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"CODEDREDUCE_INJECT": inject} if inject else {}
    assert run_forked(lambda: trained(tmp_path, Striped(3)), 3, {}).codes == {0: 0, 1: 0, 2: 0}
    expected = (tmp_path / "0").read_text()
    os.unlink(tmp_path / "0")
    monkeypatch.setattr(roles, "memory_for", lambda device, run: TensorMemory())
    outcome = run_forked(lambda: trained(tmp_path, Striped(3)), 3, said)
    assert outcome.codes == {0: 0, 1: 0, 2: 0}, outcome.errors
    assert [(tmp_path / f"{rank}").read_text() for rank in range(3)] == [expected] * 3


@pytest.mark.parametrize("scheme", [None, Striped(3), CodedReduce(Tree.regular(fanout=2, depth=2), 1)], ids=str)
def test_alone(scheme: Scheme | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, scheme)
    expected = (tmp_path / "0").read_text()
    monkeypatch.setattr(roles, "memory_alone", lambda device: TensorMemory())
    trained(tmp_path, scheme)
    assert (tmp_path / "0").read_text() == expected


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_tensors_are_added_as_arrays_are(count: int, dtype: str, weighted: bool) -> None:
    random = np.random.default_rng(count)
    arrays = [random.standard_normal(5000).astype(dtype) for _ in range(count)]
    weights = [float(one) for one in random.choice([0, 1, -0.5, 1.7], count)] if weighted else None
    expected = combine(arrays, weights, np.empty_like(arrays[0]))
    tensors = [torch.from_numpy(one) for one in arrays]
    found = combine(tensors, weights, empty_like(tensors[0]))  # type: ignore[arg-type,type-var]
    assert on_host(found).tobytes() == expected.tobytes()
    if weights is None or weights[0]:
        assert on_host(combine(tensors, weights, tensors[0])).tobytes() == expected.tobytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_kernel_adds_as_arrays_are_added(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton interprets it, without a GPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="Triton comes with PyTorch for GPUs")
    from codedreduce.torch.device.kernels import add_all

    vectors = [torch.randn(5003, dtype=dtype) for _ in range(8)]
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    expected = vectors[0].to(wide, copy=True)
    for vector in vectors[1:]:
        expected += vector.to(wide)
    out = torch.empty(5003, dtype=wide)
    add_all(vectors, out)
    assert torch.equal(out, expected)
    if dtype != torch.bfloat16:  # the interpreter cuts narrow numbers off; a GPU rounds them, see test_torch_cuda
        add_all(vectors, vectors[0])
        assert torch.equal(vectors[0], expected)


def test_narrow_numbers_are_rounded_once() -> None:
    vectors = [torch.randn(5003).to(torch.bfloat16) for _ in range(8)]
    expected = vectors[0].float()
    for vector in vectors[1:]:
        expected += vector.float()
    out = torch.empty_like(vectors[0])
    add_up(vectors, out)
    assert torch.equal(out, expected.to(torch.bfloat16))
    add_up(vectors, vectors[0])
    assert torch.equal(vectors[0], out)


class Mixed(torch.nn.Module):
    """Parameters of several types and layouts, some frozen, some without a gradient, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.convolved = torch.nn.Conv2d(3, 6, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.normalised = torch.nn.BatchNorm2d(6)
        self.frozen = torch.nn.Linear(6, 6).requires_grad_(False)
        self.narrow = torch.nn.Linear(6, 4).to(torch.bfloat16)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.normalised(self.convolved(x.to(memory_format=torch.channels_last))).relu().mean((2, 3))
        return self.narrow(torch.tanh(self.frozen(x)).to(torch.bfloat16)).float()


def mixed(out: Path) -> None:
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    pairs = torch.utils.data.TensorDataset(images, torch.arange(48) % 4)

    def of_pairs(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with cr.join() as cluster:
        for step in cluster.train(
            model, pairs, of_pairs, 24, 4, state=[optimizer], micro_batch=4, coupled="micro-batch"
        ):
            assert model.unused.weight.grad is None
            assert model.frozen.weight.grad is None
            assert model.narrow.weight.grad.dtype == torch.bfloat16
            assert step.loss > 0
            optimizer.step()
        (out / f"{cluster.rank}").write_text(digest(*(one.float() for one in model.state_dict().values())))


def test_types_and_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several dtypes, channels_last, frozen and unused parameters, and what layers remember, are as on the host."""
    assert run_forked(lambda: mixed(tmp_path), 3, {}).codes == {0: 0, 1: 0, 2: 0}
    expected = (tmp_path / "0").read_text()
    os.unlink(tmp_path / "0")
    monkeypatch.setattr(roles, "memory_for", lambda device, run: TensorMemory())
    outcome = run_forked(lambda: mixed(tmp_path), 3, {})
    assert outcome.codes == {0: 0, 1: 0, 2: 0}, outcome.errors
    assert [(tmp_path / f"{rank}").read_text() for rank in range(3)] == [expected] * 3


def test_sums_come_from_the_host_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "AT_ONCE", 64)
    chunks = np.split(np.random.default_rng(0).standard_normal(1000).astype(np.float32), [1, 300, 301, 990])
    memory = pinned.PinnedMemory(HERE)
    for _ in range(2):
        found = memory.gathered(iter(chunks), 1000, np.float32)
        assert isinstance(found, torch.Tensor)
        assert on_host(found).tobytes() == np.concatenate(chunks).tobytes()
    assert memory.gathered([np.ones(3)], 3, np.float64).dtype == torch.float64  # type: ignore[comparison-overlap]


def test_tensors_are_looked_at_as_arrays_are() -> None:
    import ml_dtypes

    array = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    tensor = TensorMemory().from_host(array)
    expected = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    expected[-3:] = array[-3:]
    assert on_host(round_off(tensor, ml_dtypes.bfloat16, exact=3)).tobytes() == expected.tobytes()
    assert round_off(array, ml_dtypes.bfloat16, exact=3).tobytes() == expected.tobytes()
    assert is_finite(tensor)
    tensor[7] = float("nan")
    assert not is_finite(tensor)
    huge = torch.full((10,), 3e38, device=HERE)
    assert is_finite(huge), "though their sum is not"  # type: ignore[arg-type]
