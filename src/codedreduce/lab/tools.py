"""The programs a lab is made with: `ip` and `tc` of iproute2, as root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

from codedreduce.errors import LabFailed, LabUnavailable


def check_available() -> None:
    """Refuse at once, in one line, where no lab can be made."""
    if os.geteuid() != 0:
        raise LabUnavailable("a lab needs root (it makes network namespaces); run it with sudo")
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise LabUnavailable(f"a lab needs {' and '.join(missing)}; install iproute2 (apt-get install iproute2)")


def batch(program: str, lines: Iterable[str], *, namespace: str | None = None) -> None:
    """Give `ip` or `tc` many commands at once, in one process."""
    inside = ["-n", namespace] if namespace else []
    run([program, *inside, "-batch", "-"], "\n".join(lines) + "\n")


def batch_anyway(program: str, lines: Iterable[str]) -> None:
    """The same, going on after commands that fail: what is to be removed may be gone already."""
    command = [program, "-force", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)


def run(command: list[str], text: str | None = None) -> str:
    """Run a command; its output, or an error with its own words."""
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        words = (result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}").splitlines()
        if any("not permitted" in word for word in words):
            raise LabUnavailable(f"a lab needs the right to make network namespaces: {command[0]} says {words[0]!r}")
        raise LabFailed(f"{' '.join(command[:4])}: {words[0]}")
    return result.stdout


def query(command: list[str]) -> list[dict[str, Any]]:
    """What `ip -json` or `tc -json` answers."""
    text = run(command).strip()
    found = json.loads(text) if text else []
    return [entry for entry in found if entry]


def succeeds(command: list[str]) -> bool:
    """Whether a command works."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
