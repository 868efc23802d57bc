"""Strangers send a run frames that are none while it computes: no crash, no hang, no growth, the same bits.

python -m tests.fuzz.fuzzing --frames 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import faulthandler
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.fuzz.runs import PLANS, Checked, memory_of
from tests.fuzz.sender import Order, Place, Visit
from tests.fuzz.strangers import BOOK, doors, role_of

#: Bytes that a process may have more at the end than after a fifth of the frames: what allocators and caches take.
GROWTH = 24 << 20

#: Seconds without a round after which it counts as hanging.
HANGS_AFTER = 120.0


class Fuzzer:
    """Sends so many messages to all sockets of a run in turns, from a process of its own (`sender`)."""

    def __init__(self, run: Checked, frames: int, seed: int) -> None:
        plan = run.plan
        places = [
            Place(node, plane, address, role_of(plan, node) + (", book of addresses" if plane == BOOK else ""))
            for (node, plane), address in sorted(doors(run.run).items())
        ]
        chunk = run.run.settings.chunk_bytes(0)
        self._order = Order(places, run.run.meeting.run, len(plan.nodes), chunk, frames, seed)
        self._thread = threading.Thread(target=self._all, daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.sent: Counter[str] = Counter()  # by role
        self.failure = ""

    def __enter__(self) -> Fuzzer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
        self._thread.join()

    @property
    def total(self) -> int:
        """How many have been sent."""
        return sum(self.sent.values())

    @property
    def is_over(self) -> bool:
        """Whether everything has been sent."""
        return not self._thread.is_alive()

    def _all(self) -> None:
        command = [sys.executable, "-m", "tests.fuzz.sender", msgspec.json.encode(self._order).decode()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as self._process:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                visit = msgspec.json.decode(line, type=Visit)
                self.sent[visit.role] += visit.frames
        if self._process.returncode != 0:
            self.failure = f"the sender ended with {self._process.returncode}"


@contextmanager
def watched() -> Iterator[None]:
    """A round that hangs ends this process, with where it was; whatever is raised, nothing is left that could."""
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def fuzz(kind: str, frames: int, seed: int, *, shared_memory: bool = False, say: bool = False) -> Fuzzer:
    """Run rounds while strangers send; raise if anything is other than it would be without them."""
    run = Checked(kind, shared_memory=shared_memory)
    with watched(), run.cluster() as cluster:
        run.round(cluster)
        early: dict[int, int] | None = None
        pids = cluster.processes
        with Fuzzer(run, frames, seed) as fuzzer:
            while not fuzzer.is_over:
                run.round(cluster)
                faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
                if early is None and fuzzer.total > frames // 5:
                    early = memory_of(cluster)
                if say and run.done % 500 == 0:
                    print(f"{kind}: {fuzzer.total} frames, {run.done} rounds", flush=True)
        for _ in range(5):
            run.round(cluster)
        after = memory_of(cluster)
        assert not fuzzer.failure, fuzzer.failure
        assert fuzzer.total == frames
        assert cluster.processes == pids, "nobody was started again"
        assert early is not None
        growth = {node: after[node] - early[node] for node in after}
        assert all(more < GROWTH for more in growth.values()), f"memory grew: {growth}"
        assert not run.journal.of_kind("dead"), "somebody died of it"
    return fuzzer


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for number, kind in enumerate(PLANS):
        for shared_memory in (False, True):
            frames = -(-options.frames // (2 * len(PLANS)))
            done = fuzz(kind, frames, options.seed + number, shared_memory=shared_memory, say=True)
            print(f"{kind}{', shared memory' if shared_memory else ''}: {dict(done.sent)}", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
