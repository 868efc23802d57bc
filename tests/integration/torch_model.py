"""The model, data and losses of the PyTorch tests, and a run of them in forked processes."""

import torch
import torch.nn.functional as F  # noqa: N812
from bench.forked import Outcome, run_forked
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).step()  # loads what optimizers need, once for all ranks

BATCH = 36


class Model(nn.Module):
    """Dropout, a frozen layer, a layer that is never used."""

    def __init__(self, dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(10, 20, dtype=dtype)
        self.frozen = nn.Linear(20, 20, dtype=dtype).requires_grad_(False)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(20, 4, dtype=dtype)
        self.unused = nn.Linear(3, 3, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.dropout(torch.tanh(self.frozen(torch.tanh(self.first(x))))))


def data(dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200, 10, generator=generator, dtype=torch.float64)
    return TensorDataset(x.to(dtype), torch.randint(0, 4, (200,), generator=generator))


def losses(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def run_ranks(function, workers: int = 6, tree: str = "2x2", **variables) -> Outcome:
    """A root and its workers; variables as the launcher sets them."""
    chosen = {"tree": tree, "orphaned_after": 3, **variables}  # whose parent was killed need not wait for long
    return run_forked(function, workers + 1, {f"CODEDREDUCE_{key.upper()}": str(chosen[key]) for key in chosen})
