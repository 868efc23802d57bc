"""PyTorch: exact data-parallel training that does not wait for stragglers, in an ordinary script.

    import codedreduce.torch as cr

    def losses(model, batch):                      # one loss per sample, no reduction
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="none")

    with cr.join() as cluster:
        for step in cluster.train(model, dataset, losses, batch_size=1024, steps=1000):
            optimizer.step()                       # on every rank: .grad is the exact mean gradient of the batch

Started by `codedreduce run`, torchrun, mpiexec or srun. docs/pytorch.md tells more.

`cluster` is what a script uses, `step` what its loop body is given, `epochs` groups steps by epoch. `training` has what
is trained, `layout` a model as a vector, `model_replica` a model and its optimizer as bytes, `seeding` random
generators. `broadcast` copies an object from one rank to all; `launch_function` starts processes from a notebook,
`live_table` shows rounds there.

- `data/`: batches, from a dataset or a `DataLoader`
- `gradient/`: the gradient of a unit
- `checks/`: what is checked before the first round
- `rounds/`: the trainings of one run, and which round is for which of them
- `device/`: vectors that stay on a GPU
"""

from codedreduce._extras import require

require("torch", extra="torch")

from codedreduce.torch.cluster import Cluster, join  # noqa: E402
from codedreduce.torch.epochs import by_epoch  # noqa: E402
from codedreduce.torch.launch_function import launch  # noqa: E402
from codedreduce.torch.step import Step  # noqa: E402
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
