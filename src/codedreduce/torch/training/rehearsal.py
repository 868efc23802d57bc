"""A rehearsal before the first round computes some samples together, apart, and twice, to find what cannot work.

A worker computes some samples of a batch, and another worker may compute them again. So the loss of a sample must not
depend on other samples (in-batch negatives, mixup, manual batch normalisation). It must not depend on earlier calls
either (a carried state, a generator of its own). The rehearsal tests both with samples drawn by the seed and gradients
as in training, and restores all state afterwards. It tests the first with random numbers fixed at a level. If any were
drawn, it repeats the test at other levels: `if random() < 0.5` is true at some of them.

The grouping of samples also changes the rounding. With precision e (1.2e-7 in float32), a relative difference of up to
e^0.65 (3e-5) counts as rounding, and one beyond e^0.5 (3e-4) as a mistake. Between them there is a warning.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from codedreduce.errors import UsageError
from codedreduce.torch.data.samples import read_sample
from codedreduce.torch.model.batch_norm import RunningStatistics, normalising
from codedreduce.torch.model.layout import gradients_kept
from codedreduce.torch.model.loss_output import Form, LossOutput
from codedreduce.torch.model.seeding import drawn, drawn_beside_torch, random_state_kept, seed_everything
from codedreduce.torch.training.compilation import without_compiling
from codedreduce.torch.training.denominators import counts_that_differ, weighs_classes
from codedreduce.torch.training.fingerprint import fingerprint
from codedreduce.torch.training.fixed_rng import FixedRngResult, compute_with_fixed_rng
from codedreduce.torch.training.grad_scaler import scalers_seen
from codedreduce.training.permutation import Permutation

if TYPE_CHECKING:
    from codedreduce.torch.training.training import Training

#: How many samples are tried, and the size of the first group when they are computed apart.
TRIED, APART = 8, 3

#: Sets the draw of these samples apart from the orders of epochs.
_DRAW = 0x7E57

#: Levels of random numbers at which samples are computed together and apart.
_LEVELS = (0.5, 0.02, 0.98)

#: The factor for losses that must scale their gradients as well: a power of two, which does not round.
_TIMES = 2.0**16

_Rows = dict[str, torch.Tensor]
_Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The findings: the form of the loss output, the digest of the data, and warnings for the user.

    `draws`: whether reading a sample draws random numbers. `is_scaled`: whether a `GradScaler` scales the losses.
    `outside`: tensors outside of the model that get gradients from the losses.
    """

    form: Form
    data: str
    draws: bool
    is_scaled: bool
    warnings: tuple[str, ...] = ()
    outside: tuple[weakref.ref[torch.Tensor], ...] = ()


def rehearse(training: Training) -> Rehearsal:
    """Compute some samples; raise an error for what cannot work."""
    count = len(training.dataset)
    most = min(TRIED, count, training.micro_batch or TRIED)
    numbers = np.sort(Permutation(count, [training.seed, _DRAW])(np.arange(most))).tolist()
    with contextlib.ExitStack() as stack:
        for kept in (random_state_kept(), without_compiling()):
            stack.enter_context(kept)
        changed, written = stack.enter_context(_state_kept(training.model))
        statistics = RunningStatistics(training.model)
        stack.enter_context(statistics.watched())
        samples, draws = _read_twice(training, numbers)
        data = f"data whose samples {', '.join(map(str, numbers))} have the digest {fingerprint(samples)}"
        samples, numbers = samples[: training.batch_size], numbers[: training.batch_size]  # memory may hold no more
        with scalers_seen() as scalers:
            form, first, gradients, outside, warnings = _try_pass(training, samples)
        if training.coupled is not None:
            statistics.check()
        seed_everything(training.seed, 1, 0)
        again = training.evaluate_samples(samples)
        if form != again.form:
            raise UsageError(
                f"losses() returned {form} at first, and {again.form} for the same samples again: return the same form "
                "every time"
            )
        warnings += _compare_twice(first, again.rows(), numbers, changed())
        warnings += _written_to(written()) + _evaluating(training.model)
        _check_is_linear(gradients, _backward(training.model, again, _TIMES))
        del again, gradients  # and its graph
        if training.coupled is None and len(samples) > 1:
            for round_ in dict.fromkeys((1, training.steps if training.takes_step else 1)):
                warnings += _compare_apart(training, samples, numbers, round_)
    return Rehearsal(
        form=form, data=data, draws=draws, is_scaled=bool(scalers), warnings=tuple(dict.fromkeys(warnings)),
        outside=outside,
    )  # fmt: skip


def _check_graph(training: Training, given: LossOutput) -> None:
    """Refuse losses without a gradient; `Layout` refuses a model that is frozen altogether."""
    if not given.losses.requires_grad and any(one.requires_grad for one in training.model.parameters()):
        raise UsageError(
            "the return value of losses() does not depend on any trainable parameter, so there is no gradient: leave "
            "out .detach(), .item(), torch.no_grad() or numpy between the model and the losses, and compute them with "
            "the model that you gave to train(...)"
        )


@contextlib.contextmanager
def _state_kept(model: torch.nn.Module) -> Iterator[tuple[Callable[[], list[str]], Callable[[], list[str]]]]:
    """Restore buffers and gradients at the end, also in other models that a pass goes through.

    Yields two functions. The first returns the buffers of the model that have changed so far, except those of
    normalising layers, which `RunningStatistics` handles. The second returns the parameters of any of these models that
    were written to.
    """
    versions: dict[torch.nn.Parameter, tuple[str, int]] = {}
    buffers: dict[torch.nn.Module, list[tuple[str, torch.Tensor, torch.Tensor]]] = {}
    gradients: dict[torch.nn.Parameter, torch.Tensor | None] = {}

    def keep(module: torch.nn.Module, given: Any = None) -> None:
        if module in buffers:
            return
        buffers[module] = [(name, one, one.detach().clone()) for name, one in module.named_buffers(recurse=False)]
        for name, one in module.named_parameters(recurse=False):
            versions.setdefault(one, (f"{names.get(module, f'{type(module).__name__}.')}{name}", _version(one)))
            if one not in gradients:
                gradients[one], one.grad = one.grad, None

    names = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    for module in names:
        keep(module)

    def changed() -> list[str]:
        free = names.keys() - {one for _, one in normalising(model)}
        return [
            f"{names[module]}{name}"
            for module in names
            for name, one, was in buffers[module]
            if module in free and not _are_equal(getattr(module, name), was)
        ]

    def written() -> list[str]:
        return [name for one, (name, was) in versions.items() if _version(one) != was]

    hook = register_module_forward_pre_hook(keep)
    try:
        with warnings.catch_warnings():  # with compiled models torch warns of this hook, which the user did not set
            warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
            yield changed, written
    finally:
        hook.remove()
        for module, kept in buffers.items():
            for name, one, was in kept:
                setattr(module, name, one.detach_() if one.grad_fn is not None else one)
                with torch.no_grad():
                    one.copy_(was)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


def _version(one: torch.Tensor) -> int:
    return 0 if one.is_inference() else one._version


def _try_pass(
    training: Training, samples: list[Any]
) -> tuple[Form, _Rows, _Gradients, tuple[weakref.ref[torch.Tensor], ...], list[str]]:
    """Run one forward and one backward pass, as in training; return what they gave, and warnings for the user."""
    before = _norms(training.model)
    seed_everything(training.seed, 1, 0)
    given = training.evaluate_samples(samples)
    _check_graph(training, given)
    for name, norm in _norms(training.model).items():
        if norm != before[name]:
            raise UsageError(
                f"losses() changed the parameter {name!r}, which other ranks do not see: take steps in the loop body; "
                "for an inner step in losses use torch.func.functional_call with changed copies of the parameters"
            )
    mine = {id(one) for one in training.model.parameters()}
    outside = tuple(weakref.ref(one) for one in _leaves(given.losses) if id(one) not in mine)
    warnings, counts = [], counts_that_differ(given.losses)
    if counts is not None:
        warnings.append(
            f"losses() divides each sample's sum by a count of its own ({counts[0]} to {counts[1]} in {len(samples)} "
            "samples), so the gradient is that of the mean of these means. It is not that of the mean over all tokens "
            "of the batch, as with reduction='mean' in one process: for that return (sums, counts). If terms have "
            "different denominators, divide each term by a constant, such as its average count"
        )
    if given.weights is None and weighs_classes(given.losses):
        warnings.append(
            "losses() weights samples by class (weight=), and the mean divides by the number of samples. "
            "reduction='mean' in one process divides by the sum of the weights: for that return (losses, "
            "weight[targets])"
        )
    gradients = _backward(training.model, given)
    for name, norm in _norms(training.model).items():
        if norm != before[name]:
            raise UsageError(
                f"the backward pass changed the parameter {name!r}, probably by a hook that steps "
                "(register_post_accumulate_grad_hook): it would step with a part of the batch. Remove the hook, and "
                "call optimizer.step() in the loop body"
            )
    return given.form, given.rows(), gradients, outside, warnings


def _written_to(names: list[str]) -> list[str]:
    """Warn of writes to parameters that leave their norms as they were: a teacher begins as a copy of the model."""
    if not names:
        return []
    return [
        f"losses() writes to the parameter {names[0]!r} in every pass over some samples. Unless the same pass undoes "
        "it (a teacher that follows the model does not), the models of the ranks drift: do it in the loop body"
    ]


def _evaluating(model: torch.nn.Module) -> list[str]:
    """Warn of a model in evaluation mode, after an evaluation or from a hub; a loop body would reset it too late."""
    kinds = torch.nn.modules.dropout._DropoutNd | torch.nn.modules.batchnorm._BatchNorm
    if model.training or not any(isinstance(one, kinds) for one in model.modules()):
        return []
    return [
        "the model is in evaluation mode, so dropout drops nothing and BatchNorm uses its running statistics. If that "
        "is not intended, call model.train() before cluster.train(...): in the loop body the first round is over"
    ]


def _norms(model: torch.nn.Module) -> dict[str, str]:
    """Return the norms of the parameters, to see whether they change; as text, so that NaN equals NaN."""
    named = dict(model.named_parameters())
    with torch.no_grad():
        return {name: repr(float(one.detach().norm())) for name, one in named.items() if one.is_floating_point()}


def _leaves(losses: torch.Tensor) -> list[torch.Tensor]:
    """Return all tensors that a backward pass gives gradients to."""
    waiting, seen, found = [losses.grad_fn], set(), []
    while waiting:
        node: Any = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if node.name().endswith("AccumulateGrad"):
                found.append(node.variable)
            waiting += [further for further, _ in node.next_functions]
    return found


def _backward(model: torch.nn.Module, given: LossOutput, times: float = 1.0) -> _Gradients:
    """Return the gradients of the losses times `times`, and restore `.grad`."""
    if not given.losses.requires_grad:
        return {}
    named = dict(model.named_parameters())
    leaves = list({id(one): one for one in (*named.values(), *_leaves(given.losses))}.values())
    try:
        with gradients_kept(leaves):
            total = given.losses.sum()
            total.backward(torch.full_like(total, times))  # type: ignore[no-untyped-call]
            found = {name: one.grad for name, one in named.items()}
            return {name: one.to_dense() for name, one in found.items() if one is not None}
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise UsageError(
            "losses() calls .backward() on the losses that it returns, or on a part of them. Leave that out and return "
            "the losses: .grad of every parameter is set before the loop body"
        ) from error


def _check_is_linear(once: _Gradients, scaled: _Gradients) -> None:
    """Refuse hooks and backward functions that clip or normalise gradients, which is wrong for parts of a batch."""
    for name, one in once.items():
        other = scaled[name] / _TIMES if name in scaled else torch.zeros_like(one)
        if not bool(torch.isfinite(one).all()) or not bool(torch.isfinite(other).all()):
            continue  # half precision overflows
        if float(one.abs().max() if one.numel() else 0) > 1e-6 and _difference(one, other) > 1e-2:
            raise UsageError(
                f"the gradient of {name!r} does not scale with the losses: a hook (register_hook), or the backward of "
                "an autograd.Function, clips or normalises gradients. Here it would do so to sums over parts of a "
                "batch, not to the mean. Leave it out, and change .grad in the loop body, where it is the mean over "
                "the batch (clip_grad_norm_, clip_grad_value_)"
            )


def _read_twice(training: Training, numbers: Sequence[int]) -> tuple[list[Any], bool]:
    """Return the samples, and whether reading them drew random numbers.

    Read them twice with generators seeded alike; raise an error if they differ.
    """
    found = []
    for _ in range(2):
        seed_everything(training.seed, 1, 0)
        begin = drawn()
        found.append([read_sample(training.dataset, number) for number in numbers])
        draws = drawn() != begin
    for number, one, other in zip(numbers, *found, strict=True):
        if fingerprint([one]) != fingerprint([other]):
            raise UsageError(
                f"sample {number} of {type(training.dataset).__name__} differed when it was read again. A dataset must "
                "draw from the global generators of torch, NumPy or random, which are seeded by round and samples; it "
                "must not use a generator of its own, or depend on earlier reads"
            )
    return found[0], draws


def _compare_twice(first: _Rows, again: _Rows, numbers: Sequence[int], changed: list[str]) -> Iterator[str]:
    """Compare two computations of the same samples; `changed`: buffers that a pass has changed."""
    for what, one, other in _pairs(first, again):
        if _are_equal(one, other):
            continue
        seen = _seen(what, one, other, numbers, "at first", "again")
        if changed or _difference(one, other) > torch.finfo(torch.float32).eps ** 0.5:
            buffers = f"the buffer{'s' if len(changed) > 1 else ''} {', '.join(map(repr, changed[:3]))}"
            carried = buffers if changed else "a state of the model, a generator of its own"
            raise UsageError(
                f"losses() computed the same samples twice, and {seen}. Something is carried from one call to the "
                f"next: {carried}. All ranks must compute the same result for a sample: reset the state in each call, "
                "or derive it from the step (losses(model, batch, step))"
            )
        yield (
            f"losses() computed the same samples twice, and {seen}: results of different ranks will not be "
            "bit-identical (torch.use_deterministic_algorithms(True) may help)"
        )


def _compare_apart(training: Training, samples: list[Any], numbers: Sequence[int], round_: int) -> list[str]:
    """Compare samples computed together and apart, with fixed random numbers; at other levels if any were drawn."""
    cut = min(APART, len(samples) - 1)
    for level in _LEVELS:
        try:
            whole = compute_with_fixed_rng(lambda: _rows(training, [samples], round_), level)
            apart = compute_with_fixed_rng(lambda: _rows(training, [samples[:cut], samples[cut:]], round_), level)
        except UsageError:
            raise
        except Exception as error:  # not every model works with fixed random numbers
            if level != _LEVELS[0]:
                continue
            return [
                "could not test whether losses() couples samples, by computing some together and apart: "
                f"{type(error).__name__}: {error}"
            ]
        warnings = _compare_company(whole, apart, numbers, cut)
        if warnings or not whole.has_drawn:
            return warnings
    return []


def _compare_company(whole: FixedRngResult, apart: FixedRngResult, numbers: Sequence[int], cut: int) -> list[str]:
    warnings = []
    (one_way, drew), (other_way, _) = whole.found, apart.found
    company = f"together with {len(numbers) - 1} others", f"with {cut - 1} or {len(numbers) - cut - 1} others"
    for what, one, other in _pairs(one_way, other_way):
        difference = min(_difference(one, other), _difference(_sorted(one), _sorted(other)))
        if difference <= whole.precision**0.65:  # sorted as well, since a collate_fn may sort samples
            continue
        seen = _seen(what, one, other, numbers, *company)
        if drew or not whole.is_still:
            return [
                f"could not test whether losses() couples samples: {seen}, and its random numbers could not be fixed. "
                "If it mixes samples (mixup, CutMix, negatives from the batch), set "
                'coupled="micro-batch" and micro_batch=; if not, this is not an error'
            ]
        if difference > whole.precision**0.5 and "metric" not in what:
            raise UsageError(
                f"losses() couples samples: {seen}. Each worker computes some samples of a batch, so {what} of one "
                "must not depend on other samples (mixup and CutMix, negatives from the batch, normalising over it, "
                'padding that counts). If it is intended, set coupled="micro-batch" and micro_batch=: samples are then '
                "coupled within micro-batches of that size, which are the same on all ranks"
            )
        warnings.append(f"losses() may couple samples: {seen}, more than rounding explains")
    return warnings


def _rows(training: Training, groups: Sequence[list[Any]], round_: int) -> tuple[_Rows, bool]:
    """Return all numbers of some samples, computed group by group, and whether NumPy or Python drew unfixed numbers.

    Sums are added up over the groups: the result must not depend on the groups.
    """
    found, drew = [], False
    for group in groups:
        seed_everything(training.seed, 1, 0)
        begin = drawn_beside_torch()
        found.append(training.evaluate_samples(group, round_).rows())
        drew |= drawn_beside_torch() != begin
    return {what: _joined([rows[what] for rows in found]) for what in found[0]}, drew


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts) if parts[0].ndim else torch.stack(parts).sum()


def _pairs(one: _Rows, other: _Rows) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    return ((what, one[what], other[what]) for what in one)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all numbers are equal; NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _sorted(row: torch.Tensor) -> torch.Tensor:
    return row.reshape(-1).sort().values


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest number. Numbers that are finite in neither are skipped."""
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
    """Describe the difference for the sample where it is largest."""
    if not one.ndim:
        samples = ", ".join(map(str, numbers))
        return f"{what}, summed over samples {samples}, was {one:.7g} {first} and {other:.7g} {second}"
    place = int(torch.nan_to_num((one - other).abs(), nan=torch.inf).argmax())
    return (
        f"{what} of sample {numbers[place]} was {float(one[place]):.7g} {first} and {float(other[place]):.7g} {second}"
    )
