"""Finds losses with another mean than in one process, in the autograd graph of the losses.

A mean over all tokens of a batch is not the mean of the samples' means, if samples have different numbers of tokens.
The search goes back from the losses as long as every operation is linear. It looks for divisions and means with
denominators that are whole numbers and differ between samples. It stops at a loss function, so it does not see pooling
over tokens behind one, for example.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

#: Operations that add up numbers of a sample.
_ADDING = ("Sum", "Nansum", "IndexAdd", "ScatterAdd", "ScatterReduce", "Bmm", "Mv")

#: Operations that can form a sum of losses, each divided by something.
_LINEAR = (
    *_ADDING, "Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Mean", "Stack", "Cat", "View", "UnsafeView", "Squeeze",
    "Unsqueeze", "Expand", "Select", "Slice", "Split", "Unbind", "Permute", "Transpose", "Alias", "Clone", "ToCopy",
    "Where", "MaskedFill", "Index",
)  # fmt: skip


def counts_that_differ(losses: torch.Tensor) -> tuple[int, int] | None:
    """Return the smallest and the largest count that samples' losses are divided by; None if all are equal.

    >>> of_tokens = torch.ones(3, 4, requires_grad=True) * 2
    >>> counts_that_differ(of_tokens.sum(1) / torch.tensor([1, 4, 2])), counts_that_differ(of_tokens.sum(1) / 4)
    ((1, 4), None)
    """
    if losses.ndim != 1 or len(losses) < 2 or losses.grad_fn is None:
        return None
    samples = len(losses)
    of_each: dict[str, list[float]] = defaultdict(list)  # counts of losses that are computed sample by sample
    for node, path in _linear(losses.grad_fn, samples):
        count = _denominator(node)
        if count is None:
            count = _factor(node, samples)
        if count is None:
            continue
        if count.numel() == 1:
            of_each[path].append(float(count))
        elif count.numel() == samples and _adds(path, node, samples) and _are_counts(count):
            return _range(count)
    for found in of_each.values():
        count = torch.tensor(found)
        if len(found) == samples and _are_counts(count):
            return _range(count)
    return None


def weighs_classes(losses: torch.Tensor) -> bool:
    """Whether a loss function weights samples by class (`weight=`), with weights that differ.

    >>> scores, classes = torch.zeros(3, 2, requires_grad=True), torch.tensor([0, 1, 1])
    >>> [
    ...     weighs_classes(torch.nn.functional.cross_entropy(scores, classes, torch.tensor(weight), reduction="none"))
    ...     for weight in ([1.0, 3.0], [1.0, 1.0])
    ... ]
    [True, False]
    """
    if losses.grad_fn is None:
        return False
    found = (node for node, _ in _linear(losses.grad_fn, losses.numel()) if _is(node, ("NllLoss", "NllLoss2D")))
    weights = (node._saved_weight for node in found)
    return any(one is not None and bool((one != one[0]).any()) for one in weights)


def _linear(node: Any, samples: int) -> Iterator[tuple[Any, str]]:
    """Yield every operation that the losses depend on linearly, with the names of the operations on the path to it."""
    waiting, seen = [(node, "")], {node}
    while waiting:
        node, way = waiting.pop()
        path = f"{way}/{node.name()}"
        yield node, path
        if not _is(node, _LINEAR) or _multiplies_by_counts(node, samples):
            continue
        for further, _ in node.next_functions:
            if further is not None and further not in seen:
                seen.add(further)
                waiting.append((further, path))


def _is(node: Any, kinds: tuple[str, ...]) -> bool:
    return node.name().partition("Backward")[0] in kinds


def _adds(path: str, node: Any, samples: int) -> bool:
    """Whether numbers of a sample are added up before or after a division."""
    return any(f"/{kind}Backward" in path for kind in _ADDING) or any(
        _is(one, _ADDING) for one, _ in _linear(node, samples)
    )


def _denominator(node: Any) -> torch.Tensor | None:
    """Return the divisor of an operation, if it does not depend on a parameter."""
    if _is(node, ("Div",)):
        other = node._saved_other
        return None if other is None or other.requires_grad else other.detach()
    if _is(node, ("Mean",)):
        sizes, dims = node._saved_self_sym_sizes, getattr(node, "_saved_dim", None)
        places = range(len(sizes)) if dims is None else [one - 2**64 if one >= 2**63 else one for one in dims]
        return torch.tensor([sizes[one] for one in places]).prod()
    if getattr(node, "_saved_reduction", None) == 1:  # reduction="mean" of a loss function
        weight = getattr(node, "_saved_total_weight", None)
        return weight.detach() if weight is not None else torch.tensor(node._saved_self.numel())
    return None


def _factor(node: Any, samples: int) -> torch.Tensor | None:
    """Return the counts if an operation multiplies by their reciprocals: one per sample, or a mask divided by them.

    A half, a quarter or a tenth may be a weight that a user chose; a third is not.
    """
    for one in (node._saved_self, node._saved_other) if _is(node, ("Mul",)) else ():
        if one is None or one.requires_grad or not one.is_floating_point() or not one.ndim or len(one) != samples:
            continue
        rows = one.detach().double().reshape(samples, -1)
        counts: torch.Tensor = 1 / rows.max(1).values
        if rows.shape[1] > 1:
            is_mask = ((rows == 0) | (rows == rows.max(1, keepdim=True).values)).all()
            found = bool(is_mask) and torch.allclose(counts, (rows != 0).sum(1).double())
        else:
            found = _are_counts(counts) and any(10**9 % int(count) for count in counts.round().tolist())
        if found:
            return counts
    return None


def _multiplies_by_counts(node: Any, samples: int) -> bool:
    """Whether an operation multiplies by counts, so that a mean becomes a sum again."""
    factors = (node._saved_self, node._saved_other) if _is(node, ("Mul",)) else ()
    return any(
        one is not None and not one.requires_grad and one.numel() == samples and _are_counts(one) for one in factors
    )


def _are_counts(found: torch.Tensor) -> bool:
    """Whether these are whole numbers and not all equal; a small added constant (1e-3) is allowed."""
    found = found.detach().double()
    whole = found.round()
    least, most = float(whole.min()), float(whole.max())
    return bool(((found - whole).abs() < 1e-3).all()) and 0 <= least < most and most > 1


def _range(found: torch.Tensor) -> tuple[int, int]:
    return round(float(found.min())), round(float(found.max()))
