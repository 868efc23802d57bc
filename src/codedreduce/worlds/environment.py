"""Who this process is, as a launcher says: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codedreduce.errors import UsageError
from codedreduce.schemes import CodedReduce, Scheme
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.topology import Tree
from codedreduce.worlds.zeromq.node import Meeting

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """This process's place in a run: rank 0 is the root, the others are workers."""

    rank: int
    size: int
    meeting: Meeting
    scheme: Scheme | None
    inject: str | None

    @property
    def workers(self) -> int:
        """N."""
        return self.size - 1

    def scheme_or_default(self) -> Scheme:
        """What the launcher said, or a tree with fan-outs up to 4 in which one straggler is tolerated."""
        if self.scheme is not None:
            return self.scheme
        if self.workers < 2:
            return CodedReduce(Tree.regular(fanout=1, depth=1), 0)
        return CodedReduce(Tree.balanced(workers=self.workers, fanout=4, stragglers=1), 1)


def read_membership(environment: Mapping[str, str]) -> Membership | None:
    """The membership a launcher has set, or None if there was no launcher.

    >>> read_membership({}) is None
    True
    """
    translated = _translated(environment)
    environment = {**translated, **environment}
    if not all(name in environment for name in NEEDED):
        if translated and int(translated["WORLD_SIZE"]) > 1:
            raise UsageError(
                "the launcher says which rank this is, but not where the root is: set MASTER_ADDR and MASTER_PORT to "
                "an address of rank 0's machine and a free port there, the same for all ranks"
            )
        return None
    try:
        rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        stragglers = int(environment.get("CODEDREDUCE_STRAGGLERS", "1"))
        patience = float(environment.get("CODEDREDUCE_PATIENCE", "60"))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE, MASTER_PORT and CODEDREDUCE_* must be numbers: {error}") from None
    if not 0 <= rank < size or size < 2:
        raise UsageError(f"a run needs a root and a worker at least: RANK={rank} of WORLD_SIZE={size} cannot be")
    host = environment["MASTER_ADDR"]
    scheme = None
    if "CODEDREDUCE_TREE" in environment:
        scheme = parse_scheme(
            environment.get("CODEDREDUCE_SCHEME", "coded-reduce"),
            tree=parse_tree(environment["CODEDREDUCE_TREE"], stragglers),
            stragglers=stragglers,
            order=environment.get("CODEDREDUCE_ORDER", "progressive"),
        )
    meeting = Meeting(
        run=environment.get("CODEDREDUCE_RUN", f"codedreduce-{port}"),
        host=_numeric(host),
        port=port,
        same_machine=_is_loopback(host),
        patience=patience,
    )
    if "TORCHELASTIC_RUN_ID" in environment:
        meeting = _beside_torchrun(meeting, environment)
    return Membership(
        rank=rank, size=size, meeting=meeting, scheme=scheme, inject=environment.get("CODEDREDUCE_INJECT")
    )


def _beside_torchrun(meeting: Meeting, environment: Mapping[str, str]) -> Meeting:
    """torchrun itself listens at MASTER_PORT: on one machine a name is used instead, else the next port."""
    if environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        name = re.sub(r"[^A-Za-z0-9]", "", environment["TORCHELASTIC_RUN_ID"])
        run = f"codedreduce-{name}-{meeting.port}"
        return replace(meeting, run=run, host="127.0.0.1", port=0, same_machine=True)
    return replace(meeting, port=int(environment.get("CODEDREDUCE_PORT", meeting.port + 1)))


def _translated(environment: Mapping[str, str]) -> dict[str, str]:
    """Rank and size as MPI launchers and Slurm name them; the root's address must be given beside them."""
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"),
    ):  # fmt: skip
        if rank == "SLURM_PROCID" and "SLURM_STEP_ID" not in environment:
            continue  # a batch script that was not started by srun is one process
        if rank in environment and size in environment:
            return {"RANK": environment[rank], "WORLD_SIZE": environment[size]}
    return {}


def _numeric(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(_numeric(host)).is_loopback
    except ValueError:
        return False
