"""Runs the whole suite several times beside processes that keep all cores busy: no test may fail because of that.

python -m tests.busy --times 5           all tests
python -m tests.busy --times 1 --quick   those of `make test`
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

#: What a burning process does, until its parent is gone.
_BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Processes that take as much of the cores as the scheduler gives them."""
    processes = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
        for one in processes:
            one.wait()


def run_once(at_once: int, chosen: list[str]) -> tuple[int, list[str]]:
    """The exit code of a run of the suite, and the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-n", str(at_once), "--dist", "worksteal", "-q", *chosen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        failed = []
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.match(r"(?:FAILED|ERROR) (\S+)", line):
                failed.append(found[1])
    return process.returncode, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="runs of the suite (default: 5)")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="burning processes (default: the cores)")
    parser.add_argument("-n", "--at-once", type=int, default=2, help="tests at once (default: 2)")
    parser.add_argument("--quick", action="store_true", help="the tests of `make test` only")
    given = parser.parse_args()
    lines, failed, codes = [], Counter[str](), []
    for number in range(1, given.times + 1):
        began = time.monotonic()
        with busy_cores(given.busy):
            code, names = run_once(given.at_once, ["-m", "not rest"] if given.quick else [])
        codes.append(code)
        failed.update(names)
        lines.append(f"run {number}: exit {code}, {len(names)} failed, {time.monotonic() - began:.0f} s")
        print(lines[-1], flush=True)
    print("\n".join(["", f"{given.busy} busy processes, {given.at_once} tests at once", *lines]))
    for name, times in failed.most_common():
        print(f"failed {times} times: {name}")
    return 0 if not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
