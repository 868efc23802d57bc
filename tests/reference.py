"""Writes docs/reference.md: commands and options as the command line has them, and all environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from codedreduce.cli import app
from codedreduce.launch.environment import WAITS
from codedreduce.protocol.core.audits import QUARANTINE

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reference.md"

_SECONDS = {name: f"{default:g}" for name, _, default in WAITS}

#: Variables that a user or a launcher sets: what they mean, and the default.
VARIABLES: dict[str, dict[str, tuple[str, str]]] = {
    "Which process this is": {
        "RANK": ("rank of this process, counted from 0", "from Slurm or MPI, else alone"),
        "WORLD_SIZE": ("number of processes", "from Slurm or MPI"),
        "MASTER_ADDR": ("host at which all processes meet: that of rank 0", "from Slurm"),
        "MASTER_PORT": ("port at which rank 0 listens there", "from Slurm or MPI"),
        "CODEDREDUCE_RUN": ("name of the run; processes with another name are refused", "from the port and the job"),
        "CODEDREDUCE_PORT": ("port at which all meet under torchrun with several hosts", "MASTER_PORT + 1"),
        "CODEDREDUCE_ALSO_AT": ("further hosts, separated by commas, at which they may meet", ""),
        "CODEDREDUCE_LEAST": ("ranks with which the run may begin", "all"),
        "CODEDREDUCE_RESTARTED": ("how often this process was started again", "0"),
        "CODEDREDUCE_RESTARTS": ("1: the launcher starts failed processes again", "0"),
    },
    "Scheme": {
        "CODEDREDUCE_TREE": ("tree, as FANOUTxDEPTH; of stripes 6x1 for 6 ranks", "striped over all ranks"),
        "CODEDREDUCE_SCHEME": ("scheme, as in `codedreduce run --scheme`", "coded-reduce"),
        "CODEDREDUCE_STRAGGLERS": ("stragglers that are tolerated at each parent", "1"),
        "CODEDREDUCE_ORDER": ("eager or progressive", "progressive"),
        "CODEDREDUCE_UNITS": ("units of a batch in stripes", "one per rank"),
    },
    "Behaviour": {
        "CODEDREDUCE_ON_EXCESS": ("wait, or approximate, when more are late than tolerated", "wait"),
        "CODEDREDUCE_NONFINITE": ("refuse gradients that are not finite, or pass them on", "refuse"),
        "CODEDREDUCE_AUDIT": ("fraction of the gradients that are computed twice and compared, in stripes", "0"),
        "CODEDREDUCE_QUARANTINE": ("wrong results after which a rank is not used again", str(QUARANTINE)),
        "CODEDREDUCE_SHARED_MEMORY": ("0: vectors do not travel through shared memory", "1"),
        "CODEDREDUCE_DEVICE_MEMORY": ("0: never by device memory; 1: all ranks have the same GPU", "found out"),
        "CODEDREDUCE_MPS": ("0: `codedreduce run` does not start NVIDIA MPS", "1"),
        "CODEDREDUCE_INJECT": ("delays to inject, as in `codedreduce run --inject`", ""),
    },
    "Seconds": {
        "CODEDREDUCE_ROOT_WITHIN": ("a process looks for rank 0 for so long", _SECONDS["CODEDREDUCE_ROOT_WITHIN"]),
        "CODEDREDUCE_ALL_WITHIN": ("all processes join within", _SECONDS["CODEDREDUCE_ALL_WITHIN"]),
        "CODEDREDUCE_ORPHANED_AFTER": (
            "a worker waits for its parent, a rank for a leader", _SECONDS["CODEDREDUCE_ORPHANED_AFTER"],
        ),
        "CODEDREDUCE_SAY_WAITING_AFTER": ("a round that cannot end reports the missing ranks after", "30"),
        "CODEDREDUCE_REPLAN_AFTER": ("a run waits for more losses than it tolerates", "10"),
        "CODEDREDUCE_GRACE": ("a process that is to leave may take", "30"),
        "CODEDREDUCE_TIMING": (
            "internal, for tests: a factor for the durations in `Timing`, the same for all processes", "1",
        ),
    },
    "Security": {
        "CODEDREDUCE_SECRET": ("the secret of the run", ""),
        "CODEDREDUCE_SECRET_FILE": ("file that holds it", "~/.config/codedreduce/secret"),
        "CODEDREDUCE_INSECURE": ("1: no secret, nothing is encrypted, everybody may join", "0"),
        "CODEDREDUCE_SSH": ("the ssh command of `codedreduce run --hosts`", "ssh"),
    },
    "Errors": {"CODEDREDUCE_DEBUG": ("1: show tracebacks", "0")},
    "Set by `codedreduce run` for its processes, and by nobody else": {
        "CODEDREDUCE_TELLS": ("descriptor of the pipe by which a process reports to its launcher", ""),
        "CODEDREDUCE_TELLS_STEPS": ("1: it reports steps as well", ""),
    },
}  # fmt: skip


def used_in_source() -> set[str]:
    """All variables of this project that its source names; HANDED_ON has the prefix alone."""
    found = (re.findall(r"CODEDREDUCE_[A-Z_]*[A-Z]", path.read_text()) for path in (ROOT / "src").rglob("*.py"))
    return {name for names in found for name in names}


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", r"\|")


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for part in command.commands:
            yield from _commands(command.commands[part], f"{name} {part}")
    else:
        yield name, command


def _default(option: Any) -> str:
    default = option.default
    if isinstance(shown := getattr(option, "show_default", None), str):  # what holds if the option is not given
        return f"`{_cell(shown)}`"
    if default is None or default is False or callable(default) or repr(default).endswith("UNSET"):
        return ""
    if default is True:
        return "on"
    return f"`{_cell(getattr(default, 'value', default))}`"


def _rows(command: Any) -> Iterator[str]:
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
        if one.param_type_name == "argument":
            names = f"`{(one.metavar or one.name).upper()}`"
        yield f"| {names} | {_cell(getattr(one, 'help', None) or '')} | {_default(one)} |"


def reference() -> str:
    """The page."""
    lines = [
        "# Reference: commands, options and environment variables", "",
        "Generated by `make docs`. What the commands do is told in [running.md](running.md), [lab.md](lab.md) and",
        "[clusters.md](clusters.md).", "", "## Commands", "",
    ]  # fmt: skip
    for name, command in _commands(typer.main.get_command(app), "codedreduce"):
        summary = (command.help or "").split("\n\n")[0]
        lines += [f"### {name}", "", _cell(summary), ""]
        if rows := list(_rows(command)):
            lines += ["| Option | Meaning | Default |", "|---|---|---|", *rows, ""]
    lines += ["## Environment variables", "", "Options of `codedreduce run` set most of them for its processes.", ""]
    for title, variables in VARIABLES.items():
        lines += [f"### {title}", "", "| Variable | Meaning | Default |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {_cell(meaning)} | {_cell(default)} |" for name, (meaning, default) in variables.items()
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    os.environ.setdefault("COLUMNS", "200")
    DOCUMENT.write_text(reference())


if __name__ == "__main__":
    main()
