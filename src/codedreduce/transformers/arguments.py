"""The arguments of a `Trainer` in a run: sets the rank, and refuses options that are not supported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import torch
from transformers import TrainingArguments as PlainArguments

from codedreduce.errors import UsageError
from codedreduce.torch.cluster import Cluster

#: The variables by which Accelerate detects that a process is one of several.
_LAUNCHED = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip


class TrainingArguments(PlainArguments):
    """Transformers' arguments without the connection by torch.distributed under a launcher.

    A restarted process needs them: the others are connected already, and none would answer it.
    """

    @cached_property
    def _setup_devices(self) -> torch.device:
        with _not_launched():
            return super()._setup_devices


def adopt(args: PlainArguments, cluster: Cluster) -> None:
    """Set this rank in the arguments, and hide the other processes from them: the run connects the processes.

    Under a launcher, Transformers sets up torch.distributed when arguments are made. This function undoes that.
    """
    _check(args)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _leave()
        vars(args).pop("_setup_devices", None)
        with _not_launched():
            _ = args.device
    args._n_gpu = min(1, args._n_gpu)  # one device per rank
    local = int(os.environ.get("LOCAL_RANK", cluster.rank))
    state: Any = args.distributed_state
    if args.device.type == "cuda":
        state.device = torch.device("cuda", local % torch.cuda.device_count())
        vars(args)["_setup_devices"] = state.device
        torch.cuda.set_device(state.device)
    state.local_process_index = local
    lead(args, cluster)


def lead(args: PlainArguments, cluster: Cluster) -> None:
    """Let the leader save: rank 0, or another rank after it fails."""
    state: Any = args.distributed_state
    state.process_index = 0 if cluster.is_root else max(1, cluster.rank)


def _leave() -> None:
    """Leave the process group after all processes have joined; else one that is still connecting would fail.

    A process leaves after it passes the barrier, when all have joined. If the barrier fails in another process because
    this one has left, all have joined as well.
    """
    if torch.distributed.get_backend() == "gloo":  # other backends connect when they are first used
        with suppress(RuntimeError):
            torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@contextmanager
def _not_launched() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _check(args: PlainArguments) -> None:
    """Refuse arguments that cannot work as specified."""
    for name, instead in {
        "deepspeed": "every rank has the whole model; leave it out",
        "fsdp": "every rank has the whole model; leave it out",
        "parallelism_config": "every rank has the whole model; leave it out",
        "auto_find_batch_size": "set the number of samples of one pass by micro_batch=",
        "fp16": "losses are not scaled; use bf16",
    }.items():
        if getattr(args, name, None):
            raise UsageError(f"{name}={getattr(args, name)!r} is not supported by CodedReduceTrainer: {instead}")
    if getattr(args, "include_num_input_tokens_seen", "no") not in (False, "no"):
        raise UsageError("include_num_input_tokens_seen: no rank sees all inputs; leave it out")
    if str(getattr(args.optim, "value", args.optim)) in ("lomo", "adalomo"):
        raise UsageError(f"optim={args.optim} steps before gradients are summed over the ranks; use another optimizer")
