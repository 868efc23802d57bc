"""Hugging Face Transformers: a `Trainer` that does not wait for stragglers.

    from codedreduce.transformers import CodedReduceTrainer

    trainer = CodedReduceTrainer(model, args, train_dataset=dataset)   # as Trainer
    trainer.train()

Started by `codedreduce run`, torchrun, mpiexec or srun. docs/pytorch.md tells more.

What lives here: `trainer` what a script sees, `rounds` its loader, `losses` sums over items, `place` where it stands,
`arguments` which rank this is.
"""

from codedreduce._extras import require

require("torch", extra="transformers")
require("transformers", extra="transformers")
require("accelerate", extra="transformers")

from codedreduce.transformers.arguments import TrainingArguments  # noqa: E402
from codedreduce.transformers.trainer import CodedReduceTrainer  # noqa: E402

__all__ = ["CodedReduceTrainer", "TrainingArguments"]
