"""Ray: ranks as actors on the nodes of a cluster. Ray places them; failures are handled as in any other run.

    from codedreduce.ray import launch

    accuracy = launch(train, workers=(4, 12), resources={"GPU": 1})

or `codedreduce run --on ray SCRIPT`. See docs/clusters.md. The modules for `launch` are loaded at the first access to
it: an actor does not need them.

`launch_on_ray` runs a function or a script on a cluster. `ray_cluster` connects to the cluster. `reservations` makes
Ray reserve resources; `spots` assigns them to ranks. `actors` is the code of an actor; `starter` is the launcher's
interface to actors. `metrics` reports rounds as Ray's metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codedreduce.ray.launch_on_ray import launch

__all__ = ["launch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from codedreduce.ray import launch_on_ray

    return getattr(launch_on_ray, name)
