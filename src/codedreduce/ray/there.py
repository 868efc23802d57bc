"""The environment of a rank on its node, and checks of that node."""

from __future__ import annotations

from collections.abc import Mapping

from codedreduce.errors import UsageError
from codedreduce.ray.actors import About, versions


def local_names(rank: int, gpus: Mapping[int, tuple[str, ...]]) -> dict[str, str]:
    """The variables for a rank's place on its node, as torchrun sets them. `gpus`: Ray's GPUs for each rank there.

    If each rank has one GPU for itself, all ranks see all GPUs, and LOCAL_RANK is the index of a rank's own. Otherwise
    a rank sees only its own GPUs.

    >>> local_names(5, {2: ("0",), 5: ("3",)})
    {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'CUDA_VISIBLE_DEVICES': '0,3'}
    >>> local_names(5, {2: ("0",), 5: ("0",)})
    {'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1', 'CUDA_VISIBLE_DEVICES': '0'}
    >>> local_names(5, {2: (), 5: ()})
    {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
    """
    ranks, all_of_them = sorted(gpus), [one for other in sorted(gpus) for one in gpus[other]]
    names = {"LOCAL_RANK": str(ranks.index(rank)), "LOCAL_WORLD_SIZE": str(len(ranks))}
    if not all_of_them:
        return names
    if len(set(all_of_them)) == len(ranks) and all(len(one) == 1 for one in gpus.values()):
        return {**names, "CUDA_VISIBLE_DEVICES": ",".join(all_of_them)}
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ",".join(gpus[rank])}


def check_versions(about: About) -> None:
    """Raise `UsageError` if a node's versions differ from the driver's."""
    for name, version in versions().items():
        if about.versions.get(name) != version:
            raise UsageError(
                f"node {about.address} ({about.node[:8]}) has {name} {about.versions.get(name)}, but the driver has "
                f"{version}; install the same version on all nodes"
            )


def cannot_be_there(where: str, error: Exception) -> str:
    """One line on an actor that cannot run: its node lacks a module, or has an older version."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    why = lines[-1].strip() if lines else type(error).__name__
    return f"{where} cannot run codedreduce {versions()['codedreduce']}: {why}; install this version on all nodes"
