"""Golden traces: 200 random runs whose course and gradients may not change while the code is put in order.

    python -m tests.simulation.golden                    compare with golden.txt
    python -m tests.simulation.golden --write            freeze them anew: only where behaviour is meant to change
    python -m tests.simulation.golden --trace ranks 107  one course in full, to compare that of two commits with diff

A trace is written without words: notes, reasons and names of timers may be worded anew. Fields that have their default
are left out, so that a message may get another one. A class with a new name is entered in `NAMES`.

Coefficients of codes come from NumPy's linear algebra, of which the last bits depend on the host. Runs that used such
coefficients have `nearly` in the place of `sums`; on a host with another linear algebra their digests are not compared.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, is_dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from codedreduce.protocol.core.events import AnyAction, Event, Note, Transmit
from codedreduce.schemes import StripedPlan
from codedreduce.simulator import Gradients, Recorder
from codedreduce.simulator.scenario import ENDLESS, Scenario

from .soak import DRAWS


def random_rings(seed: int) -> Scenario:
    """A ring whose workers are late now and then."""
    random = np.random.default_rng([seed, 1])
    return Scenario(
        tree=f"{int(random.integers(1, 9))}x1", stragglers=0, scheme="ring", compute=6.0, rounds=5, seed=seed,
        samples=240, parameters=int(random.integers(8, 60)), chunk=int(random.choice([2, 7, 1000])),
        rate=float(random.choice([1e4, 1e6])), delays=str(random.choice(["calm", "exponential", "bursty"])),
    )  # fmt: skip


#: Which schedules: those of the other tests, and rings.
KINDS: dict[str, Callable[[int], Scenario]] = {**DRAWS, "rings": random_rings}

FILE = Path(__file__).with_suffix(".txt")

#: Runs of each kind of schedule. Kinds have seeds of their own: with the same ones they would be alike.
RUNS = 20
FIRST = {kind: 100 * index for index, kind in enumerate(KINDS)}

#: What a class is called in golden.txt, if it is called otherwise now.
NAMES: dict[str, str] = {
    "ComputationStopped": "Interrupted",
    "DamagedChunk": "Damaged",
    "NewReducer": "Keep",
    "StatePacked": "Packed",
}


class Course(Recorder):
    """What a run did, event by event, without words."""

    def __init__(self, lines: list[str] | None = None) -> None:
        super().__init__()
        self.events = 0
        self.messages = 0
        self.seconds_at_last = 0.0
        self.sums: set[tuple[int, int, float]] = set()  # round, checksum and residual of every gradient that was used
        self._digest = blake2b(digest_size=8)
        self._lines = lines

    @property
    def tracing(self) -> bool:
        return True

    def round_over(self, log) -> None:
        self.add(log)

    def trace(self, now: float, node: int, event: Event, actions: Sequence[AnyAction]) -> None:
        self.events += 1
        self.seconds_at_last = now
        self._add(f"{now:.9g} node {node} {plain(event)}")
        for action in actions:
            if isinstance(action, Transmit):
                self.messages += 1
            if not isinstance(action, Note):
                self._add(f"    -> {plain(action)}")

    def _add(self, line: str) -> None:
        self._digest.update(line.encode() + b"\n")
        if self._lines is not None:
            self._lines.append(line)

    def summary(self) -> str:
        """All of it on one line: numbers for people, digests for the comparison."""
        sums = blake2b(repr(sorted(self.sums)).encode(), digest_size=8).hexdigest()
        kind = "nearly" if any(residual for _, _, residual in self.sums) else "sums"
        return (
            f"rounds={len(self.rounds)} events={self.events} messages={self.messages} "
            f"seconds={self.seconds_at_last:.6g} {kind}={sums} trace={self._digest.hexdigest()}"
        )


def plain(thing: object) -> str:
    """A value as text: structures by name and what differs from their defaults, vectors by checksum, no words."""
    match thing:
        case str():
            return ""
        case float():
            return f"{thing:.9g}"
        case np.ndarray():
            return f"{thing.dtype}[{len(thing)}]:{zlib.crc32(np.ascontiguousarray(thing).data):08x}"
        case msgspec.Struct():
            name = type(thing).__name__
            fields, defaults = thing.__struct_fields__, thing.__struct_defaults__
            usual = dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True))
            values = {field: getattr(thing, field) for field in fields}
            told = [plain(value) for field, value in values.items() if _differs(value, usual.get(field, ...))]
            return f"{NAMES.get(name, name)}({' '.join(filter(None, told))})"
        case tuple() | list():
            return f"[{' '.join(map(plain, thing))}]"
    if is_dataclass(thing) and not isinstance(thing, type):
        return plain(astuple(thing))
    return repr(thing)


def _differs(value: object, default: object) -> bool:
    return type(value) is not type(default) or isinstance(value, np.ndarray) or value != default


def course(scenario: Scenario, lines: list[str] | None = None, gradients: Gradients | None = None) -> Course:
    """Run a scenario to its end; all ranks that are there leave, if it had all its rounds."""
    recorder = Course(lines)
    cluster = scenario.cluster(recorder=recorder, gradients=gradients)
    striped = isinstance(cluster.plan, StripedPlan)
    cluster.run(
        scenario.rounds, latest=ENDLESS / (20 if striped else 2),
        on_sum=lambda sum_: recorder.sums.add((sum_.round, zlib.crc32(sum_.vector.data), sum_.residual)),
    )  # fmt: skip
    if striped and len(recorder.rounds) == scenario.rounds:
        cluster.end(cluster.kernel.now + ENDLESS / 10)
    return recorder


def summaries(kind: str) -> list[str]:
    """The runs of a kind, a line each."""
    seeds = range(FIRST[kind], FIRST[kind] + RUNS)
    return [f"{kind} {seed} {course(KINDS[kind](seed)).summary()}" for seed in seeds]


def linear_algebra() -> str:
    """A digest of what this host's linear algebra computes."""
    random = np.random.default_rng(3)
    a, b = random.standard_normal((9, 5)), random.standard_normal(9)
    found = [*np.linalg.qr(a), *np.linalg.svd(a), np.linalg.lstsq(a, b, rcond=None)[0], np.linalg.norm(b), b @ a]
    return blake2b(b"".join(np.ascontiguousarray(one).tobytes() for one in found), digest_size=4).hexdigest()


def frozen(kind: str = "") -> list[str]:
    """The lines of golden.txt, or those of a kind."""
    return [line for line in FILE.read_text().splitlines()[1:] if line.startswith(f"{kind} " if kind else "")]


def is_same(line: str, other: str) -> bool:
    """Whether two runs are the same, as far as this host can tell."""
    if "nearly=" in line and linear_algebra() != FILE.read_text().split("\n")[0].split()[-1]:
        line, other = (one.split(" nearly=")[0] for one in (line, other))
    return line == other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--trace", nargs=2, metavar=("KIND", "SEED"))
    options = parser.parse_args()
    if options.trace:
        lines: list[str] = []
        summary = course(KINDS[options.trace[0]](int(options.trace[1])), lines).summary()
        print(*lines, summary, sep="\n")
        return
    now = [line for kind in KINDS for line in summaries(kind)]
    if options.write:
        FILE.write_text("\n".join([f"linear algebra {linear_algebra()}", *now]) + "\n")
        return
    different = [pair for pair in zip(frozen(), now, strict=True) if not is_same(*pair)]
    for golden, other in different:
        print(f"- {golden}\n+ {other}")
    print(f"{len(now)} runs, {len(different)} differ")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
