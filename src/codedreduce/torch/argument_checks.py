"""Checks of calls to `train`: mistakes are found before the run, such as a missing loop or an unknown argument."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import torch
from torch import nn

from codedreduce.errors import UsageError
from codedreduce.torch.live_table import TellsSteps

if TYPE_CHECKING:
    from codedreduce.torch.cluster import Cluster
    from codedreduce.torch.rounds.step import Step

P = ParamSpec("P")

#: Wrappers that sum gradients among processes or devices themselves, by the name of their class.
WRAPPERS = {
    "DistributedDataParallel": "model.module, or leave the wrapper out",
    "DataParallel": "model.module, or leave the wrapper out",
    "FullyShardedDataParallel": "the model as it was before it was wrapped: codedreduce does not shard models",
    "FSDPModule": "the model as it was before fully_shard(): codedreduce does not shard models",
}


def check_not_wrapped(model: nn.Module) -> None:
    """Refuse a model that is not one initialized module, or is in a wrapper that waits for processes by itself.

    >>> check_not_wrapped(nn.Linear(2, 2))
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"the model is a {type(model).__name__}; train(...) takes one torch.nn.Module: combine several into one, "
            "nn.ModuleList([encoder, decoder])"
        )
    for name, one in model.named_parameters():
        if isinstance(one, nn.parameter.UninitializedParameter):
            raise UsageError(
                f"the parameter {name!r} has no shape yet, because its module is lazy: call the model on a sample "
                "before you give it to an optimizer and to train(...)"
            )
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
                raise UsageError(
                    f"the model is wrapped in {kind.__name__}, which sums gradients itself; give train(...) "
                    f"{WRAPPERS[kind.__name__]}; use the same in losses"
                )


def device_of(device: torch.device | str) -> torch.device:
    """Return the device, if this process can use it.

    >>> device_of("cpu")
    device(type='cpu')
    """
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(
            f"device={str(device)!r} cannot be used: {why}; give a device that this process has, or leave device= out "
            "to compute where the model is"
        ) from error
    return where


#: What to use in `train` instead of arguments of torch's DataLoader, or of other trainers.
INSTEAD = {
    "batch_sampler": "sampler=, a function of (seed, round) that gives the samples of the batch",
    "generator": "seed=",
    "in_order": "nothing: the order of batches follows from the seed",
    "multiprocessing_context": "num_workers=, the number of processes that load samples",
    "persistent_workers": "num_workers=; its processes persist until the training is over",
    "pin_memory": "device= to move batches there, and num_workers= to load them ahead",
    "pin_memory_device": "device=",
    "prefetch_factor": "prefetch=, the number of rounds that are loaded ahead",
    "shuffle": "nothing to shuffle again in every epoch, or sampler=cr.Sequential() to keep the order of the dataset",
    "timeout": "nothing: the run does not wait for a late process",
    "worker_init_fn": "nothing: random generators are seeded for every sample",
    **dict.fromkeys(("dataloader", "loader", "train_loader"), "dataset=loader.dataset and batch_size="),
    **dict.fromkeys(("lr", "optimizer", "scheduler"), "optimizer.step() in the loop body, and state=[optimizer]"),
    **dict.fromkeys(("criterion", "loss", "loss_fn"), "losses=, a function of (model, batch): a loss for each sample"),
    **dict.fromkeys(("max_epochs", "n_epochs", "num_epochs", "num_train_epochs"), "epochs="),
    **dict.fromkeys(("max_steps", "num_steps", "rounds"), "steps="),
    **dict.fromkeys(
        ("accumulate_grad_batches", "accumulation_steps", "gradient_accumulation_steps"),
        "batch_size= for all of them together, and micro_batch= for what fits in memory",
    ),
    **dict.fromkeys(("clip_grad_norm", "gradient_clip_val", "max_grad_norm"), "clip_grad_norm_() in the loop body"),
}


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that `train` does not have, and name what to use instead.

    >>> check_names(["seed", "shufle"], ["seed", "sampler"])
    Traceback (most recent call last):
    codedreduce.errors.UsageError: train() has no shufle=
    >>> check_names(["sede"], ["seed", "sampler"])
    Traceback (most recent call last):
    codedreduce.errors.UsageError: train() has no sede=: use seed=
    """
    known = list(known)
    said = []
    for name in given:
        if name not in known:
            like = difflib.get_close_matches(name, known, n=1)
            instead = INSTEAD.get(name) or (f"{like[0]}=" if like else None)
            said.append(f"{name}={f': use {instead}' if instead else ''}")
    if said:
        raise UsageError(f"train() has no {'; and no '.join(said)}")


class Loops:
    """Records whether the script iterates over what `train` returned."""

    def __init__(self) -> None:
        self._waiting = 0  # trainings that nothing has iterated over

    def over(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Return the same steps, and record when the script begins to iterate."""
        self._waiting += 1

        def looped() -> Iterator[Any]:
            self._waiting -= 1
            yield from steps

        return looped()

    def check(self) -> None:
        """Raise an error if the script never iterated over a training, so that nothing was trained."""
        if self._waiting:
            raise UsageError(
                "cluster.train(...) was called, but nothing was trained: it trains only while you iterate over it. "
                "Write `for step in cluster.train(...):` with optimizer.step() in the loop"
            )


def noticing_loops(
    train: Callable[Concatenate[Cluster, P], Iterator[Step]],
) -> Callable[Concatenate[Cluster, P], Iterator[Step]]:
    """Decorate a method that yields steps: check its arguments, record whether it is iterated, report its steps."""

    known = list(inspect.signature(train).parameters)

    @functools.wraps(train)
    def noticing(cluster: Cluster, /, *args: P.args, **named: P.kwargs) -> Iterator[Step]:
        check_names(named, known)
        return cluster.loops.over(_telling(cluster, train(cluster, *args, **named)))

    return noticing


def _telling(cluster: Cluster, steps: Iterator[Step]) -> Iterator[Step]:
    """Yield the same steps, and report them to the launcher for its live table."""
    tells = TellsSteps()
    try:
        for step in steps:
            tells.over(step, leads=cluster.is_root)
            yield step
        tells.rest()
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            close()
