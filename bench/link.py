"""Where a step of stripes goes on a rank's link: every chunk, and how busy the link is, one step of a calm lab.

python -m bench.link [--ranks 6] [--parameters 2000000] [--rate 100e6] [--rank 2] [--figure FILE.png] [--out FILE]

As root. The rank's chunks are noted when its node hands them to ZeroMQ, and when it gets them; the bytes of its link
are the kernel's counters of its interface, read every 5 ms. Of all steps the one is shown that took the median.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Container, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench import sides
from bench.measure import save
from codedreduce.lab import Lab
from codedreduce.net.carrier import Arrived, News
from codedreduce.net.mesh import Mesh
from codedreduce.protocol.core.events import Transmit
from codedreduce.protocol.core.messages import PartChunk, SumChunk
from codedreduce.report.palette import MUTED, group_colour

COUNTERS = "/proc/thread-self/net/dev"
SAMPLE_EVERY = 0.005
KINDS = ("part out", "part in", "sum out", "sum in")
NAMES: dict[type, str] = {PartChunk: "part", SumChunk: "sum"}

#: A link that carries this share of its rate is taken to be busy: the rest is headers and the counters' grain.
BUSY = 0.8


class Tap:
    """Notes what a rank's node sends and gets, and how many bytes its link carries."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, str, int]] = []
        self.bytes: list[tuple[float, int, int]] = []
        self._over = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def note(self, message: object, direction: str, size: int) -> None:
        name = NAMES.get(type(message))
        if name is not None:
            self.chunks.append((time.monotonic(), f"{name} {direction}", size))

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_EVERY):
            self.bytes.append((time.monotonic(), *_carried("eth0")))

    def write(self, path: str) -> None:
        self._over.set()
        Path(path).write_text(json.dumps({"chunks": self.chunks, "bytes": self.bytes}))


def _carried(interface: str) -> tuple[int, int]:
    """Bytes that an interface has sent and received."""
    for line in Path(COUNTERS).read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            numbers = counters.split()
            return int(numbers[8]), int(numbers[0])
    raise LookupError(f"there is no interface {interface} here")


def tapped(out: str, rank: int) -> Any:
    """A side whose rank notes what passes over its link."""
    plain = sides.codedreduce_side(None)

    def side(script: sides.Script, lab: Lab) -> None:
        if script.rank != rank:
            plain(script, lab)
            return
        tap = Tap()
        send, take = Mesh.send, Mesh.take

        def noted_send(self: Mesh, action: Transmit) -> None:
            tap.note(action.message, "out", 0 if action.data is None else action.data.nbytes)
            send(self, action)

        def noted_take(self: Mesh, ready: Container[object]) -> Iterator[News]:
            for news in take(self, ready):
                if isinstance(news, Arrived):
                    tap.note(news.message, "in", 0 if news.data is None else news.data.nbytes)
                yield news

        Mesh.send, Mesh.take = noted_send, noted_take  # type: ignore[method-assign,assignment]
        plain(script, lab)
        tap.write(f"{out}.tap")

    return side


def measure(case: sides.Case, rank: int) -> dict[str, Any]:
    """A calm training; of the step in the middle what passed over the rank's link, with times from its begin."""
    with sides.lab_of(case.ranks, case) as lab, tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        sides.run_forked(tapped(out, rank), case, lab, case.ranks, out)
        ends = json.loads(Path(out).read_text())["ends"]
        noted = json.loads(Path(f"{out}.tap").read_text())
    steps = sorted(list(itertools.pairwise(ends))[1:], key=lambda step: step[1] - step[0])
    begin, end = steps[len(steps) // 2]
    chunks = [(at - begin, kind, size) for at, kind, size in noted["chunks"] if begin <= at <= end]
    samples = np.array([(at - begin, sent, got) for at, sent, got in noted["bytes"] if begin <= at <= end])
    rates = np.diff(samples[:, 1:], axis=0) / np.diff(samples[:, 0])[:, None] / (case.rate / 8)
    return {
        "case": asdict(case), "rank": rank, "step": end - begin, "limit": case.limit, "chunks": chunks,
        "seconds": [step[1] - step[0] for step in itertools.pairwise(ends)],
        "at": samples[1:, 0].tolist(), "out": rates[:, 0].tolist(), "in": rates[:, 1].tolist(),
    }  # fmt: skip


def account(found: dict[str, Any]) -> dict[str, float]:
    """What the step spent, in seconds: the link before its first chunk, busy each way, and after its last."""
    at = np.array(found["at"])
    widths = np.diff(at, prepend=0.0)
    times = [one[0] for one in found["chunks"]]
    result = {"before the first chunk": min(times), "after the last chunk": found["step"] - max(times)}
    for way in ("out", "in"):
        busy = np.array(found[way]) >= BUSY
        carried = float((np.minimum(found[way], 1.2) * widths).sum())
        result[f"busy {way}"], result[f"carried {way}, of seconds at full rate"] = float(widths[busy].sum()), carried
    for kind in KINDS:
        when = [one[0] for one in found["chunks"] if one[1] == kind]
        result[f"first {kind}"], result[f"last {kind}"] = min(when), max(when)
    return result


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (chunks, link) = plt.subplots(2, 1, figsize=(9, 4.6), sharex=True, height_ratios=[1, 1.4])
    for row, kind in enumerate(KINDS):
        when = [1000 * one[0] for one in found["chunks"] if one[1] == kind]
        chunks.plot(when, [row] * len(when), "|", markersize=13, color=group_colour(row))
    chunks.set_yticks(range(len(KINDS)), KINDS)
    chunks.set_ylim(len(KINDS) - 0.4, -0.6)
    case = found["case"]
    chunks.set_title(
        f"rank {found['rank']} of {case['ranks']}, {case['parameters'] / 1e6:g} M float32, "
        f"{case['rate'] / 1e6:g} Mbit/s: a step of {found['step']:.2f} s; physics allows {found['limit']:.2f} s",
        fontsize=10,
    )  # fmt: skip
    for index, way in enumerate(("out", "in")):
        link.plot(1000 * np.array(found["at"]), _smooth(found[way]), color=group_colour(2 * index), label=way, lw=1.2)
    link.axhline(1, color=MUTED, lw=0.8)
    link.set_ylim(0, 1.4)
    link.set_ylabel("share of the link's rate")
    link.set_xlabel("milliseconds of the step")
    link.legend(frameon=False, ncols=2, loc="upper right")
    for axes in (chunks, link):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def _smooth(values: list[float], over: int = 4) -> np.ndarray[Any, Any]:
    return np.convolve(values, np.ones(over) / over, mode="same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--parameters", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=100e6)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = measure(sides.Case(options.ranks, options.parameters, options.rate), options.rank)
    print(f"step {found['step']:.3f} s, limit {found['limit']:.3f} s, {len(found['chunks'])} chunks")
    for what, seconds in account(found).items():
        print(f"  {what:40} {seconds:.3f} s")
    if options.figure is not None:
        draw(found, options.figure)
    save(options.out, found)


if __name__ == "__main__":
    main()
