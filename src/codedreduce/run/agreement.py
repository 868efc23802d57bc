"""A run: where its nodes meet, what they are to do, and what they agree on. The same on every node."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from codedreduce._extras import require
from codedreduce.errors import UsageError
from codedreduce.memory.arena import memory_space
from codedreduce.process.addresses import own_address
from codedreduce.process.arithmetic import Arithmetic, of_numpy
from codedreduce.process.private_folder import run_folder
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings
from codedreduce.protocol.core.audits import Audit, check_auditable
from codedreduce.protocol.core.settings import WAIT_ON, Excess
from codedreduce.run.failures import REFUSE, check_nonfinite
from codedreduce.run.tuning import settings_for
from codedreduce.schemes import Plan, RingPlan, StripedPlan

Dtype = np.dtype[np.generic]
FLOAT32: Dtype = np.dtype(np.float32)

#: In a subject, between things that may differ; before where memory is shared.
APART = "; "
SHARING = f"{APART}shares "


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where a run meets: its name, the root's address, and whether its nodes share this machine's memory.

    `root_within`: seconds a node looks for the root. `all_within`: seconds that all nodes together have to come up.
    `orphaned_after`: seconds a node waits for a parent, or a rank for rank 0, that cannot be reached.
    `least`: how many workers must have come for the run to begin; without it all must. `also`: further machines at
    which, by the same port, the run can be met. `series`, `training`: of which run's trainings this is one, and which
    (`trainings.py`). `secret`: who knows it may be in; a run that meets at a port, and is
    not `insecure`, has one.
    """

    run: str
    host: str = "127.0.0.1"
    port: int = 0
    same_machine: bool = True
    shared_memory: bool = True
    subject: str = ""  # what is trained, in words; all nodes must say the same
    arithmetic: str = ""  # what it is computed with: others may have other bits, and are told of
    root_within: float = 30.0
    all_within: float = 120.0
    orphaned_after: float = 300.0
    grace: float = 30.0  # seconds that a process has to hand over when it is told to leave (SIGTERM)
    least: int | None = None
    also: tuple[str, ...] = ()
    restarts: bool = False  # whoever started this process starts it again if it ends with an error
    goes_on: bool = False  # this process was started again, to go on with the run that it finds
    series: str = ""
    training: int = 1
    generation: int = 0  # of ranks, who leads at first
    secret: Secret | None = None
    insecure: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """All places where somebody may answer, the root's first."""
        return tuple(dict.fromkeys((self.address, *(f"tcp://{host}:{self.port}" for host in self.also if self.port))))

    @property
    def address(self) -> str:
        """Where the root answers: at a port, or without one at a name on this machine."""
        return f"tcp://{self.host}:{self.port}" if self.port else f"ipc://{run_folder(self.run)}/book"

    def listen_at(self) -> str:
        """Where a node listens: a name on this machine, or an address others can reach."""
        if self.same_machine:
            return f"ipc://{run_folder(self.run)}/node"
        return f"tcp://{own_address(self.host, self.port)}"

    def check_protected(self) -> None:
        """Refuse to listen at a port without a secret, unless that was said to be meant."""
        if self.port and self.secret is None and not self.insecure:
            raise UsageError(
                f"the run meets at {self.address}, where others may come, and there is no secret to tell them by: make "
                "one with `codedreduce secret` (where machines share your home folder that is all), or hand one to all "
                "processes (CODEDREDUCE_SECRET_FILE or CODEDREDUCE_SECRET, in a batch script: export "
                "CODEDREDUCE_SECRET=$(openssl rand -hex 32)), or say that everybody may be in (--insecure, "
                "CODEDREDUCE_INSECURE=1)"
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a node must know to take part: `wire` is what numbers travel as, if not as they are."""

    meeting: Meeting
    plan: Plan
    settings: Settings
    dtype: Dtype = FLOAT32
    wire: Dtype | None = None
    nonfinite: str = REFUSE  # gradients that are not finite, or sum them like others

    def __post_init__(self) -> None:
        check_nonfinite(self.nonfinite)

    @classmethod
    def of(
        cls, meeting: Meeting, plan: Plan, length: int, *, dtype: Dtype = FLOAT32, wire: str | None = None,
        exact: int = 0, excess: Excess = WAIT_ON, after: int = 0, nonfinite: str = REFUSE, audit: Audit | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> Run:  # fmt: skip
        """A run for vectors of so many numbers, with settings that suit where it meets; the first round is after+1.

        `exact`: how many numbers at the end of a vector travel as they are, where the others travel as `wire`.
        """
        travels_as = _wire_dtype(wire)
        meeting = replace(meeting, arithmetic=str(arithmetic or of_numpy()))
        if audit is not None:
            check_auditable(plan)
            meeting = _saying_what_is_audited(meeting, audit)
        run = cls(
            meeting=meeting, plan=plan, settings=Settings(length=length), dtype=dtype, wire=travels_as,
            nonfinite=nonfinite,
        )  # fmt: skip
        settings = settings_for(
            plan, length, shared_memory=run.shares_memory, same_machine=meeting.same_machine,
            itemsize=(travels_as or dtype).itemsize, excess=excess,
        )  # fmt: skip
        if travels_as is not None:
            settings = _with_narrow_numbers(settings, plan, travels_as, exact, dtype)
        settings = replace(settings, after=after, generation=meeting.generation, audit=audit)
        return replace(run, meeting=_saying_whose_memory(meeting, run.shares_memory), settings=settings)

    @property
    def shares_memory(self) -> bool:
        """Whether vectors are read where they lie instead of being sent."""
        if isinstance(self.plan, StripedPlan) and self.plan.workers == 1:
            return False  # with whom?
        if self.wire is not None and not isinstance(self.plan, StripedPlan):
            return False  # a tree's sums are rounded on their way
        return self.meeting.shared_memory and self.meeting.same_machine


def _with_narrow_numbers(settings: Settings, plan: Plan, wire: Dtype, exact: int, dtype: Dtype) -> Settings:
    """Whole numbers of either type, wherever a chunk is cut: those that are exact begin where wide ones may lie."""
    if exact and isinstance(plan, RingPlan):
        raise UsageError("on a ring all numbers travel alike: exact must be 0")
    each = dtype.itemsize // wire.itemsize
    narrow = (settings.length - exact) // each * each
    chunk = -(-settings.chunk // each) * each
    return replace(settings, wire=wire, exact=settings.length - narrow if exact else 0, exact_itemsize=dtype.itemsize,
                   chunk=chunk)  # fmt: skip


def _saying_what_is_audited(meeting: Meeting, audit: Audit) -> Meeting:
    """All nodes must draw the same, and compute the same bits: audits compare these."""
    said = f"audits of {audit.fraction:g} with seed {audit.seed}, quarantine after {audit.quarantine}"
    subject = APART.join([meeting.subject, said, f"arithmetic {meeting.arithmetic}"])
    return replace(meeting, subject=subject) if meeting.subject else meeting


def _saying_whose_memory(meeting: Meeting, is_shared: bool) -> Meeting:
    """A node that could not read the others' memory, or they not its, is then refused when it joins."""
    whose = f"memory of PID namespace {memory_space()}" if is_shared else "no memory"
    return replace(meeting, subject=f"{meeting.subject}{SHARING}{whose}") if meeting.subject else meeting


def difference(node: int, has: str, root_has: str) -> str:
    """Why a node whose subject is not the root's cannot be in.

    >>> difference(3, "10 samples; seed 1; shares no memory", "10 samples; seed 0; shares no memory")
    'node 3 has seed 1, and the root seed 0: all must have the same'
    """
    (mine, _, my_memory), (roots, _, its_memory) = has.rpartition(SHARING), root_has.rpartition(SHARING)
    if mine != roots or not mine:
        ours, theirs = (mine or has).split(APART), (roots or root_has).split(APART)
        if len(ours) == len(theirs):  # name what differs, and nothing else
            pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
            ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]
        return f"node {node} has {APART.join(ours)}, and the root {APART.join(theirs)}: all must have the same"
    return (
        f"node {node} shares {my_memory}, and the root {its_memory}: they cannot read each other's; "
        "let all share none (CODEDREDUCE_SHARED_MEMORY=0)"
    )


def _wire_dtype(name: str | None) -> Dtype | None:
    if name is None:
        return None
    if name != "bfloat16":
        raise UsageError(f"numbers can travel as they are, or as bfloat16; not as {name!r}")
    found: Dtype = np.dtype(require("ml_dtypes", extra="torch").bfloat16)
    return found
