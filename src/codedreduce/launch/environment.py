"""Read the place of this process in a run from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codedreduce.errors import SchemeError, UsageError
from codedreduce.launch.launchers import NEEDED, named_by_launcher, refuse_half, said_by_launcher
from codedreduce.launch.slurm import another_host, times_requeued
from codedreduce.process.addresses import is_loopback, numeric
from codedreduce.process.secrets import find_secret, is_insecure
from codedreduce.protocol.core.audits import QUARANTINE, Audit
from codedreduce.protocol.core.settings import Excess
from codedreduce.run.agreement import Meeting
from codedreduce.run.configuration import Configuration
from codedreduce.run.failures import REFUSE
from codedreduce.schemes import Plan, RingPlan, Scheme, Striped, StripedPlan
from codedreduce.schemes.names import parse_scheme, parse_tree
from codedreduce.timing import TIMING, Timing

#: Timeouts in seconds: the variable, the field of `Meeting`, and the default.
WAITS = (
    ("CODEDREDUCE_ROOT_WITHIN", "root_within", 60.0),
    ("CODEDREDUCE_ALL_WITHIN", "all_within", 120.0),
    ("CODEDREDUCE_ORPHANED_AFTER", "orphaned_after", 300.0),
)


#: Variables that have no effect without CODEDREDUCE_TREE.
OF_A_TREE = ("CODEDREDUCE_SCHEME", "CODEDREDUCE_STRAGGLERS", "CODEDREDUCE_ORDER")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The place of this process in a run: rank 0 is the root, the others are workers; in stripes all ranks compute.

    `units`: number of units of a batch in stripes; the default is one per rank. `restarted`: number of restarts of this
    process, including requeues of its Slurm job.
    """

    rank: int
    size: int
    meeting: Meeting
    scheme: Scheme | None
    configuration: Configuration
    units: int | None = None
    restarted: int = 0

    @property
    def workers(self) -> int:
        """N, where rank 0 is a root."""
        return self.size - 1

    @property
    def is_alone(self) -> bool:
        """Whether the run has one process (`torchrun --nproc-per-node 1`) and neither a scheme nor units are set."""
        return self.size == 1 and self.scheme is None and self.units is None

    def cut(self, scheme: Scheme) -> Scheme:
        """The scheme with the launcher's number of units, unless the scheme specifies its own."""
        if self.units is None:
            return scheme
        if not isinstance(scheme, Striped):
            raise SchemeError(f"CODEDREDUCE_UNITS is only for stripes: the workers of {scheme} determine its units")
        return scheme if scheme.units is not None else replace(scheme, units=self.units)

    def check(self, plan: Plan) -> None:
        """Refuse a plan for another number of workers, and a ring, which no single rank can leave."""
        if isinstance(plan, RingPlan):
            raise SchemeError("a ring has no root, and a training script needs one: use another scheme")
        if isinstance(plan, StripedPlan):
            if plan.workers != self.size:
                raise SchemeError(
                    f"the scheme {plan.scheme} has {plan.workers} ranks, and the launcher started {self.size} processes"
                )
        elif plan.workers != self.workers:
            raise SchemeError(
                f"the scheme {plan.scheme} has {plan.workers} workers, and the launcher started {self.workers}"
            )


def read_membership(environment: Mapping[str, str]) -> Membership | None:
    """The membership that a launcher has set, or None without a launcher.

    >>> read_membership({}) is None
    True
    """
    launch = named_by_launcher(environment)
    environment = {**said_by_launcher(environment), **environment}
    if not all(name in environment for name in NEEDED):
        refuse_half(environment)
        return None
    rank, size = int(_number(environment, "RANK")), int(_number(environment, "WORLD_SIZE"))
    if not 0 <= rank < size:
        raise UsageError(f"RANK={rank} is out of range for WORLD_SIZE={size}: set a rank from 0 to WORLD_SIZE - 1")
    least = int(_at_least(1, environment, "CODEDREDUCE_LEAST", size))
    if least > size:
        raise UsageError(f"CODEDREDUCE_LEAST={least} exceeds the number of ranks of the run ({size})")
    return Membership(
        rank=rank,
        units=units_said(environment),
        restarted=int(_at_least(0, environment, "CODEDREDUCE_RESTARTED", 0)) + times_requeued(environment),
        size=size,
        meeting=_meeting(environment, launch),
        scheme=_scheme(environment),
        configuration=_configuration(environment),
    )


def _configuration(environment: Mapping[str, str]) -> Configuration:
    return Configuration(
        inject=environment.get("CODEDREDUCE_INJECT"),
        excess=Excess(
            environment.get("CODEDREDUCE_ON_EXCESS", "wait"),
            _number(environment, "CODEDREDUCE_SAY_WAITING_AFTER", 30.0),
            _at_least(0, environment, "CODEDREDUCE_REPLAN_AFTER", 10.0),
        ),
        audit=Audit(
            _number(environment, "CODEDREDUCE_AUDIT", 0.0),
            int(_at_least(1, environment, "CODEDREDUCE_QUARANTINE", QUARANTINE)),
        ),
        nonfinite=environment.get("CODEDREDUCE_NONFINITE", REFUSE),
    )


def variables_of(configuration: Configuration) -> dict[str, str]:
    """The variables from which a process reads this configuration; `nonfinite` is not set by a launcher.

    >>> variables_of(Configuration(inject="bursty"))["CODEDREDUCE_INJECT"]
    'bursty'
    """
    excess, audit, inject = configuration.excess, configuration.audit, configuration.inject
    return {
        "CODEDREDUCE_ON_EXCESS": excess.do, "CODEDREDUCE_SAY_WAITING_AFTER": str(excess.say_waiting_after),
        "CODEDREDUCE_REPLAN_AFTER": f"{excess.replan_after:g}", "CODEDREDUCE_AUDIT": repr(audit.fraction),
        "CODEDREDUCE_QUARANTINE": str(audit.quarantine),
        **({"CODEDREDUCE_INJECT": inject} if inject is not None else {}),
    }  # fmt: skip


def units_said(environment: Mapping[str, str]) -> int | None:
    """Number of units of a batch in stripes, if it is set.

    >>> units_said({"CODEDREDUCE_UNITS": "12"}), units_said({})
    (12, None)
    """
    return int(_at_least(1, environment, "CODEDREDUCE_UNITS", 1)) if "CODEDREDUCE_UNITS" in environment else None


def timing_said(environment: Mapping[str, str]) -> Timing:
    """The durations of the protocol: the usual ones, or those times a factor.

    >>> timing_said({"CODEDREDUCE_TIMING": "0.1"}).connection_timeout
    0.4
    """
    factor = _number(environment, "CODEDREDUCE_TIMING", 1.0)
    if not 0 < factor <= 100:
        raise UsageError(
            f"CODEDREDUCE_TIMING must be above 0 and at most 100, got {environment['CODEDREDUCE_TIMING']!r}"
        )
    return TIMING.scaled(factor)


def _is_said(environment: Mapping[str, str], name: str) -> bool:
    """A switch that is on by default."""
    text = environment.get(name, "1")
    if text not in ("0", "1"):
        raise UsageError(f"{name} must be 0 or 1, got {text!r}")
    return text == "1"


def _number(environment: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return float(text or "") if default is not None else int(text or "")
    except ValueError:
        raise UsageError(f"{name} must be a number, got {text!r}") from None


def _at_least(least: int, environment: Mapping[str, str], name: str, default: float) -> float:
    value = _number(environment, name, default)
    if not value >= least:
        raise UsageError(f"{name} must be {least} or more, got {environment[name]!r}")
    return value


def _scheme(environment: Mapping[str, str]) -> Scheme | None:
    if "CODEDREDUCE_TREE" not in environment:
        for name in OF_A_TREE:
            if name in environment:
                raise UsageError(
                    f"{name}={environment[name]} has no effect without CODEDREDUCE_TREE: set that, too (FANOUTxDEPTH; "
                    "6x1 with CODEDREDUCE_SCHEME=striped for 6 ranks), or set neither"
                )
        return None
    stragglers = int(_number(environment, "CODEDREDUCE_STRAGGLERS", 1))
    return parse_scheme(
        environment.get("CODEDREDUCE_SCHEME", "coded-reduce"),
        tree=parse_tree(environment["CODEDREDUCE_TREE"], stragglers),
        stragglers=stragglers,
        order=environment.get("CODEDREDUCE_ORDER", "progressive"),
    )


def _meeting(environment: Mapping[str, str], launch: list[str]) -> Meeting:
    host, port = environment["MASTER_ADDR"], int(_number(environment, "MASTER_PORT"))
    meeting = Meeting(
        run=environment.get("CODEDREDUCE_RUN", "-".join(["codedreduce", str(port), *launch])),
        host=host,
        port=port,
        same_machine=is_loopback(host),
        shared_memory=_is_said(environment, "CODEDREDUCE_SHARED_MEMORY"),
        grace=_at_least(0, environment, "CODEDREDUCE_GRACE", 30.0),
        restarts=environment.get("CODEDREDUCE_RESTARTS", "0") != "0",
        timing=timing_said(environment),
        goes_on=_at_least(0, environment, "CODEDREDUCE_RESTARTED", 0) > 0,
        also=tuple(
            numeric(also) for also in environment.get("CODEDREDUCE_ALSO_AT", "").replace(" ", "").split(",") if also
        ),
        least=int(_number(environment, "CODEDREDUCE_LEAST")) if "CODEDREDUCE_LEAST" in environment else None,
        **{field: _number(environment, name, default) for name, field, default in WAITS},  # type: ignore[arg-type]
    )
    if "TORCHELASTIC_RUN_ID" in environment:
        meeting = _beside_torchrun(meeting, environment)
    meeting = replace(meeting, host=numeric(meeting.host, another_host(environment)))
    if is_insecure(environment):
        return replace(meeting, insecure=True)
    if not meeting.port:  # its sockets are files that only this user can open
        return meeting
    return replace(meeting, secret=find_secret(environment, make=meeting.same_machine and not meeting.also))


def _beside_torchrun(meeting: Meeting, environment: Mapping[str, str]) -> Meeting:
    """torchrun itself listens at MASTER_PORT: use a socket name on a single host, else the next port."""
    if environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        name = re.sub(r"[^A-Za-z0-9]", "", environment["TORCHELASTIC_RUN_ID"])
        run = f"codedreduce-{name}-{meeting.port}"
        return replace(meeting, run=run, host="127.0.0.1", port=0, same_machine=True)
    return replace(meeting, port=int(_number(environment, "CODEDREDUCE_PORT", meeting.port + 1)))
