"""Which launcher has started this process, and what follows from its own names for things: RANK, WORLD_SIZE, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping

from codedreduce.errors import UsageError
from codedreduce.launch.mpi import named_by_mpi, said_by_mpi
from codedreduce.launch.slurm import named_by_slurm, said_by_slurm

#: What a process of several must know.
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def said_by_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """What mpiexec or srun says, in torchrun's names; nothing if RANK is said.

    An mpiexec may have started its helpers with srun: then Slurm's numbers are theirs, and not this process's.
    """
    if "RANK" in environment:
        return {}
    slurm = said_by_slurm(environment)
    is_slurms = slurm and all(environment.get(name, said) == said for name, said in _pmi(slurm).items())
    if is_slurms and "OMPI_COMM_WORLD_RANK" not in environment:
        return slurm
    return said_by_mpi(environment)


def _pmi(said: Mapping[str, str]) -> dict[str, str]:
    return {"PMI_RANK": said["RANK"], "PMI_SIZE": said["WORLD_SIZE"]}


def named_by_launcher(environment: Mapping[str, str]) -> list[str]:
    """What tells this launch from others at the same port, where a launcher says so to all processes alike.

    A process whose RANK was set by hand may be of another launch than the rest, and says nothing.

    >>> named_by_launcher({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"})
    ['7', '0']
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        said = [environment["TORCHELASTIC_RUN_ID"]]  # "none", if the user gave none
    elif "RANK" in environment:
        said = []
    elif "OMPI_COMM_WORLD_RANK" in environment or "SLURM_STEP_ID" not in environment:
        said = named_by_mpi(environment)
    else:
        said = named_by_slurm(environment)
    return [found for one in said if (found := re.sub(r"[^A-Za-z0-9]", "", one))]


def refuse_half(environment: Mapping[str, str]) -> None:
    """Say what is missing, and how to set it, if a launcher says who this is but not where all meet."""
    missing = [name for name in NEEDED if name not in environment]
    if not missing or "RANK" not in environment or environment.get("WORLD_SIZE", "1") == "1":
        return
    if "OMPI_COMM_WORLD_RANK" in environment:
        how = "mpiexec -x MASTER_ADDR=... -x MASTER_PORT=..."
    elif "PMI_RANK" in environment:
        how = "mpiexec -genv MASTER_ADDR ... -genv MASTER_PORT ..."
    elif "SLURM_STEP_ID" in environment:
        how = "export them ahead of srun"
    else:
        how = "in the environment of each process"
    raise UsageError(
        f"the launcher says which rank this is, but not {' and '.join(missing)}: set MASTER_ADDR and MASTER_PORT to an "
        f"address of rank 0's machine that all others reach and a free port there, the same for all ranks ({how})"
    )
