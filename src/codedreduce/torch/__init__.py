"""PyTorch: exact data-parallel training that does not wait for stragglers, in an ordinary script.

    import codedreduce.torch as cr

    def losses(model, batch):                      # one loss per sample, no reduction
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="none")

    with cr.join() as cluster:
        for step in cluster.train(model, dataset, losses, batch_size=1024, steps=1000):
            optimizer.step()                       # on every rank: .grad is the exact mean gradient of the batch

Started by `codedreduce run`, torchrun, mpiexec or srun. docs/pytorch.md tells more.

What lives here: `cluster` what a script sees, `step` what a loop body is given, `shared` a run that trainings share,
`member` one of them, `places` where it takes place, `book` which round is for what, `marks` how that is said in
vectors, `asked` computing whatever it is, `task` what is trained, `given` what losses may give, `rehearsal` what is
tried before the first round, with `still` randomness held still and `fingerprint` whether samples are the same,
`reading` samples made a batch of, `loading` the same in other processes, ahead, `shipping` how batches come from
there, `compiling` what `torch.compile` makes, once a machine, `seeding` random generators, `stepping` optimizers that
find no gradients, `unit` a forward and a backward pass, `layout` a model as a vector, `running` what batch
normalisation remembers, `replica` a model and its optimizer as bytes, `loaders` what a `DataLoader` says, `sharing`
what one rank knows, on all.
"""

from codedreduce._extras import require

require("torch", extra="torch")

from codedreduce.torch.cluster import Cluster, join  # noqa: E402
from codedreduce.torch.epochs import by_epoch  # noqa: E402
from codedreduce.torch.launching import launch  # noqa: E402
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
