"""Hugging Face Transformers: a `Trainer` that does not wait for stragglers.

    from codedreduce.transformers import CodedReduceTrainer

    trainer = CodedReduceTrainer(model, args, train_dataset=dataset)   # as Trainer
    trainer.train()

Start it with `codedreduce run`, torchrun, mpiexec or srun. See docs/pytorch.md.

`trainer` is the interface for scripts and replaces its loader, `losses` sums over items, `trainer_state` has its
counters, `arguments` sets its rank.
"""

from codedreduce._extras import require

require("torch", extra="transformers")
require("transformers", extra="transformers")
require("accelerate", extra="transformers")

from codedreduce.transformers.arguments import TrainingArguments  # noqa: E402
from codedreduce.transformers.trainer import CodedReduceTrainer  # noqa: E402

__all__ = ["CodedReduceTrainer", "TrainingArguments"]
