"""Calls of `ip` and `tc` (iproute2), which create labs and need root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

from codedreduce.errors import LabFailed, LabUnavailable


def check_available() -> None:
    """Raise a one-line error if this user or host cannot create a lab."""
    if os.geteuid() != 0:
        raise LabUnavailable("a lab needs root (it creates network namespaces); run the command with sudo")
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise LabUnavailable(f"a lab needs {' and '.join(missing)}; install iproute2 (apt-get install iproute2)")


def batch(program: str, lines: Iterable[str], *, namespace: str | None = None) -> None:
    """Run many commands of `ip` or `tc` in one process."""
    inside = ["-n", namespace] if namespace else []
    run([program, *inside, "-batch", "-"], "\n".join(lines) + "\n")


def batch_anyway(program: str, lines: Iterable[str]) -> None:
    """The same, but continue after failed commands: things to remove may not exist any more."""
    command = [program, "-force", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)


def run(command: list[str], text: str | None = None) -> str:
    """Run a command. Returns its output, or raises an error with the first line of its message."""
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        words = (result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}").splitlines()
        if any("not permitted" in word for word in words):
            raise LabUnavailable(
                f"a lab needs permission to create network namespaces: {command[0]} reports {words[0]!r}"
            )
        raise LabFailed(f"{' '.join(command[:4])}: {words[0]}")
    return result.stdout


def query(command: list[str]) -> list[dict[str, Any]]:
    """The parsed output of `ip -json` or `tc -json`."""
    text = run(command).strip()
    found = json.loads(text) if text else []
    return [entry for entry in found if entry]


def succeeds(command: list[str]) -> bool:
    """Whether a command succeeds."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
