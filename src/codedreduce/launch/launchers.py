"""Which launcher has started this process; its own variables translated to RANK, WORLD_SIZE, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping

from codedreduce.errors import UsageError
from codedreduce.launch.mpi import named_by_mpi, said_by_mpi
from codedreduce.launch.slurm import named_by_slurm, said_by_slurm

#: Variables that every process of a run with several processes needs.
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def said_by_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of mpiexec or srun, under torchrun's names; nothing if RANK is set.

    If mpiexec started its helpers with srun, Slurm's numbers describe the helpers and not this process.
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
    """What distinguishes this launch from others at the same port, if the launcher gives it to all processes alike.

    A process with a RANK set by hand may belong to another launch than the rest: the list is empty.

    >>> named_by_launcher({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"})
    ['7', '0']
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        said = [environment["TORCHELASTIC_RUN_ID"]]  # "none" by default
    elif "RANK" in environment:
        said = []
    elif "OMPI_COMM_WORLD_RANK" in environment or "SLURM_STEP_ID" not in environment:
        said = named_by_mpi(environment)
    else:
        said = named_by_slurm(environment)
    return [found for one in said if (found := re.sub(r"[^A-Za-z0-9]", "", one))]


def refuse_half(environment: Mapping[str, str]) -> None:
    """Report missing variables, and how to set them, if a launcher sets the rank but not the rendezvous address."""
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
        f"the launcher sets RANK, but not {' and '.join(missing)}: set MASTER_ADDR and MASTER_PORT to an address of "
        f"rank 0's host that all others reach and a free port there, the same for all ranks ({how})"
    )
