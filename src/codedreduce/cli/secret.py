"""`codedreduce secret`: make the secret by which processes of a run know each other."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from codedreduce.cli.terminal.console import make_console
from codedreduce.errors import UsageError
from codedreduce.process.secrets import FILE_VARIABLE, VARIABLE, Secret, default_file, read_secret, write_secret


def secret(
    file: Annotated[str | None, typer.Option(help="Where to; without it, where processes look by themselves.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the secret that is there, to be piped on.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Make another, though there is one.")] = False,
) -> None:
    """Make a secret, in a file that only you can read, for nodes that are started by hand."""
    path = default_file() if file is None else file
    if not path or os.path.isdir(path):
        raise UsageError(f"`--file {path}`: a secret is put into a file; name one")
    if show:
        print(read_secret(path).reveal())
        return
    try:
        write_secret(path, Secret.fresh(), replaces=new)
    except FileExistsError:
        raise UsageError(
            f"there is a secret in {path}: use it, or make another with --new (runs that have it go on)"
        ) from None
    console = make_console()
    console.print(f"a secret is in {path}, which only you can read")
    where = "they look for it there" if file is None else f"{FILE_VARIABLE}={path} tells them so"
    console.print(f"processes on this machine: {where}")
    console.print(f"on others: copy it, as by scp -p, readable by you alone; or hand it on as {VARIABLE}")
