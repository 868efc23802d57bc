"""Lightning: a `Trainer` that does not wait for stragglers, by its strategy.

    from codedreduce.lightning import CodedReduceStrategy

    trainer = Trainer(strategy=CodedReduceStrategy(), max_epochs=10)
    trainer.fit(module, DataLoader(dataset, batch_size=32, shuffle=True))

Started by `codedreduce run`, torchrun, mpiexec or srun. docs/pytorch.md tells more.

`strategy` is passed to the `Trainer`, `round_loader` replaces its loader, `logged` has what a training step logs,
`fit_state` the counters of its loops; `refused` lists what is not supported.
"""

from codedreduce._extras import require

require("torch", extra="lightning")
require("lightning", extra="lightning")

from codedreduce.lightning.strategy import CodedReduceStrategy  # noqa: E402

__all__ = ["CodedReduceStrategy"]
