"""Which lines of the package are covered by which tests: without processes and sockets, and with them.

    python -m tests.coverage_by_tier                    both tiers: all tests, more slowly
    python -m tests.coverage_by_tier --only inner       those without processes

Prints a table by folder, and for each file the lines that only tests with real processes reach. Those are the ones
whose tests need seconds, and may depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import coverage

from tests.tiers import QUICK

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "codedreduce"

#: The tests of each tier.
TIERS = {
    "inner": [f"tests/{folder}" for folder in QUICK],
    "processes": ["tests/integration", "tests/fuzz"],
}

#: Processes that tests start are measured, too, also if they are forked or end by `os._exit`.
_CONFIGURATION = """[run]
branch = false
parallel = true
source_pkgs = codedreduce
data_file = {data}
patch = subprocess, fork, _exit
sigterm = true
"""


def measured(tier: str, folder: Path, at_once: int) -> coverage.CoverageData:
    """The lines that a tier reaches."""
    configuration, data = folder / f"{tier}.ini", folder / f"coverage-{tier}"
    configuration.write_text(_CONFIGURATION.format(data=data))
    command = [
        sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", "-m", "pytest", "-q", "-n", str(at_once),
        "--dist", "worksteal", *TIERS[tier],
    ]  # fmt: skip
    code = subprocess.call(command, cwd=ROOT)
    print(f"{tier}: pytest ended with {code}", flush=True)
    whole = coverage.Coverage(config_file=str(configuration))
    whole.combine([str(folder)])
    return whole.get_data()


def lines_of(data: coverage.CoverageData) -> dict[str, set[int]]:
    """By file of the package, the lines that were reached."""
    files = (Path(name) for name in data.measured_files())
    return {
        str(file.relative_to(PACKAGE)): set(data.lines(str(file)) or ())
        for file in files
        if file.is_relative_to(PACKAGE)
    }


def statements() -> dict[str, set[int]]:
    """By file of the package, the lines that hold statements."""
    analysis = coverage.Coverage(data_file=None, config_file=False)
    return {str(file.relative_to(PACKAGE)): set(analysis.analysis2(str(file))[1]) for file in PACKAGE.rglob("*.py")}


def as_ranges(numbers: set[int]) -> str:
    """Line numbers in few words.

    >>> as_ranges({1, 2, 3, 7})
    '1-3, 7'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TIERS), help="one tier")
    parser.add_argument("-n", "--at-once", type=int, default=os.cpu_count() or 1, help="tests at once")
    given = parser.parse_args()
    tiers = [given.only] if given.only else list(TIERS)
    there = statements()
    reached: dict[str, dict[str, set[int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for tier in tiers:
            own = Path(folder) / tier
            own.mkdir()
            reached[tier] = lines_of(measured(tier, own, given.at_once))
    table: dict[str, list[int]] = defaultdict(lambda: [0] * (len(tiers) + 2))
    for name, lines in there.items():
        every = set.union(*(reached[tier].get(name, set()) for tier in tiers)) & lines
        row = [len(lines), *(len(reached[tier].get(name, set()) & lines) for tier in tiers), len(every)]
        for key in (str(Path(name).parent), "all"):
            table[key] = [one + more for one, more in zip(table[key], row, strict=True)]
    print(f"\n{'folder':<24}{'lines':>8}" + "".join(f"{tier:>11}" for tier in tiers) + f"{'any':>8}")
    for key, (total, *counts) in sorted(table.items(), key=lambda item: (item[0] == "all", item[0])):
        print(f"{key:<24}{total:>8}" + "".join(f"{count / max(total, 1):>{11 if place < len(tiers) else 8}.0%}"
              for place, count in enumerate(counts)))  # fmt: skip
    if len(tiers) > 1:
        print("\nreached by tests with processes only:")
        for name, lines in sorted(there.items()):
            only = (reached["processes"].get(name, set()) - reached["inner"].get(name, set())) & lines
            if only:
                print(f"{name} ({len(only)} of {len(lines)}): {as_ranges(only)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
