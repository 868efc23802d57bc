"""The arguments of a `Trainer` in a run: which rank this is, and what cannot be had."""

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

#: By which Accelerate takes a process for one of several.
_LAUNCHED = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip


class TrainingArguments(PlainArguments):
    """Those of Transformers, which under a launcher do not connect by torch.distributed.

    A process that is started again needs them: the others are connected already, and nobody would answer it.
    """

    @cached_property
    def _setup_devices(self) -> torch.device:
        with _not_launched():
            return super()._setup_devices


def adopt(args: PlainArguments, cluster: Cluster) -> None:
    """Have the arguments know which rank this is, and nothing of other processes: the run is what connects them.

    Transformers prepares for torch.distributed when arguments are made, under a launcher. That is undone.
    """
    _check(args)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _leave()
        vars(args).pop("_setup_devices", None)
        with _not_launched():
            _ = args.device
    args._n_gpu = min(1, args._n_gpu)  # a device a rank
    local = int(os.environ.get("LOCAL_RANK", cluster.rank))
    state: Any = args.distributed_state
    if args.device.type == "cuda":
        state.device = torch.device("cuda", local % torch.cuda.device_count())
        vars(args)["_setup_devices"] = state.device
        torch.cuda.set_device(state.device)
    state.local_process_index = local
    lead(args, cluster)


def lead(args: PlainArguments, cluster: Cluster) -> None:
    """Have the rank save that leads: rank 0, or another after its death."""
    state: Any = args.distributed_state
    state.process_index = 0 if cluster.is_root else max(1, cluster.rank)


def _leave() -> None:
    """Leave the process group when all are in it: one that is still connecting would find us gone, and give up.

    Whoever passes the barrier knows that all are in, so that one who finds another gone there knows it as well.
    """
    if torch.distributed.get_backend() == "gloo":  # others connect when they are first used
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
    """Refuse what would not be as it is said."""
    for name, instead in {
        "deepspeed": "ranks have whole models",
        "fsdp": "ranks have whole models",
        "parallelism_config": "ranks have whole models",
        "auto_find_batch_size": "say how many samples go through the model at once: micro_batch=",
        "fp16": "losses are not scaled; use bf16",
    }.items():
        if getattr(args, name, None):
            raise UsageError(f"{name}={getattr(args, name)!r} cannot be had with CodedReduceTrainer: {instead}")
    if getattr(args, "include_num_input_tokens_seen", "no") not in (False, "no"):
        raise UsageError("include_num_input_tokens_seen: no rank sees all inputs; leave it out")
    if str(getattr(args.optim, "value", args.optim)) in ("lomo", "adalomo"):
        raise UsageError(f"optim={args.optim} steps while gradients are computed, and not when they are summed")
