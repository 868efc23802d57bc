"""A rehearsal before the first round: some samples, together, apart, and twice. What cannot work is found here.

A worker computes some samples of a batch, and another may compute them again. So the loss of a sample must not depend
on the samples beside it (in-batch negatives, batch normalisation by hand), nor on what was computed before (a carried
state, a generator of one's own). Both is tried with samples that the seed draws, and leaves no trace.

Computing in other company also rounds otherwise. With numbers whose steps are e (1.2e-7 in float32) a difference of up
to e^0.65 (3e-5) is taken for rounding, one beyond e^0.5 (3e-4) for a mistake, and between them there is a warning.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from codedreduce.errors import UsageError
from codedreduce.torch.compiling import without_compiling
from codedreduce.torch.fingerprint import fingerprint
from codedreduce.torch.given import Form, Given
from codedreduce.torch.running import normalising
from codedreduce.torch.scaling import scalers_seen
from codedreduce.torch.seeding import drawn, drawn_beside_torch, random_state_kept, seed_everything
from codedreduce.torch.still import computed_still
from codedreduce.training.permutation import Permutation

if TYPE_CHECKING:
    from codedreduce.torch.task import Training

#: How many samples are tried, and how many of them at first when they are computed apart.
TRIED, APART = 8, 3

#: Sets the draw of these samples apart from the orders of epochs.
_DRAW = 0x7E57

_Rows = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was found: what comes beside the losses, what the data is, and what a person should hear of.

    `draws`: whether reading a sample draws random numbers. `is_scaled`: whether losses are, by a `GradScaler`.
    """

    form: Form
    data: str
    draws: bool
    is_scaled: bool
    warnings: tuple[str, ...] = ()


def rehearse(training: Training) -> Rehearsal:
    """Try some samples; refuse what cannot work."""
    count = len(training.dataset)
    most = min(TRIED, count, training.micro_batch or TRIED)
    numbers = np.sort(Permutation(count, [training.seed, _DRAW])(np.arange(most))).tolist()
    with random_state_kept(), torch.no_grad(), _buffers_kept(training.model) as changed, without_compiling():
        samples, draws = _read_twice(training, numbers)
        data = f"data whose samples {', '.join(map(str, numbers))} have the digest {fingerprint(samples)}"
        seed_everything(training.seed, 1, 0)
        with scalers_seen() as scalers, torch.enable_grad():
            first = training.evaluate_samples(samples)
        _check_graph(training, first)
        seed_everything(training.seed, 1, 0)
        with torch.enable_grad():
            again = training.evaluate_samples(samples)
        warnings = [*_compare_twice(first, again, numbers, changed())]
        if training.coupled is None and most > 1:
            warnings += _compare_apart(training, samples, numbers)
    return Rehearsal(form=first.form, data=data, draws=draws, is_scaled=bool(scalers), warnings=tuple(warnings))


def _check_graph(training: Training, given: Given) -> None:
    """Refuse losses from which nothing can be learnt; a model that is frozen altogether is refused as such."""
    if not given.losses.requires_grad and any(one.requires_grad for one in training.model.parameters()):
        raise UsageError(
            "the losses that losses() gives do not depend on any trainable parameter, so there is no gradient: leave "
            "out .detach(), .item(), torch.no_grad() or numpy on the way from the model to them, and compute them "
            "with the model that train(...) was given"
        )


@contextlib.contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[Callable[[], list[str]]]:
    """What a forward pass counts or averages is as it was afterwards; also in other models that it goes through.

    Gives which buffers of the model have changed so far, but for those of layers that normalise, which are handled.
    """
    kept: dict[torch.nn.Module, list[tuple[str, torch.Tensor, torch.Tensor]]] = {}

    def keep(module: torch.nn.Module, given: Any = None) -> None:
        if module not in kept:
            kept[module] = [(name, one, one.detach().clone()) for name, one in module.named_buffers(recurse=False)]

    names = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    for module in names:
        keep(module)

    def changed() -> list[str]:
        free = names.keys() - {one for _, one in normalising(model)}
        return [
            f"{names[module]}{name}"
            for module in names
            for name, one, was in kept[module]
            if module in free and not _are_equal(getattr(module, name), was)
        ]

    hook = register_module_forward_pre_hook(keep)
    try:
        with warnings.catch_warnings():  # of compiled models torch would warn of this hook, which nobody has set
            warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
            yield changed
    finally:
        hook.remove()
        for module, buffers in kept.items():
            for name, one, was in buffers:
                setattr(module, name, one.copy_(was))


def _read_twice(training: Training, numbers: Sequence[int]) -> tuple[list[Any], bool]:
    """The samples, which must be the same when they are read again with generators that are seeded alike.

    Also whether any generator has moved meanwhile.
    """
    found = []
    for _ in range(2):
        seed_everything(training.seed, 1, 0)
        begin = drawn()
        found.append(training.read_samples(numbers))
        draws = drawn() != begin
    for number, one, other in zip(numbers, *found, strict=True):
        if fingerprint([one]) != fingerprint([other]):
            raise UsageError(
                f"sample {number} of {type(training.dataset).__name__} was another when it was read again. What a "
                "dataset draws must come from the generators of torch, NumPy or random as they are, which are seeded "
                "by round and samples, and not from one of its own or from what was read before"
            )
    return found[0], draws


def _compare_twice(first: Given, again: Given, numbers: Sequence[int], changed: list[str]) -> Iterator[str]:
    """What is not the same when it is computed again; `changed`: buffers that a pass has changed."""
    if first.form != again.form:
        raise UsageError(f"losses() gave {first.form} at first, and {again.form} for the same samples again")
    for what, one, other in _pairs(first.rows(), again.rows()):
        if _are_equal(one, other):
            continue
        seen = _seen(what, one, other, numbers, "at first", "again")
        if changed or _difference(one, other) > torch.finfo(torch.float32).eps ** 0.5:
            buffers = f"the buffer{'s' if len(changed) > 1 else ''} {', '.join(map(repr, changed[:3]))}"
            carried = buffers if changed else "a state of the model, a generator of its own"
            raise UsageError(
                f"losses() computed the same samples twice, and {seen}. Something is carried from one call to the "
                f"next: {carried}. Whoever computes a sample must come to the same: begin each call anew, or make it "
                "follow from the step (losses(model, batch, step))"
            )
        yield (
            f"losses() computed the same samples twice, and {seen}: results will not have the same bits whoever "
            "computes them (torch.use_deterministic_algorithms(True) may help)"
        )


def _compare_apart(training: Training, samples: list[Any], numbers: Sequence[int]) -> list[str]:
    cut = min(APART, len(samples) - 1)
    try:
        whole = computed_still(lambda: _rows(training, [samples]))
        apart = computed_still(lambda: _rows(training, [samples[:cut], samples[cut:]]))
    except UsageError:
        raise
    except Exception as error:  # what holds randomness still is not for every model
        return [
            "whether losses() couples samples could not be tried by computing some together and apart: "
            f"{type(error).__name__}: {error}"
        ]
    warnings = []
    (one_way, drew), (other_way, _) = whole.found, apart.found
    if drew or not whole.is_still:  # then nothing follows from a difference
        return []
    for what, one, other in _pairs(one_way, other_way):
        difference = _difference(one, other)
        if difference <= whole.precision**0.65:
            continue
        company = f"together with {len(samples) - 1} others", f"with {cut - 1} or {len(samples) - cut - 1} others"
        seen = _seen(what, one, other, numbers, *company)
        if difference > whole.precision**0.5 and "metric" not in what:
            raise UsageError(
                f"losses() couples samples: {seen}. Workers compute some samples of a batch each, so {what} of one "
                "must not depend on those beside it (negatives from the batch, normalising over it, padding that "
                'counts). If it is meant, say coupled="micro-batch" and micro_batch=: samples are then coupled within '
                "micro-batches of that size, the same whoever computes them"
            )
        warnings.append(f"losses() may couple samples: {seen}, more than rounding explains")
    return warnings


def _rows(training: Training, groups: Sequence[list[Any]]) -> tuple[_Rows, bool]:
    """All numbers of some samples, computed group by group; whether anything was drawn by NumPy or Python for it.

    What groups give as one sum is added up: the result must not depend on the groups.
    """
    found, drew = [], False
    for group in groups:
        seed_everything(training.seed, 1, 0)
        begin = drawn_beside_torch()
        found.append(training.evaluate_samples(group).rows())
        drew |= drawn_beside_torch() != begin
    return {what: _joined([rows[what] for rows in found]) for what in found[0]}, drew


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts) if parts[0].ndim else torch.stack(parts).sum()


def _pairs(one: _Rows, other: _Rows) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    return ((what, one[what], other[what]) for what in one)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all numbers are the same; one that is none (NaN) is the same as another that is none."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest, in parts of the largest number. What is finite in neither is not compared."""
    one, other = one.reshape(-1), other.reshape(-1)
    finite = torch.isfinite(one) & torch.isfinite(other)
    if bool((finite != (torch.isfinite(one) | torch.isfinite(other))).any()):
        return float("inf")
    one, other = one[finite], other[finite]
    if not len(one):
        return 0.0
    scale = float(torch.maximum(one.abs(), other.abs()).max())
    difference = float((one - other).abs().max())
    return difference / scale if scale else 0.0


def _seen(
    what: str, one: torch.Tensor, other: torch.Tensor, numbers: Sequence[int], first: str, second: str
) -> str:  # fmt: skip
    """The difference, of the sample where it is largest."""
    if not one.ndim:
        samples = ", ".join(map(str, numbers))
        return f"{what}, summed over samples {samples}, was {one:.7g} {first} and {other:.7g} {second}"
    place = int(torch.nan_to_num((one - other).abs(), nan=torch.inf).argmax())
    return (
        f"{what} of sample {numbers[place]} was {float(one[place]):.7g} {first} and {float(other[place]):.7g} {second}"
    )
