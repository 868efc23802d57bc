"""A rehearsal before the first round: some samples, together, apart, and twice. What cannot work is found here.

A worker computes some samples of a batch, and another may compute them again. So the loss of a sample must not depend
on the samples beside it (in-batch negatives, mixup, batch normalisation by hand), nor on what was computed before (a
carried state, a generator of one's own). Both is tried with samples that the seed draws, with gradients as in training,
and leaves no trace. Random numbers are held still for the first, at a level; if any were drawn, then at others, too,
because what is done with some probability (`if random() < 0.5`) is done at some of them.

Computing in other company also rounds otherwise. With numbers whose steps are e (1.2e-7 in float32) a difference of up
to e^0.65 (3e-5) is taken for rounding, one beyond e^0.5 (3e-4) for a mistake, and between them there is a warning.
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
from codedreduce.torch.checks.denominators import counts_that_differ, weighs_classes
from codedreduce.torch.checks.fingerprint import fingerprint
from codedreduce.torch.checks.fixed_rng import FixedRngResult, compute_with_fixed_rng
from codedreduce.torch.gradient.batch_norm import RunningStatistics, normalising
from codedreduce.torch.gradient.compilation import without_compiling
from codedreduce.torch.gradient.grad_scaler import scalers_seen
from codedreduce.torch.gradient.loss_output import Form, LossOutput
from codedreduce.torch.seeding import drawn, drawn_beside_torch, random_state_kept, seed_everything
from codedreduce.training.permutation import Permutation

if TYPE_CHECKING:
    from codedreduce.torch.training import Training

#: How many samples are tried, and how many of them at first when they are computed apart.
TRIED, APART = 8, 3

#: Sets the draw of these samples apart from the orders of epochs.
_DRAW = 0x7E57

#: Levels of random numbers at which samples are computed together and apart.
_LEVELS = (0.5, 0.02, 0.98)

#: Losses so many times as large have gradients so many times as large: a power of two, which does not round.
_TIMES = 2.0**16

_Rows = dict[str, torch.Tensor]
_Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was found: what comes beside the losses, what the data is, and what a person should hear of.

    `draws`: whether reading a sample draws random numbers. `is_scaled`: whether losses are, by a `GradScaler`.
    `outside`: what losses have gradients for, but the model has not.
    """

    form: Form
    data: str
    draws: bool
    is_scaled: bool
    warnings: tuple[str, ...] = ()
    outside: tuple[weakref.ref[torch.Tensor], ...] = ()


def rehearse(training: Training) -> Rehearsal:
    """Try some samples; refuse what cannot work."""
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
        samples, numbers = samples[: training.batch_size], numbers[: training.batch_size]  # what memory is there for
        with scalers_seen() as scalers:
            form, first, gradients, outside, warnings = _try_pass(training, samples)
        if training.coupled is not None:
            statistics.check()
        seed_everything(training.seed, 1, 0)
        again = training.evaluate_samples(samples)
        if form != again.form:
            raise UsageError(f"losses() gave {form} at first, and {again.form} for the same samples again")
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
    """Refuse losses from which nothing can be learnt; a model that is frozen altogether is refused as such."""
    if not given.losses.requires_grad and any(one.requires_grad for one in training.model.parameters()):
        raise UsageError(
            "the losses that losses() gives do not depend on any trainable parameter, so there is no gradient: leave "
            "out .detach(), .item(), torch.no_grad() or numpy on the way from the model to them, and compute them "
            "with the model that train(...) was given"
        )


@contextlib.contextmanager
def _state_kept(model: torch.nn.Module) -> Iterator[tuple[Callable[[], list[str]], Callable[[], list[str]]]]:
    """Buffers and gradients are afterwards what they were; also in other models that a pass goes through.

    Gives which buffers of the model have changed so far, but for those of layers that normalise, which are handled; and
    which parameters have been written to, of any of these models.
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
        with warnings.catch_warnings():  # of compiled models torch would warn of this hook, which nobody has set
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
    """One forward and one backward pass, as in training: what was given, and what a person should hear of."""
    before = _norms(training.model)
    seed_everything(training.seed, 1, 0)
    given = training.evaluate_samples(samples)
    _check_graph(training, given)
    for name, norm in _norms(training.model).items():
        if norm != before[name]:
            raise UsageError(
                f"losses() changed the parameter {name!r}: other ranks do not see that. Steps belong in the loop body; "
                "for an inner step in losses use torch.func.functional_call with changed copies of the parameters"
            )
    mine = {id(one) for one in training.model.parameters()}
    outside = tuple(weakref.ref(one) for one in _leaves(given.losses) if id(one) not in mine)
    warnings, counts = [], counts_that_differ(given.losses)
    if counts is not None:
        warnings.append(
            f"losses() divides each sample's sum by a count of its own ({counts[0]} to {counts[1]} in {len(samples)} "
            "samples), so the gradient is that of the mean of these means, and not that of the mean over all tokens of "
            "the batch, as reduction='mean' gives in one process. For the latter return (sums, counts); if terms have "
            "different denominators, divide each term by a constant, such as its average count"
        )
    if given.weights is None and weighs_classes(given.losses):
        warnings.append(
            "losses() weighs samples by their classes (weight=), and their mean is taken over the number of samples. "
            "reduction='mean' in one process divides by the sum of the weights: for that return (losses, "
            "weight[targets])"
        )
    gradients = _backward(training.model, given)
    for name, norm in _norms(training.model).items():
        if norm != before[name]:
            raise UsageError(
                f"the backward pass changed the parameter {name!r}, as a hook that steps does "
                "(register_post_accumulate_grad_hook): it would step with a part of the batch. Leave it out, and call "
                "optimizer.step() in the loop body"
            )
    return given.form, given.rows(), gradients, outside, warnings


def _written_to(names: list[str]) -> list[str]:
    """What is written to parameters, though nothing of it is seen at first: a teacher begins as a copy of the model."""
    if not names:
        return []
    return [
        f"losses() writes to the parameter {names[0]!r}, in every pass over some samples. If it is not taken back in "
        "the same pass (a teacher that follows the model is not), ranks come to differ: do it in the loop body"
    ]


def _evaluating(model: torch.nn.Module) -> list[str]:
    """A model that a script has evaluated, or that came so from a hub, and that a loop body would set back too late."""
    kinds = torch.nn.modules.dropout._DropoutNd | torch.nn.modules.batchnorm._BatchNorm
    if model.training or not any(isinstance(one, kinds) for one in model.modules()):
        return []
    return [
        "the model is in evaluation mode, so dropout drops nothing and BatchNorm uses what it remembers. If it is not "
        "meant so, call model.train() before cluster.train(...): in the loop body the first round is over"
    ]


def _norms(model: torch.nn.Module) -> dict[str, str]:
    """What tells whether parameters have changed; NaN is like NaN."""
    named = dict(model.named_parameters())
    with torch.no_grad():
        return {name: repr(float(one.detach().norm())) for name, one in named.items() if one.is_floating_point()}


def _leaves(losses: torch.Tensor) -> list[torch.Tensor]:
    """All tensors that a backward pass gives gradients."""
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
    """The gradients of losses so many times as large; nothing of it is left."""
    if not given.losses.requires_grad:
        return {}
    named = dict(model.named_parameters())
    leaves = list({id(one): one for one in (*named.values(), *_leaves(given.losses))}.values())
    kept = [one.grad for one in leaves]
    for one in leaves:
        one.grad = None
    try:
        total = given.losses.sum()
        total.backward(torch.full_like(total, times))  # type: ignore[no-untyped-call]
        found = {name: one.grad for name, one in named.items()}
        return {name: one.to_dense() for name, one in found.items() if one is not None}
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise UsageError(
            "losses() calls .backward() on the losses that it returns, or on a part of them. Leave that out: return "
            "the losses, and .grad of every parameter is filled before the loop body"
        ) from error
    finally:
        for one, was in zip(leaves, kept, strict=True):
            one.grad = was


def _check_is_linear(once: _Gradients, scaled: _Gradients) -> None:
    """Refuse what does something to gradients that is not right for parts of a batch."""
    for name, one in once.items():
        other = scaled[name] / _TIMES if name in scaled else torch.zeros_like(one)
        if not bool(torch.isfinite(one).all()) or not bool(torch.isfinite(other).all()):
            continue  # half precision overflows
        if float(one.abs().max() if one.numel() else 0) > 1e-6 and _difference(one, other) > 1e-2:
            raise UsageError(
                f"the gradient of {name!r} does not grow with the losses: a hook (register_hook), or the backward of "
                "an autograd.Function, clips or normalises gradients. Here it would do so to those of parts of a "
                "batch, summed and not averaged. Leave it out, and change .grad in the loop body, where it is the "
                "mean over the batch (clip_grad_norm_, clip_grad_value_)"
            )


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


def _compare_twice(first: _Rows, again: _Rows, numbers: Sequence[int], changed: list[str]) -> Iterator[str]:
    """What is not the same when it is computed again; `changed`: buffers that a pass has changed."""
    for what, one, other in _pairs(first, again):
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


def _compare_apart(training: Training, samples: list[Any], numbers: Sequence[int], round_: int) -> list[str]:
    """Together and apart, with random numbers held still: at other levels only if any were drawn."""
    cut = min(APART, len(samples) - 1)
    for level in _LEVELS:
        try:
            whole = compute_with_fixed_rng(lambda: _rows(training, [samples], round_), level)
            apart = compute_with_fixed_rng(lambda: _rows(training, [samples[:cut], samples[cut:]], round_), level)
        except UsageError:
            raise
        except Exception as error:  # what holds randomness still is not for every model
            if level != _LEVELS[0]:
                continue
            return [
                "whether losses() couples samples could not be tried by computing some together and apart: "
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
        if difference <= whole.precision**0.65:  # or samples came in another order, as a collate_fn sorts them
            continue
        seen = _seen(what, one, other, numbers, *company)
        if drew or not whole.is_still:
            return [
                f"whether losses() couples samples is not known: {seen}, and random numbers that it draws could not be "
                "held still. If it mixes samples (mixup, CutMix, negatives from the batch), say "
                'coupled="micro-batch" and micro_batch=; if not, this is no error'
            ]
        if difference > whole.precision**0.5 and "metric" not in what:
            raise UsageError(
                f"losses() couples samples: {seen}. Workers compute some samples of a batch each, so {what} of one "
                "must not depend on those beside it (mixup and CutMix, negatives from the batch, normalising over it, "
                'padding that counts). If it is meant, say coupled="micro-batch" and micro_batch=: samples are then '
                "coupled within micro-batches of that size, the same whoever computes them"
            )
        warnings.append(f"losses() may couple samples: {seen}, more than rounding explains")
    return warnings


def _rows(training: Training, groups: Sequence[list[Any]], round_: int) -> tuple[_Rows, bool]:
    """All numbers of some samples, computed group by group; whether NumPy or Python drew anything that was not fixed.

    What groups give as one sum is added up: the result must not depend on the groups.
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
    """Whether all numbers are the same; one that is none (NaN) is the same as another that is none."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _sorted(row: torch.Tensor) -> torch.Tensor:
    return row.reshape(-1).sort().values


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
