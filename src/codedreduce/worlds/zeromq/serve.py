"""The life of a worker process over ZeroMQ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import zmq

from codedreduce.errors import JoinRefused
from codedreduce.protocol import Settings
from codedreduce.protocol.events import Aggregated, Event, Finished
from codedreduce.schemes import Plan
from codedreduce.worlds.inject import Injection, Injector
from codedreduce.worlds.zeromq.computing import Computing, Gradient, Record
from codedreduce.worlds.zeromq.node import Meeting, arena_for, start_worker


def serve_worker(
    meeting: Meeting,
    node: int,
    plan: Plan,
    settings: Settings,
    dtype: np.dtype[np.generic],
    gradient: Gradient,
    injection: Injection | None,
    *,
    begin: Event | None = None,
    aggregated: Callable[[Aggregated], Event | None] | None = None,
    record: Record | None = None,
) -> Finished:
    """Join, compute what is asked for, and leave when the run is over."""
    arena = arena_for(meeting, node, plan, settings, dtype)
    computing = Computing(
        gradient,
        node=node,
        length=settings.length,
        dtype=dtype,
        arena=arena,
        injector=Injector(injection, node) if injection is not None else None,
        aggregated=aggregated,
        record=record,
        wire=meeting.wire_dtype(),
    )
    driver = None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        driver = start_worker(meeting, node, plan, settings, dtype, arena, computing.tell, context)
        if begin is not None:
            driver.post(begin)
        finished = computing.serve(driver.post)
        driver.join(timeout=5)
    finally:
        if driver is not None:
            driver.leave("this worker failed")
        else:
            context.destroy(linger=0)
        if arena is not None:
            arena.close()
    if driver.failure is not None:
        raise driver.failure
    if getattr(driver.machine, "refused", None):
        raise JoinRefused(finished.reason)
    if not driver.is_alive():
        context.term()  # not before the children have been told
    return finished
