"""What launchers say to their processes, in their own names, and what follows from it."""

import signal
import socket
from collections.abc import Mapping
from dataclasses import fields

import pytest

from codedreduce.errors import UsageError
from codedreduce.launch.environment import read_membership
from codedreduce.launch.launchers import said_by_launcher
from codedreduce.launch.mpi import DAEMON, MPIEXEC, said_by_mpi
from codedreduce.launch.slurm import expand, said_by_slurm
from codedreduce.process import addresses
from codedreduce.process.termination import signals_to_leave
from codedreduce.run.agreement import Run
from codedreduce.schemes import Striped
from codedreduce.timing import TIMING, Timing

STEP = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_PROCID": "2", "SLURM_NTASKS": "6",
    "SLURM_STEP_NODELIST": "10.0.0.[1-3]",
}  # fmt: skip

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "1289748481", MPIEXEC: "1289748480.0;tcp://10.0.0.1,172.17.0.1:53187;tcp6://[fd00::2]:43489",
    DAEMON: "1289748480.1;tcp://10.0.0.2:40001",
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("gpu7", ["gpu7"]),
        ("b,a", ["b", "a"]),
        ("host[01-03,7],b", ["host01", "host02", "host03", "host7", "b"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[099-101].site", ["n099.site", "n100.site", "n101.site"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_lists_of_hosts(nodes: str, hosts: list[str]) -> None:
    assert expand(nodes) == hosts


@pytest.mark.parametrize(
    "nodes", ["", ",", "n[", "n[1-", "n]1[", "n[3-1]", "n[a-b]", "n[]", "a b", "n[1-2", "x[0-999999]"]
)
def test_lists_that_are_none(nodes: str) -> None:
    with pytest.raises(UsageError, match="list of hosts"):
        expand(nodes)


def test_a_step_meets_at_its_first_host() -> None:
    membership = read_membership({**STEP, "CODEDREDUCE_INSECURE": "1"})
    assert membership is not None
    assert (membership.rank, membership.size) == (2, 6)
    meeting = membership.meeting
    assert (meeting.host, meeting.port, meeting.same_machine) == ("10.0.0.1", 20_000 + 12 * 16 + 3, False)
    assert meeting.run == f"codedreduce-{meeting.port}-12-3"


def test_a_step_on_one_host_shares_its_memory() -> None:
    said = said_by_slurm({**STEP, "SLURM_STEP_NODELIST": "gpu7"})
    assert said["MASTER_ADDR"] == "127.0.0.1"


def test_ports_are_apart_and_not_those_that_systems_hand_out() -> None:
    steps = [{**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in range(700) for step in range(16)]
    ports = [int(said_by_slurm(one)["MASTER_PORT"]) for one in steps]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 20_000
    assert max(ports) < 32_768


def test_what_is_said_counts_before_what_follows() -> None:
    given = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29500", "CODEDREDUCE_INSECURE": "1"}
    membership = read_membership({**STEP, **given})
    assert membership is not None
    assert (membership.meeting.host, membership.meeting.port) == ("10.0.0.9", 29500)


def test_a_factor_shortens_all_durations_that_no_user_sets() -> None:
    given = {"CODEDREDUCE_TIMING": "0.1", "CODEDREDUCE_INSECURE": "1"}
    membership = read_membership({**STEP, **given})
    assert membership is not None
    run = Run.of(membership.meeting, Striped(6).plan(samples=60), 10)
    assert run.settings.timing == run.meeting.timing == TIMING.scaled(0.1)
    for one in fields(TIMING):
        assert getattr(run.settings.timing, one.name) == pytest.approx(0.1 * getattr(TIMING, one.name))
    assert run.meeting.root_within == 60.0, "a user sets it"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_durations_that_are_none(seconds: float) -> None:
    with pytest.raises(UsageError, match="a duration must be above 0 and finite, got linger"):
        Timing(linger=seconds)


def test_a_requeued_job_resumes_under_a_name_of_its_own() -> None:
    requeued = {**STEP, "SLURM_RESTART_COUNT": "1", "CODEDREDUCE_INSECURE": "1"}
    membership = read_membership(requeued)
    assert membership is not None
    assert membership.restarted == 1
    assert not membership.meeting.goes_on, "all of its processes are new: there is no run to go on with"
    assert membership.meeting.run.endswith("-12-3-r1")


@pytest.mark.parametrize("missing", [["SLURM_STEP_ID"], ["SLURM_PROCID"], ["SLURM_NTASKS"]])
def test_who_is_not_of_a_step_is_alone(missing: list[str]) -> None:
    assert read_membership({name: value for name, value in STEP.items() if name not in missing}) is None


def test_one_task_of_a_step_is_alone() -> None:
    assert read_membership({**STEP, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_HET_SIZE": "2"}, "export them ahead of srun"),
        ({"SLURM_STEP_NODELIST": ""}, "not MASTER_ADDR and MASTER_PORT"),
        ({"SLURM_JOB_ID": ""}, "SLURM_JOB_ID='' and SLURM_STEP_ID"),
    ],
)
def test_half_of_slurms_variables(variables: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_membership({**STEP, **variables})


def test_srun_with_pmi_is_slurms_and_mpiexec_over_srun_is_not() -> None:
    assert said_by_launcher({**STEP, "PMI_RANK": "2", "PMI_SIZE": "6"}) == said_by_slurm(STEP)
    assert said_by_launcher({**STEP, "PMI_RANK": "5", "PMI_SIZE": "12", "MASTER_ADDR": "a", "MASTER_PORT": "1"}) == {
        "RANK": "5", "WORLD_SIZE": "12",
    }  # fmt: skip


def test_open_mpi_meets_where_its_mpiexec_is() -> None:
    said = said_by_mpi(OPEN_MPI)
    assert said["MASTER_ADDR"] == "10.0.0.1"
    assert 20_000 <= int(said["MASTER_PORT"]) < 32_000
    assert said_by_mpi({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"})["MASTER_ADDR"] == "127.0.0.1"


def test_open_mpis_first_rank_must_be_there() -> None:
    with pytest.raises(UsageError, match="name this host first in the hostfile"):
        said_by_mpi({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    assert said_by_mpi({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", DAEMON: OPEN_MPI[MPIEXEC]})["RANK"] == "0"
    alone = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    assert said_by_mpi(alone)["MASTER_ADDR"] == "127.0.0.1", "all are on one machine, wherever that is"


@pytest.mark.parametrize(
    ("variables", "how"),
    [({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, "-x"), ({"PMI_RANK": "1", "PMI_SIZE": "3"}, "-genv")],
)
def test_an_mpiexec_that_says_nothing_of_itself(variables: Mapping[str, str], how: str) -> None:
    with pytest.raises(UsageError, match=f"mpiexec {how} MASTER_ADDR"):
        read_membership(variables)


def test_hydra_says_it_to_its_proxies() -> None:
    variables = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
    assert said_by_mpi(variables, control=lambda: "login1:34645")["MASTER_ADDR"] == "127.0.0.1"
    assert said_by_mpi(variables, control=lambda: "") == {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match=r"'nobody\.invalid'.* is not known on .*: set MASTER_ADDR to an address"):
        read_membership({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nobody.invalid", "MASTER_PORT": "29500"})


def test_a_machine_that_calls_itself_by_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's installer writes it into /etc/hosts."""
    names = {"gpu1": "127.0.1.1", "gpu2": "10.0.0.2"}
    monkeypatch.setattr(socket, "gethostbyname", names.__getitem__)
    monkeypatch.setattr(addresses, "own_address", lambda host, port: f"to {host}")
    assert addresses.numeric("gpu1", "gpu2") == "to 10.0.0.2"
    assert addresses.numeric("gpu1") == f"to {addresses.OUTSIDE}"
    assert addresses.numeric("gpu2") == "10.0.0.2"


def test_a_machine_with_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(host: str, port: int) -> str:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "gethostbyname", lambda host: "127.0.1.1")
    monkeypatch.setattr(addresses, "own_address", nowhere)
    with pytest.raises(UsageError, match=r"'gpu1' resolves to 127\.0\.1\.1 here"):
        addresses.numeric("gpu1")


def test_sigusr1_is_slurms() -> None:
    assert signals_to_leave({}) == (signal.SIGTERM, signal.SIGHUP)
    assert signals_to_leave(STEP) == (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
