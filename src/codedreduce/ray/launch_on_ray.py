"""`launch`: run a function in ranks on a Ray cluster; and the implementation of `codedreduce run --on ray`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from codedreduce._extras import require
from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.launch.environment import timing_said
from codedreduce.launch.launcher import Hear, Launch
from codedreduce.launch.launcher import launch as start
from codedreduce.launch.placement import Placement
from codedreduce.launch.showing import OnlyFirst, Show
from codedreduce.process.secrets import FILE_VARIABLE, VARIABLE
from codedreduce.process.telling import PIPE, STEPS
from codedreduce.ray.actors import PYTHON
from codedreduce.ray.metrics import Metrics
from codedreduce.ray.ray_cluster import connected
from codedreduce.ray.reservations import Reservation, Wanted
from codedreduce.ray.spots import Spot
from codedreduce.ray.starter import Actors
from codedreduce.run.delays import parse_delays
from codedreduce.schemes import Plan, Striped
from codedreduce.torch.live_table import watching

T = TypeVar("T")

#: Samples of a plan that is used only for its groups.
SAMPLES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """A run on a cluster. `address` None: the current cluster of this process, or else one on this host."""

    wanted: Wanted
    plan: Plan
    address: str | None = None
    given: bytes | None = None


def launch(
    function: Callable[..., T],
    *args: Any,
    workers: int | tuple[int, int] = 4,
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    spread_over: str | None = None,
    within: float = 60.0,
    restarts: int | None = None,
    inject: str | None = None,
    live: bool = True,
    output: str = "root",
    variables: Mapping[str, str] | None = None,
) -> T:
    """Call a function in ranks on a Ray cluster, which train together; return what it returns on rank 0.

    The function calls `join` and `train` as a script does. `workers=(4, 12)` begins when 4 ranks have a place, and
    grows up to 12 as nodes are added. Each rank has one core and the given `resources`, such as {"GPU": 1}. Ranks that
    can replace each other are on different nodes, or on nodes with different values of the label `spread_over`.
    `within` is the timeout in seconds for the places. Lost ranks are restarted, at most `restarts` times in all. An
    error in a rank ends the run, and is raised here. The other arguments are those of `codedreduce.torch.launch`.
    """
    cloudpickle = require("cloudpickle", extra="ray")
    least, count = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= least <= count:
        raise UsageError(f"workers must be a number from 1, or a minimum and a maximum; got workers={workers}")
    if output not in ("root", "all"):
        raise UsageError(f"output must be 'root' or 'all', got {output!r}")
    if inject is not None:
        parse_delays(inject, workers=count, unit=1.0, seed=0)
    said = {
        "CODEDREDUCE_TREE": f"{count}x1", "CODEDREDUCE_SCHEME": "striped", "CODEDREDUCE_STRAGGLERS": "1",
        **({"CODEDREDUCE_LEAST": str(least)} if least < count else {}),
        **({"CODEDREDUCE_INJECT": inject} if inject is not None else {}), **(variables or {}),
    }  # fmt: skip
    what = Launch(
        command=[PYTHON, "-m", "codedreduce.torch.launched_process"], count=count, variables=said, times=restarts,
        only_lost=True, ends_at_interrupt=True, timing=timing_said({**os.environ, **said}),
    )  # fmt: skip
    wanted = Wanted(least=least, count=count, resources=resources or {}, spread_over=spread_over, within=within)
    given = cloudpickle.dumps((function, args))
    on = OnRay(wanted=wanted, plan=Striped(count).plan(samples=SAMPLES), address=address, given=given)
    with watching(live) as watch:
        show = Show(watch.say) if output == "all" else OnlyFirst(watch.write, watch.say)
        returned = launch_on(on, what, show, watch.hear)
    if returned is None:
        raise CodedReduceError("rank 0 was lost, and with it the function's result; the run continued without it")
    result: T = cloudpickle.loads(returned)
    return result


def launch_on(on: OnRay, what: Launch, show: Show, hear: Hear = lambda word: None) -> bytes | None:
    """Run a launch on a cluster; return the pickled result of rank 0's function, if there is one."""
    with connected(on.address) as ray:
        reservation = Reservation(ray, on.wanted, on.plan)
        given = ray.put(on.given) if on.given is not None else None
        actors = Actors(ray, reservation, show.note, given)
        metrics = Metrics()
        try:
            reservation.wait(lambda words: show.note(0, words))
            for words in reservation.clashes():
                show.note(0, f"({words})")
            placement = _placement(actors, on.wanted)
            variables = {**_own_variables(), STEPS: "1", **what.variables}

            def hear_both(word: Any) -> None:
                metrics.hear(word)
                hear(word)

            start(replace(what, placement=placement, variables=variables), show, hear_both)
        finally:
            actors.end(0.0)
            reservation.release()
        return actors.returned


def placement_of(on: OnRay, note: Callable[[str], None]) -> tuple[tuple[Spot, ...], list[str]]:
    """The places that the ranks would have now, and warnings about them; starts no rank."""
    with connected(on.address) as ray:
        reservation = Reservation(ray, on.wanted, on.plan)
        try:
            reservation.wait(note)
            return reservation.spots, reservation.clashes()
        finally:
            reservation.release()


def _placement(actors: Actors, wanted: Wanted) -> Placement:
    """The places of the ranks. If all are on one node and none can join elsewhere, they share memory; else TCP."""
    abouts = actors.seat(range(wanted.least))
    addresses = [about.address for about in abouts]
    if wanted.least == wanted.count and len({about.node for about in abouts}) == 1:
        actors.only_node = abouts[0].node
        addresses = ["127.0.0.1"] * wanted.count
    addresses += [addresses[0]] * (wanted.count - wanted.least)  # a later rank gets its real address when it starts
    return Placement(addresses=tuple(addresses), starter=lambda: actors, port=abouts[0].port, inherits=False)


def _own_variables() -> dict[str, str]:
    """The CODEDREDUCE_ variables of this process, for the ranks; the secret is sent separately."""
    by_itself = (PIPE, VARIABLE, FILE_VARIABLE)
    return {
        name: value for name, value in os.environ.items() if name.startswith("CODEDREDUCE_") and name not in by_itself
    }


def portable(command: list[str]) -> list[str]:
    """A command for other hosts: their own interpreter, and the path of the script relative to this folder.

    >>> portable([sys.executable, os.path.join(os.getcwd(), "train.py"), "--fast"])
    ['python', 'train.py', '--fast']
    """
    first, *rest = command
    if rest and os.path.isabs(rest[0]) and not os.path.relpath(rest[0]).startswith(".."):
        rest[0] = os.path.relpath(rest[0])
    return [PYTHON if first == sys.executable else first, *rest]
