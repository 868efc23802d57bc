"""Lightning: a strategy for a `Trainer` that does not wait for stragglers.

    from codedreduce.lightning import CodedReduceStrategy

    trainer = Trainer(strategy=CodedReduceStrategy(), max_epochs=10)
    trainer.fit(module, DataLoader(dataset, batch_size=32, shuffle=True))

Start it with `codedreduce run`, torchrun, mpiexec or srun. See docs/pytorch.md.

`strategy` is passed to the `Trainer` and replaces its loader, `logged` collects what a training step logs, `fit_state`
has the counters of its loops, `refused` checks for what is not supported.
"""

from codedreduce._extras import require

require("torch", extra="lightning")
require("lightning", extra="lightning")

from codedreduce.lightning.strategy import CodedReduceStrategy  # noqa: E402

__all__ = ["CodedReduceStrategy"]
