"""Ray: ranks as actors on the nodes of a cluster, which Ray places, and which take each other's place as everywhere.

    from codedreduce.ray import launch

    accuracy = launch(train, workers=(4, 12), resources={"GPU": 1})

or `codedreduce run --on ray SCRIPT`. docs/clusters.md tells more. What `launch` needs is loaded when it is first asked
for: an actor does without.

`launch_on_ray` runs a function or a script on a cluster, `ray_cluster` connects to it, `reservations` has Ray reserve
resources, `spots` assigns them to ranks, `actors` is what an actor does, `starter` what a launcher asks of actors,
`there` what a rank is told of its node, `metrics` reports rounds as Ray's metrics.
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
