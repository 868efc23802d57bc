"""Lightning: a `Trainer` that does not wait for stragglers, by its strategy.

    from codedreduce.lightning import CodedReduceStrategy

    trainer = Trainer(strategy=CodedReduceStrategy(), max_epochs=10)
    trainer.fit(module, DataLoader(dataset, batch_size=32, shuffle=True))

Started by `codedreduce run`, torchrun, mpiexec or srun. docs/pytorch.md tells more.

What lives here: `strategy` what a `Trainer` is given, `rounds` its loader, `logged` what a training step logs,
`place` where loops stand, `refused` what cannot be had.
"""

from codedreduce._extras import require

require("torch", extra="lightning")
require("lightning", extra="lightning")

from codedreduce.lightning.strategy import CodedReduceStrategy  # noqa: E402

__all__ = ["CodedReduceStrategy"]
