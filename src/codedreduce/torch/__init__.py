"""PyTorch: exact data-parallel training that does not wait for stragglers, in an ordinary script.

    import codedreduce.torch as cr

    def losses(model, batch):                      # one loss per sample, no reduction
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="none")

    with cr.join() as cluster:
        for step in cluster.train(model, dataset, losses, batch_size=1024, steps=1000):
            optimizer.step()                       # on every rank: .grad is the exact mean gradient of the batch

Start it with `codedreduce run`, torchrun, mpiexec or srun. See docs/pytorch.md.

`cluster` is the interface for scripts, `argument_checks` checks its arguments. `broadcast` copies an object from one
rank to all; `launch_function` starts processes from a notebook, `live_table` shows rounds there. Lowest first:

- `device/`: vectors that stay on a GPU
- `model/`: a model as a vector
- `data/`: batches, from a dataset or a `DataLoader`
- `training/`: what is trained, and the rehearsal before the first round
- `gradient/`: the gradient of a unit
- `rounds/`: the trainings of one run, and which round is for which of them
"""

from codedreduce._extras import require

require("torch", extra="torch")

from codedreduce.torch.cluster import Cluster, join  # noqa: E402
from codedreduce.torch.launch_function import launch  # noqa: E402
from codedreduce.torch.rounds.step import Step, by_epoch  # noqa: E402
from codedreduce.training.batches import batch_indices  # noqa: E402
from codedreduce.training.samplers import Sequential, Shuffled, Weighted, WithReplacement  # noqa: E402

__all__ = [
    "Cluster",
    "Sequential",
    "Shuffled",
    "Step",
    "Weighted",
    "WithReplacement",
    "batch_indices",
    "by_epoch",
    "join",
    "launch",
]
