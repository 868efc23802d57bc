"""A run: its rendezvous, its plan and its settings. They are the same on every rank."""

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
from codedreduce.protocol.core.settings import FLOAT32, Dtype
from codedreduce.run.configuration import DEFAULTS, Configuration
from codedreduce.run.failures import REFUSE
from codedreduce.run.tuning import settings_for
from codedreduce.schemes import Plan, RingPlan, StripedPlan
from codedreduce.timing import TIMING, Timing

#: Separators in a subject: between things that may differ, and before the shared memory.
APART = "; "
SHARING = f"{APART}shares "


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The rendezvous of a run: its name, the root's address, and whether its ranks share this host's memory.

    `root_within`: timeout in seconds for a rank to find the root. `all_within`: timeout for all ranks to join.
    `orphaned_after`: seconds that a rank waits for an unreachable parent, or for rank 0.
    `least`: number of workers that must join before the run begins; the default is all. `also`: further hosts that may
    serve the rendezvous, at the same port. `series`, `training`: the run to which this training belongs, and its number
    (`trainings.py`). `secret`: admits a process to the run; a run with a port has one unless it is `insecure`.
    """

    run: str
    host: str = "127.0.0.1"
    port: int = 0
    same_machine: bool = True
    shared_memory: bool = True
    subject: str = ""  # what is trained, as text; it must be equal on all ranks
    arithmetic: str = ""  # kind of arithmetic; a rank with another kind is reported
    root_within: float = 30.0
    all_within: float = 120.0
    orphaned_after: float = 300.0
    grace: float = 30.0  # seconds that a process has to hand over after SIGTERM
    least: int | None = None
    also: tuple[str, ...] = ()
    restarts: bool = False  # the launcher restarts this process if it ends with an error
    goes_on: bool = False  # this process was restarted, to continue the run that it finds
    series: str = ""
    training: int = 1
    generation: int = 0  # it determines which rank leads at first
    secret: Secret | None = None
    insecure: bool = False
    timing: Timing = TIMING  # all durations that no user sets

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses where a rank may serve the rendezvous, the root's first."""
        return tuple(dict.fromkeys((self.address, *(f"tcp://{host}:{self.port}" for host in self.also if self.port))))

    @property
    def address(self) -> str:
        """Where the root serves the rendezvous: at a port, or without one at a local socket."""
        return f"tcp://{self.host}:{self.port}" if self.port else f"ipc://{run_folder(self.run)}/book"

    def listen_at(self) -> str:
        """Where a rank listens: at a local socket, or at an address that other hosts can reach."""
        if self.same_machine:
            return f"ipc://{run_folder(self.run)}/node"
        return f"tcp://{own_address(self.host, self.port)}"

    def check_protected(self) -> None:
        """Refuse to listen at a port without a secret, unless `insecure` is set."""
        if self.port and self.secret is None and not self.insecure:
            raise UsageError(
                f"the rendezvous at {self.address} is open to other users, and the run has no secret: make one with "
                "`codedreduce secret` (enough if hosts share your home folder), or pass one to all processes "
                "(CODEDREDUCE_SECRET_FILE or CODEDREDUCE_SECRET, in a batch script: export "
                "CODEDREDUCE_SECRET=$(openssl rand -hex 32)), or admit every process (--insecure, "
                "CODEDREDUCE_INSECURE=1)"
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a rank must know to take part. The settings have the durations of the meeting."""

    meeting: Meeting
    plan: Plan
    settings: Settings
    nonfinite: str = REFUSE  # what to do with gradients that are not finite

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", replace(self.settings, timing=self.meeting.timing))

    @classmethod
    def of(
        cls, meeting: Meeting, plan: Plan, length: int, configuration: Configuration = DEFAULTS, *,
        dtype: Dtype = FLOAT32, wire: str | None = None, exact: int = 0, after: int = 0, seed: int = 0,
        arithmetic: Arithmetic | None = None,
    ) -> Run:  # fmt: skip
        """A run for vectors of `length` numbers, with settings that suit its rendezvous; the first round is after+1.

        `exact`: count of numbers at the end of a vector that are sent as `dtype`, while the others are sent as `wire`.
        """
        audit = configuration.audit.of(seed)
        travels_as = _wire_dtype(wire)
        meeting = replace(meeting, arithmetic=str(arithmetic or of_numpy()))
        if audit is not None:
            check_auditable(plan)
            meeting = _saying_what_is_audited(meeting, audit)
        is_shared = _shares_memory(meeting, plan, travels_as)
        settings = settings_for(
            plan, length, shared_memory=is_shared, same_machine=meeting.same_machine, dtype=dtype, wire=travels_as
        )  # fmt: skip
        if travels_as is not None:
            settings = _with_exact_numbers(settings, plan, exact)
        settings = replace(
            settings, excess=configuration.excess, audit=audit, after=after, generation=meeting.generation,
            least=meeting.least,
        )  # fmt: skip
        meeting = _saying_whose_memory(meeting, is_shared)
        return cls(meeting=meeting, plan=plan, settings=settings, nonfinite=configuration.nonfinite)

    @property
    def shares_memory(self) -> bool:
        """Whether ranks read vectors in shared memory instead of sending them."""
        return _shares_memory(self.meeting, self.plan, self.settings.wire)


def _shares_memory(meeting: Meeting, plan: Plan, wire: Dtype | None) -> bool:
    if isinstance(plan, StripedPlan) and plan.workers == 1:
        return False  # there is no other rank
    if wire is not None and not isinstance(plan, StripedPlan):
        return False  # a tree's sums are rounded on their way
    return meeting.shared_memory and meeting.same_machine


def _with_exact_numbers(settings: Settings, plan: Plan, exact: int) -> Settings:
    """Chunks end between numbers of either type, and the exact numbers begin at an aligned position."""
    if exact and isinstance(plan, RingPlan):
        raise UsageError("a ring sends all numbers as one type: exact must be 0")
    each = settings.exact_itemsize // settings.itemsize
    narrow = (settings.length - exact) // each * each
    chunk = -(-settings.chunk // each) * each
    return replace(settings, exact=settings.length - narrow if exact else 0, chunk=chunk)


def _saying_what_is_audited(meeting: Meeting, audit: Audit) -> Meeting:
    """All ranks must draw the same audits and compute bit-identical results, which audits compare."""
    said = f"audits of {audit.fraction:g} with seed {audit.seed}, quarantine after {audit.quarantine}"
    subject = APART.join([meeting.subject, said, f"arithmetic {meeting.arithmetic}"])
    return replace(meeting, subject=subject) if meeting.subject else meeting


def _saying_whose_memory(meeting: Meeting, is_shared: bool) -> Meeting:
    """Add the memory to the subject: the run then refuses a rank that cannot share memory with the others."""
    memory = f"memory of PID namespace {memory_space()}" if is_shared else "no memory"
    return replace(meeting, subject=f"{meeting.subject}{SHARING}{memory}") if meeting.subject else meeting


def difference(node: int, has: str, root_has: str) -> str:
    """Why a run refuses a rank with another subject than the root's.

    >>> difference(3, "10 samples; seed 1; shares no memory", "10 samples; seed 0; shares no memory")
    'rank 3 has seed 1, and the root seed 0: all must have the same'
    """
    (mine, _, my_memory), (roots, _, its_memory) = has.rpartition(SHARING), root_has.rpartition(SHARING)
    if mine != roots or not mine:
        ours, theirs = (mine or has).split(APART), (roots or root_has).split(APART)
        if len(ours) == len(theirs):  # name only what differs
            pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
            ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]
        return f"rank {node} has {APART.join(ours)}, and the root {APART.join(theirs)}: all must have the same"
    return (
        f"rank {node} shares {my_memory}, and the root {its_memory}: they cannot read each other's; "
        "disable shared memory on all ranks (CODEDREDUCE_SHARED_MEMORY=0)"
    )


def _wire_dtype(name: str | None) -> Dtype | None:
    if name is None:
        return None
    if name != "bfloat16":
        raise UsageError(f"wire must be None or 'bfloat16', got {name!r}")
    found: Dtype = np.dtype(require("ml_dtypes", extra="torch").bfloat16)
    return found
