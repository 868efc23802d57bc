"""Rank, size and rendezvous address of a process that mpiexec has started.

A host and a number are the same for all processes of a launch: the host and the port of mpiexec itself. Open MPI has
them in variables. MPICH, and others made from Hydra, have them in the arguments of a parent process. Rank 0 must then
be on the host that mpiexec runs on: name that host first in the hostfile.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping

from codedreduce.errors import UsageError
from codedreduce.process.addresses import derived_port

#: Variables of Open MPI with the addresses of its mpiexec and of this host's daemon.
MPIEXEC, DAEMON = "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_local_daemon_uri"

#: Maximum number of processes between Hydra's proxy and this one: shells, wrappers, profilers.
GENERATIONS = 8


def hydra_control(process: str = "self") -> str:
    """HOST:PORT of the mpiexec above this process, from the arguments of Hydra's proxy; "" without one."""
    for _ in range(GENERATIONS):
        try:
            with open(f"/proc/{process}/stat") as file:
                process = file.read().rpartition(")")[2].split()[1]
            with open(f"/proc/{process}/cmdline") as file:
                words = file.read().split("\0")
        except (OSError, IndexError):
            break
        if "--control-port" in words[:-1]:
            return words[words.index("--control-port") + 1]
    return ""


def said_by_mpi(environment: Mapping[str, str], control: Callable[[], str] = hydra_control) -> dict[str, str]:
    """RANK, WORLD_SIZE and, for several processes, the rendezvous address if known; nothing without mpiexec.

    >>> said_by_mpi({"PMI_RANK": "1", "PMI_SIZE": "4"}, control=lambda: "login1:34645")
    {'RANK': '1', 'WORLD_SIZE': '4', 'MASTER_ADDR': 'login1', 'MASTER_PORT': '30645'}
    """
    is_open_mpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= environment.keys()
    if is_open_mpi:
        said = {"RANK": environment["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": environment["OMPI_COMM_WORLD_SIZE"]}
        is_local = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == said["WORLD_SIZE"]
    elif {"PMI_RANK", "PMI_SIZE"} <= environment.keys():
        said = {"RANK": environment["PMI_RANK"], "WORLD_SIZE": environment["PMI_SIZE"]}
        is_local = environment.get("MPI_LOCALNRANKS") == said["WORLD_SIZE"]
    else:
        return {}
    if said["WORLD_SIZE"] == "1" or {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return said
    host, port = _at_open_mpi(environment) if is_open_mpi else _at_hydra(control())
    if is_local:
        host = "127.0.0.1"
    elif is_open_mpi:
        _check_first(environment)
    return {**said, **({"MASTER_ADDR": host} if host else {}), **({"MASTER_PORT": port} if port else {})}


def named_by_mpi(environment: Mapping[str, str]) -> list[str]:
    """What distinguishes this launch from others."""
    if "OMPI_COMM_WORLD_RANK" in environment:
        return [environment.get("PMIX_NAMESPACE", "")]
    return [hydra_control()] if "PMI_RANK" in environment else []


def _check_first(environment: Mapping[str, str]) -> None:
    """Refuse a rank 0 that is not on the host of mpiexec: the others look for it there."""
    mpiexec, daemon = environment.get(MPIEXEC, ""), environment.get(DAEMON, "")
    if environment["OMPI_COMM_WORLD_RANK"] == "0" and mpiexec != daemon and "MASTER_ADDR" not in environment:
        raise UsageError(
            "rank 0 is on another host than mpiexec, and the other ranks cannot find it: name this host first "
            "in the hostfile, or set both for all (mpiexec -x MASTER_ADDR=... -x MASTER_PORT=...)"
        )


def _at_open_mpi(environment: Mapping[str, str]) -> tuple[str, str]:
    """The address of the host that mpiexec runs on, and a port for this launch; "" for one that is unknown."""
    found = re.search(r"tcp://([0-9.]+)", environment.get(MPIEXEC, ""))
    namespace = environment.get("PMIX_NAMESPACE", "")
    port = str(derived_port(zlib.crc32(namespace.encode()))) if namespace else ""
    return (found[1] if found else ""), port


def _at_hydra(control: str) -> tuple[str, str]:
    host, _, number = control.rpartition(":")
    return (host, str(derived_port(int(number)))) if host and number.isdigit() else ("", "")
