"""Strangers and members at the sockets of real runs over TCP: who is let in, as whom, and what the others notice."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from codedreduce import CodedReduce, Striped, Tree
from codedreduce.errors import JoinRefused, UsageError
from codedreduce.net.buffers import Buffers
from codedreduce.net.connections import Endpoints, name_of
from codedreduce.net.frames import OPEN_ASKING, PLAIN
from codedreduce.net.keys import Guard, pair_of_books
from codedreduce.net.mesh import Mesh
from codedreduce.net.rendezvous.registration import Registration
from codedreduce.node.local import LocalCluster
from codedreduce.node.node import Node
from codedreduce.process.addresses import free_port
from codedreduce.process.secrets import Secret
from codedreduce.protocol import Settings
from codedreduce.protocol.core.messages import Goodbye
from codedreduce.protocol.core.wire import encode
from codedreduce.protocol.rights import rights_at
from codedreduce.run.agreement import Meeting, Run
from codedreduce.run.journal import Journal
from codedreduce.run.world import World
from codedreduce.schemes import Piece, Plan
from codedreduce.timing import TIMING, Timing
from tests.raw import connect, find
from tests.sums import sums
from tests.waiting import PATIENCE

TREE = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=60)
STRIPES = Striped(4).plan(samples=60)
LENGTH = 1000
SETTINGS = Settings(length=LENGTH, least_head_start=0.02)
MODEL = np.arange(LENGTH, dtype=np.float32)
ROUNDS = 12

#: A process that is rejected believes it soon.
SOON = Timing(taken_retry=0.05, taken_timeout=0.5, rejection_timeout=0.3)


def counting(piece: Piece, model: np.ndarray, round_: int, out: np.ndarray, node: int) -> None:
    np.multiply(model, np.float32(sum(len(part) for part in piece)), out=out)


def rounds(world: World, count: int = ROUNDS, model: np.ndarray = MODEL) -> None:
    for vector in sums(world, model, count):
        np.testing.assert_array_equal(vector, 60 * model)


def meeting(**said: object) -> Meeting:
    run = f"codedreduce-{os.getpid()}-{time.monotonic_ns()}"
    of = {"secret": Secret.fresh(), "root_within": PATIENCE, **said}
    return Meeting(run=run, port=free_port(), same_machine=False, shared_memory=False, **of)  # type: ignore[arg-type]


@contextlib.contextmanager
def running(
    plan: Plan, at: Meeting, count: int = ROUNDS, model: np.ndarray = MODEL, **of: object
) -> Iterator[LocalCluster]:
    """A run over TCP; ranks of stripes begin as many rounds as the test does."""
    run = Run.of(at, plan, LENGTH)
    run = replace(run, settings=SETTINGS) if plan is TREE else run
    with LocalCluster(run, counting, member=lambda world: rounds(world, count, model), **of) as cluster:  # type: ignore[arg-type]
        yield cluster


def ports(cluster: LocalCluster) -> set[int]:
    """Where the processes of a run listen."""
    found = set()
    for pid in (os.getpid(), *cluster.processes.values()):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.port)
    return found


class Stranger:
    """Talks to all ports of a run, as anybody: whatever it is called, and with whatever keys it has."""

    def __init__(self) -> None:
        self.context: zmq.Context = zmq.Context()
        self.sockets: list[zmq.Socket] = []

    def talk(self, port: int, *, called: bytes, server_key: bytes | None = None, pair: tuple | None = None) -> None:
        talking = self.context.socket(zmq.DEALER)
        talking.setsockopt(zmq.LINGER, 0)
        talking.setsockopt(zmq.RECONNECT_IVL, 20)
        talking.setsockopt(zmq.ROUTING_ID, called)
        if server_key is not None:
            public, private = pair or zmq.curve_keypair()
            talking.setsockopt(zmq.CURVE_SERVERKEY, server_key)
            talking.setsockopt(zmq.CURVE_PUBLICKEY, public)
            talking.setsockopt(zmq.CURVE_SECRETKEY, private)
        talking.connect(f"tcp://127.0.0.1:{port}")
        tag = bytes(7) + b"\x07" + bytes(8)
        goodbye = encode(Goodbye(generation=0, round=0, reason="the stranger says so"))
        for message in ([OPEN_ASKING + tag], [PLAIN + tag + goodbye], [PLAIN + tag, bytes(4)], [b""], [bytes(40)]):
            with contextlib.suppress(zmq.Again):
                talking.send_multipart(message, zmq.DONTWAIT)
        self.sockets.append(talking)

    def heard(self) -> int:
        return sum(bool(talking.poll(0)) for talking in self.sockets)

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    one = Stranger()
    yield one
    one.close()


@pytest.mark.parametrize("plan", [TREE, STRIPES], ids=["tree", "stripes"])
@pytest.mark.parametrize("has", ["nothing", "a wrong key", "the books' key"])
def test_a_stranger_at_every_port_changes_nothing(plan: Plan, has: str, stranger: Stranger) -> None:
    """Called like a rank, like nobody, or by a name that is too long; even with the key by which books are found."""
    at = meeting()
    assert at.secret is not None
    journal = Journal()
    with running(plan, at, journal=journal) as cluster:
        rounds(cluster, 2)
        found = ports(cluster)
        assert len(found) >= (5 if plan is TREE else 9), "the book's, and two of everybody who is connected to"
        key = {
            "nothing": None,
            "a wrong key": zmq.curve_keypair()[0],
            "the books' key": pair_of_books(at.secret).public,
        }
        for port in found:
            for called in (name_of(1), name_of(0), b"\xff" * 5, b"x" * 200):
                stranger.talk(port, called=called, server_key=key[has])
        rounds(cluster, ROUNDS - 2)
        assert stranger.heard() == 0, "and nobody answers"
    kinds = set(journal.counts)
    assert not kinds & {"stranger", "unreadable", "dead", "lost"}, "the run does not notice"


@pytest.mark.parametrize("plan", [TREE, STRIPES], ids=["tree", "stripes"])
def test_a_wrong_secret_is_said_within_seconds_and_the_run_does_not_notice(plan: Plan) -> None:
    at = meeting()
    journal = Journal()
    with running(plan, at, journal=journal) as cluster:
        rounds(cluster, 2)
        said: list[BaseException] = []

        def come() -> None:
            other = Secret("not the one that the others have", "a wrong file")
            wrong = replace(cluster.run.meeting, secret=other, timing=SOON)
            try:
                Node(replace(cluster.run, meeting=wrong), 2, gradient=counting).__enter__()
            except BaseException as error:
                said.append(error)

        coming = threading.Thread(target=come)
        coming.start()
        rounds(cluster, 5)
        coming.join(timeout=PATIENCE)
        assert not coming.is_alive()
        rounds(cluster, ROUNDS - 7)
    (error,) = said
    assert isinstance(error, JoinRefused)
    assert str(error).startswith("authentication failed: the process at tcp://127.0.0.1:")
    assert "rejected rank 2's secret (a wrong file)" in str(error)
    assert "not the one that" not in str(error)
    assert not set(journal.counts) & {"stranger", "unreadable", "refused", "dead"}


@pytest.mark.parametrize("has", ["a secret", "none"])
def test_who_has_a_secret_and_who_has_none_do_not_come_together(has: str) -> None:
    root, node = (meeting(insecure=True, secret=None), Secret.fresh()) if has == "a secret" else (meeting(), None)
    with running(TREE, root) as cluster:
        with pytest.raises(JoinRefused, match="authentication failed"):
            find(
                zmq.Context.instance(), replace(root, secret=node, timing=SOON),
                Registration(root.run, 2, (0,), None, cluster.run.meeting.subject),
            )  # fmt: skip
        rounds(cluster)


def test_a_rank_that_is_taken_is_refused_though_the_secret_is_right() -> None:
    at = meeting()
    soon = replace(at, timing=SOON)
    with running(STRIPES, at) as cluster:
        rounds(cluster, 2)
        with pytest.raises(JoinRefused, match="rank 2 is taken"):
            find(
                zmq.Context.instance(), soon, Registration(at.run, 2, (0, 1, 3), None, cluster.run.meeting.subject, 77)
            )
        with pytest.raises(JoinRefused, match="rank 0 is taken"):
            find(
                zmq.Context.instance(), soon, Registration(at.run, 0, (1, 2, 3), None, cluster.run.meeting.subject, 78)
            )
        rounds(cluster, ROUNDS - 2)


def test_a_killed_worker_comes_back_with_a_new_key() -> None:
    with running(TREE, meeting(), restart=True) as cluster:
        rounds(cluster, 2)
        for node in (1, 5):
            before = cluster.processes[node]
            os.kill(before, signal.SIGKILL)
            deadline = time.monotonic() + PATIENCE
            while late(cluster) or cluster.processes.get(node, before) == before:
                assert time.monotonic() < deadline, "it is used again"


def late(cluster: LocalCluster) -> tuple[int, ...]:
    result = cluster.aggregate(MODEL)
    np.testing.assert_array_equal(result.vector, 60 * MODEL)
    time.sleep(0.01)
    return tuple(result.late)


class Member:
    """A process of a run, as far as its sockets go."""

    def __init__(self, rank: int, secret: Secret) -> None:
        self.context: zmq.Context = zmq.Context()
        self.guard = Guard(self.context, secret, TIMING)
        run = Run(meeting=Meeting(run="x", shared_memory=False), plan=STRIPES, settings=SETTINGS)
        self.mesh = Mesh(self.context, rank, SETTINGS, Buffers(run, rank), rights_at(rank, STRIPES), self.guard)
        self.endpoints = self.mesh.listen("tcp://127.0.0.1")

    def take(self) -> list[object]:
        return list(self.mesh.take({*self.mesh.sockets, *self.mesh.monitors}))

    def close(self) -> None:
        self.mesh.close()
        self.guard.close()
        self.context.destroy(linger=0)


@pytest.fixture
def members() -> Iterator[list[Member]]:
    secret = Secret.fresh()
    made = [Member(rank, secret) for rank in range(3)]
    yield made
    for member in made:
        member.close()


def meet(members: list[Member], within: float = PATIENCE) -> None:
    deadline = time.monotonic() + within
    while not all(link.session.is_up for member in members for link in member.mesh._links.values()):
        for member in members:
            member.take()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def introduce(members: list[Member]) -> None:
    for member in members:
        rank = member.mesh.node
        connect(member.mesh, {other.mesh.node: other.endpoints for other in members if other.mesh.node != rank})


def test_members_that_were_named_are_let_in(members: list[Member]) -> None:
    introduce(members)
    meet(members)
    assert all(not member.mesh.unreadable for member in members)


def test_who_comes_before_it_is_named_waits_and_is_let_in(members: list[Member]) -> None:
    introduce(members[1:])
    connect(members[1].mesh, {0: members[0].endpoints})
    connect(members[2].mesh, {0: members[0].endpoints})
    time.sleep(0.3)
    assert members[0].take() == [], "not named yet"
    introduce(members[:1] + members[1:])
    meet(members)


@pytest.mark.parametrize("plane", [0, 1])
def test_a_member_speaks_only_for_itself(members: list[Member], stranger: Stranger, plane: int) -> None:
    """Rank 2 has a key that was named, and calls itself rank 1."""
    introduce(members[:2])
    meet(members[:2])
    pair = zmq.curve_keypair()
    members[0].guard.name(2, pair[0].decode())
    port = int(members[0].endpoints[plane].rpartition(":")[2])
    key = members[0].endpoints.key.encode()
    stranger.talk(port, called=name_of(1), server_key=key, pair=pair)
    deadline = time.monotonic() + PATIENCE
    while not members[0].mesh.unreadable:
        assert [news for news in members[0].take() if getattr(news, "message", None) is not None] == []
        assert time.monotonic() < deadline
    assert {sender for sender, _ in members[0].mesh.unreadable} == {None}


def test_who_was_replaced_is_not_let_in_again(members: list[Member], stranger: Stranger) -> None:
    old, new = zmq.curve_keypair(), zmq.curve_keypair()
    introduce(members[:2])
    meet(members[:2])
    for pair in (old, new):
        members[0].guard.name(2, pair[0].decode())
    key = members[0].endpoints.key.encode()
    stranger.talk(int(members[0].endpoints.control.rpartition(":")[2]), called=name_of(2), server_key=key, pair=old)
    for _ in range(50):
        assert members[0].take() == []
        time.sleep(0.01)
    assert members[0].mesh.unreadable == []


def test_a_node_that_shows_another_key_than_it_has_is_refused() -> None:
    """Else it could have a rank's connections led to somebody else."""
    at = meeting()
    with running(TREE, at) as cluster:
        listens = Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", zmq.curve_keypair()[0].decode())
        with pytest.raises(JoinRefused, match="has the wrong secret"):
            find(
                zmq.Context.instance(), at, Registration(at.run, 3, (1,), listens, cluster.run.meeting.subject)
            )  # fmt: skip
        rounds(cluster)


def test_a_run_that_others_can_reach_needs_a_secret() -> None:
    at = replace(meeting(), secret=None)
    with pytest.raises(UsageError, match="is open to other users, and the run has no secret"):
        Node(Run.of(at, TREE, LENGTH), 0).__enter__()


def captured(at: Meeting) -> bool:
    """Whether the sum of a round is seen on the wire while a run goes on; the wire has other tests' runs on it, too."""
    model = np.random.default_rng().integers(1 << 16, size=LENGTH).astype(np.float32)  # so that sums are exact
    needle = (60 * model)[10:60].tobytes()
    seen = False
    over = threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
        wire.bind(("lo", 0))
        wire.settimeout(0.2)

        def listen() -> None:
            nonlocal seen
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    seen |= needle in wire.recv(1 << 17)

        listening = threading.Thread(target=listen)
        listening.start()
        try:
            with running(STRIPES, at, model=model) as cluster:
                rounds(cluster, model=model)
        finally:
            over.set()
            listening.join()
    return seen


@pytest.mark.skipif(os.getuid() != 0, reason="only root may listen to a wire")
def test_what_travels_cannot_be_read() -> None:
    """And could be, if it were not encrypted: the sum of a round is looked for."""
    assert captured(meeting(insecure=True, secret=None))
    assert not captured(meeting())


def as_nobody(act: object) -> int:
    """What comes of something that another user of this machine does: the exit code of its process."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            act()  # type: ignore[operator]
            code = 0
        except PermissionError:
            code = 13
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_other_users_of_this_machine_reach_neither_sockets_nor_memory() -> None:
    with LocalCluster.of(TREE, counting, SETTINGS) as cluster:
        at = cluster.run.meeting
        folder = Path(at.address.removeprefix("ipc://")).parent
        for name in ("book", "node-0-*-control", "node-0-*-data", "node-1-*-control", "node-1-*-data"):
            (path,) = map(str, folder.glob(name))  # of a process, and so with a number of its own

            def knock(path: str = path) -> None:
                socket.socket(socket.AF_UNIX).connect(path)

            knock()
            assert as_nobody(knock) == 13, "permission denied"
        memory = f"/proc/{os.getpid()}/fd"
        assert as_nobody(lambda: os.listdir(memory)) == 13
        for pid in cluster.processes.values():
            assert as_nobody(lambda pid=pid: os.listdir(f"/proc/{pid}/fd")) == 13
        with open("/proc/net/unix") as names:
            assert f"@{at.run}" not in names.read(), "nothing has a name that everybody can use"
        rounds(cluster)


#: What everybody sees of a process.
SHOWN = ["name", "cmdline"]

SHOWS = """
import logging, os, sys, time, traceback
logging.basicConfig(level=logging.DEBUG)
from codedreduce.training import LogisticRegression, SGD, synthetic, train
from codedreduce.launch.environment import read_membership
print(read_membership(os.environ), vars(read_membership(os.environ).meeting))

def on_round(log):
    if log.round == 3:
        open(sys.argv[1], "w").close()
        while not os.path.exists(sys.argv[1] + "-seen"):
            time.sleep(0.02)
        raise RuntimeError("to be seen")

train(LogisticRegression(), synthetic(600, 50), rounds=8, optimizer=SGD(1.0), on_round=on_round)
"""


def test_the_secret_is_in_no_argument_title_or_word(tmp_path: Path) -> None:
    """`codedreduce run` makes one; what it and its processes are called and print, and what they leave, has none."""
    script, sign = tmp_path / "script.py", tmp_path / "sign"
    script.write_text(SHOWS)
    command = [sys.executable, "-m", "codedreduce", "run", "-n", "1:3", "--start", "2", str(script), str(sign)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        deadline = time.monotonic() + PATIENCE
        while not sign.exists():
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.02)
        children = psutil.Process(run.pid).children()
        secrets = {child.environ()["CODEDREDUCE_SECRET"] for child in children}
        (secret,) = secrets
        titles = [" ".join([*(one.info["cmdline"] or ()), one.info["name"]]) for one in psutil.process_iter(SHOWN)]
        (tmp_path / "sign-seen").touch()
        said = run.communicate(timeout=PATIENCE)[0]
    assert len(secret) >= 40
    assert any(str(script) in title for title in titles)
    assert not [title for title in titles if secret in title]
    assert "to be seen" in said, "the traceback is there"
    assert "Secret(hidden)" in said
    assert "more processes may join" in said
    assert "CODEDREDUCE_SECRET_FILE=" in said
    assert secret not in said


def test_a_run_of_its_own_has_a_secret_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint('has', os.environ.get('CODEDREDUCE_SECRET'))\n")
    found = set()
    for more in ([], [], ["--insecure"]):
        command = [sys.executable, "-m", "codedreduce", "run", "-n", "2", "--output", "all", *more, str(script)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert run.returncode == 2, "nobody joined, and that is said"
        words = {line.rpartition("has ")[2] for line in run.stdout.splitlines()}
        assert len(words) == 1, "the same for all processes"
        found |= words
    assert len(found) == 3
    assert "None" in found, "said to do without"


def test_the_command_makes_a_secret_and_says_where(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "codedreduce", "secret"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=PATIENCE, env=environment)

    path = tmp_path / "codedreduce" / "secret"
    made = run()
    assert made.returncode == 0
    secret = path.read_text().strip()
    assert str(path) in made.stdout
    assert secret not in made.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    again = run()
    assert again.returncode == 2
    assert f"{path} already has a secret" in again.stderr
    assert path.read_text().strip() == secret
    assert run("--show").stdout == secret + "\n"
    assert run("--new").returncode == 0
    assert path.read_text().strip() != secret
