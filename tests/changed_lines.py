"""How many lines a port has that its plain script has not; `python -m tests.changed_lines` tells of all ports.

As `diff mnist_plain.py mnist.py | grep -c '^> .'` counts them: without blank lines.
"""

import subprocess
from pathlib import Path

PORTS = Path(__file__).parents[1] / "examples" / "ports"


def changed_lines(plain: Path, port: Path) -> int:
    """Lines that were written or changed to make a port of a plain script."""
    found = subprocess.run(["diff", str(plain), str(port)], capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    return sum(line.startswith("> ") and line != "> " for line in found.stdout.splitlines())


def ports() -> dict[str, int]:
    """The lines changed of every port, by its name."""
    return {
        plain.name.removesuffix("_plain.py"): changed_lines(plain, plain.with_name(plain.name.replace("_plain", "")))
        for plain in sorted(PORTS.glob("*_plain.py"))
    }


if __name__ == "__main__":
    for name, lines in ports().items():
        print(f"{name}: {lines}")
