"""`codedreduce secret`: create the secret that authenticates the processes of a run."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from codedreduce.cli.terminal.console import make_console
from codedreduce.errors import UsageError
from codedreduce.process.secrets import FILE_VARIABLE, VARIABLE, Secret, default_file, read_secret, write_secret


def secret(
    file: Annotated[str | None, typer.Option(help="File for the secret; default: where processes look for it.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the existing secret, for a pipe.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Replace an existing secret.")] = False,
) -> None:
    """Create a secret, in a file that only you can read, for processes that you start by hand."""
    path = default_file() if file is None else file
    if not path or os.path.isdir(path):
        raise UsageError(f"`--file {path}`: this is not a file; name a file for the secret")
    if show:
        print(read_secret(path).reveal())
        return
    try:
        write_secret(path, Secret.fresh(), replaces=new)
    except FileExistsError:
        raise UsageError(
            f"{path} already has a secret: use it, or replace it with --new (current runs continue)"
        ) from None
    console = make_console()
    console.print(f"the secret is in {path}; only you can read this file")
    where = "they find it there" if file is None else f"set {FILE_VARIABLE}={path}"
    console.print(f"processes on this host: {where}")
    console.print(f"other hosts: copy the file with scp -p, so that only you can read it, or set {VARIABLE}")
