"""Rank, size and rendezvous address of a process of a Slurm step.

`srun python train.py` is enough: rank 0 is on the first host of the step. The port follows from the numbers of job and
step, which all processes of the step know and no other step has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from codedreduce.errors import UsageError
from codedreduce.process.addresses import derived_port

#: Ports reserved for a job: the number of its steps that can run side by side.
STEPS = 16

#: Limit on the hosts of a list: a typing error could name very many.
MOST_HOSTS = 100_000


def said_by_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE and, for several processes, the rendezvous address; nothing outside a step.

    >>> said_by_slurm({
    ...     "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "4",
    ...     "SLURM_JOB_NODELIST": "gpu[03-04]",
    ... }) == {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03", "MASTER_PORT": "20112"}
    True
    """
    size = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS"))
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment or size is None:
        return {}  # a batch script without srun is one process
    said = {"RANK": environment["SLURM_PROCID"], "WORLD_SIZE": size}
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    if size == "1" or has_parts(environment) or not nodes:
        return said
    hosts = expand(nodes)
    return {
        **said,
        "MASTER_ADDR": "127.0.0.1" if len(hosts) == 1 else hosts[0],
        "MASTER_PORT": str(_port(environment)),
    }


def has_parts(environment: Mapping[str, str]) -> bool:
    """Whether this is a heterogeneous job: each part has its own numbers and list of hosts."""
    return any(name.startswith("SLURM_HET_") for name in environment)


def times_requeued(environment: Mapping[str, str]) -> int:
    """How often the job was requeued after it had begun.

    >>> times_requeued({"SLURM_RESTART_COUNT": "2"}), times_requeued({})
    (2, 0)
    """
    text = environment.get("SLURM_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def named_by_slurm(environment: Mapping[str, str]) -> list[str]:
    """What distinguishes this launch from all others: job, step, and the number of requeues."""
    if "SLURM_STEP_ID" not in environment or has_parts(environment):
        return []
    requeued = times_requeued(environment)
    return [environment.get("SLURM_JOB_ID", ""), environment["SLURM_STEP_ID"], *([f"r{requeued}"] if requeued else [])]


def another_host(environment: Mapping[str, str]) -> str | None:
    """The second host of the step, if there is one: the route to it shows the address of the first."""
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    hosts = expand(nodes) if nodes and "SLURM_STEP_ID" in environment else []
    return hosts[1] if len(hosts) > 1 else None


def _port(environment: Mapping[str, str]) -> int:
    """Consecutive jobs get consecutive port ranges, so that concurrent jobs do not share a port."""
    job, step = environment.get("SLURM_JOB_ID", ""), environment["SLURM_STEP_ID"]
    if not (job.isdigit() and step.isdigit()):
        raise UsageError(
            f"SLURM_JOB_ID={job!r} and SLURM_STEP_ID={step!r} must be numbers: start the script with srun, or set "
            "MASTER_ADDR and MASTER_PORT"
        )
    return derived_port(int(job) * STEPS + int(step))


def expand(nodes: str) -> list[str]:
    """The hosts of a list in Slurm's format, in order.

    >>> expand("gpu[01-03,7],login,r[1-2]n[8-9]")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login', 'r1n8', 'r1n9', 'r2n8', 'r2n9']
    """
    found: list[str] = []
    for part in _split(nodes):
        for host in _each(part, nodes):
            found.append(host)
            if len(found) > MOST_HOSTS:
                raise UsageError(f"the list of hosts {nodes[:80]!r} names more than {MOST_HOSTS:,}")
    if not found:
        raise UsageError(f"the list of hosts {nodes!r} names none")
    return found


def _split(nodes: str) -> list[str]:
    """Split at the commas outside brackets."""
    return [part for part in re.split(r",(?![^\[\]]*\])", nodes.strip()) if part]


def _each(part: str, nodes: str) -> Iterator[str]:
    """The hosts of one part; with several brackets the last varies fastest."""
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", part)
    if match is None:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", part):
            raise _unreadable(nodes, part)
        yield part
        return
    before, numbers, after = match.groups()
    for number in _numbers(numbers, nodes):
        for rest in _each(after, nodes) if after else [""]:
            yield f"{before}{number}{rest}"


def _unreadable(nodes: str, at: str) -> UsageError:
    return UsageError(f"the list of hosts {nodes!r} cannot be read at {at!r}; write it as gpu[01-03,7],login")


def _numbers(text: str, nodes: str) -> Iterator[str]:
    for one in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", one)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise _unreadable(nodes, f"[{text}]")
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
