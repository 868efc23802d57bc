"""A digest of PyTorch's arithmetic on a device, from a few computations."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from codedreduce.process.arithmetic import Arithmetic, digest_of, of_numpy


def arithmetic(device: torch.device | None) -> Arithmetic:
    """Return the arithmetic of this process: NumPy's, and PyTorch's on the model's device."""
    return of_numpy().beside(_of_torch(device or torch.device("cpu")))


@cache
def _of_torch(device: torch.device) -> Arithmetic:
    """Compute on one thread, and without PyTorch's random generators."""
    threads = torch.get_num_threads()
    random = np.random.default_rng(7)
    try:
        torch.set_num_threads(1)
        image, kernel, weight = (
            torch.from_numpy(random.standard_normal(shape, dtype=np.float32)).to(device).requires_grad_()
            for shape in ((4, 3, 17, 17), (5, 3, 3, 3), (7, 1125))
        )  # fmt: skip
        hidden = F.gelu(F.conv2d(image, kernel)).flatten(1)
        scores = F.layer_norm(F.linear(hidden, weight), (7,))
        F.cross_entropy(scores, torch.arange(4, device=device)).backward()  # type: ignore[no-untyped-call]
        found = [one.grad.cpu().numpy() for one in (image, kernel, weight) if one.grad is not None]
    finally:
        torch.set_num_threads(threads)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return Arithmetic(digest_of([scores.detach().cpu().numpy(), *found]), f"PyTorch {torch.__version__}, {name}")
