"""The lab: made, used, broken and taken away, with real namespaces. Skipped where none can be made."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from codedreduce.errors import LabUnavailable, UsageError
from codedreduce.lab import Lab, check_available
from codedreduce.lab.laboratory import labs
from codedreduce.lab.namespaces import processes_in
from tests.command import codedreduce
from tests.waiting import PATIENCE, wait_until

from .test_launcher import script

try:
    check_available()
    REASON = ""
except LabUnavailable as error:
    REASON = str(error)

needs_lab = pytest.mark.skipif(bool(REASON), reason=REASON)

RATE = 60e6 / 8


@pytest.fixture
def lab():
    """A lab of its own for every test and test process."""
    name = f"t{os.getpid() % 1000000}"
    made = Lab.up(nodes=8, rate=RATE, name=name)
    yield made
    made.down()
    assert name not in labs()


def traces_of(name: str) -> list[str]:
    """What the kernel still has of a lab."""
    interfaces = [entry for entry in os.listdir("/sys/class/net") if entry.startswith(f"cdr-{name}")]
    spaces = [entry for entry in os.listdir("/run/netns") if entry.startswith(f"codedreduce-{name}-")]
    return interfaces + spaces


SEND = """
import socket, sys, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
total = 0
while data := connection.recv(65536):
    total += len(data)
print(total, flush=True)
"""

RECEIVE = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000), timeout=120)
begin = time.monotonic()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.monotonic() - begin, flush=True)
"""


def transfer(lab: Lab, sender: int, receiver: int, size: int) -> float:
    """Seconds that so many bytes take from one node to another."""

    def start(node: int, text: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", text, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: lab.enter(node))

    with start(receiver, SEND) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with start(sender, RECEIVE, lab.address(receiver), str(size)) as client:
            assert client.stdout is not None
            seconds = float(client.stdout.readline())
        assert int(server.stdout.readline()) == size
    return seconds


@needs_lab
def test_a_lab_comes_up_and_leaves_no_trace() -> None:
    name = f"u{os.getpid() % 1000000}"
    up = codedreduce("lab", "up", "--nodes", "85", "--rate", "60mbit", "--name", name)
    try:
        assert up.returncode == 0, up.stderr
        assert re.search(r"85 nodes at 60mbit, 10\.77\.0\.1 to 10\.77\.0\.85, up in \d", up.stdout)
        status = codedreduce("lab", "status", "--name", name)
        assert status.stdout.count("60mbit") == 85
        inside = codedreduce("lab", "exec", "--name", name, "84", "--", "ip", "-brief", "address")
        assert "10.77.0.85/16" in inside.stdout
        again = codedreduce("lab", "up", "--name", name)
        assert again.returncode == 2
        assert "is up already" in again.stderr
    finally:
        down = codedreduce("lab", "down", "--name", name)
    assert down.returncode == 0, down.stderr
    assert traces_of(name) == []


@needs_lab
def test_both_directions_are_limited(lab: Lab) -> None:
    """A token bucket cannot be faster than its rate: a lower bound in bytes, not a race against the clock."""
    size = 1_000_000
    assert transfer(lab, 1, 2, size) > 0.9 * size / RATE
    lab.set_rate(2, RATE / 4)  # the receiver's way in
    assert transfer(lab, 1, 2, size) > 0.9 * size / (RATE / 4)
    lab.set_rate(2, RATE)
    lab.set_rate(1, RATE / 4)  # the sender's way out
    assert transfer(lab, 1, 2, size) > 0.9 * size / (RATE / 4)
    assert lab.status()[1].rate == pytest.approx(RATE / 4)
    assert lab.status()[2].rate == pytest.approx(RATE)


@needs_lab
def test_faults_of_a_node(lab: Lab) -> None:
    lab.set_link(3, up=False)
    assert [node.node for node in lab.status() if not node.link_up] == [3]
    lab.set_link(3, up=True)
    assert all(node.link_up for node in lab.status())
    with subprocess.Popen(["sleep", "100"], preexec_fn=lambda: lab.enter(4)) as sleeper:
        assert wait_until(lambda: processes_in(lab.namespace(4)) == [sleeper.pid])
        assert lab.pause(4) == [sleeper.pid]
        assert wait_until(lambda: lab.status()[4].paused)
        lab.pause(4, paused=False)
        assert wait_until(lambda: not lab.status()[4].paused)
        sleeper.kill()


@needs_lab
def test_down_ends_what_a_crash_left_behind(lab: Lab) -> None:
    """Also a process that nobody waits for, and a lab that is half made."""
    with subprocess.Popen(["sleep", "100"], preexec_fn=lambda: lab.enter(5)) as sleeper:
        assert wait_until(lambda: processes_in(lab.namespace(5)) == [sleeper.pid])
        subprocess.run(["ip", "netns", "del", lab.namespace(2)], check=True)
        found = codedreduce("lab", "down", "--name", lab.name)
        assert "ended 1 process that still ran" in found.stdout
        assert sleeper.wait(10) == -9
    assert traces_of(lab.name) == []


@needs_lab
@pytest.mark.parametrize("scheme", ["coded-reduce", "master-worker", "gradient-coding", "ring"])
def test_training_in_a_lab_gives_the_bits_it_gives_without(lab: Lab, tmp_path: Path, scheme: str) -> None:
    import numpy as np

    saved = []
    for where in ([], ["--lab", "--lab-name", lab.name]):
        path = tmp_path / f"{len(where)}.npz"
        run = codedreduce(
            "train", "--tree", "2x2", "--scheme", scheme, "--rounds", "6", "--inject", "stalls:0.2:0.1s",
            "--save", str(path), *where,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        saved.append(np.load(path)["parameters"])
    assert saved[0].tobytes() == saved[1].tobytes()
    assert lab.status()[1].received > 6 * 4000  # it went through the lab's cables
    assert all(not node.processes for node in lab.status())


@needs_lab
def test_a_script_and_a_race_in_a_lab(lab: Lab, tmp_path: Path) -> None:
    run = codedreduce("run", "--lab", "--lab-name", lab.name, "--tree", "2x2", script(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("loss 0.3"), "of the root alone"
    out = tmp_path / "race.json"
    race = codedreduce(
        "race", "--lab", "--lab-name", lab.name, "--tree", "2x2", "--rounds", "3", "--compute", "0.1s", "--parameters",
        "50", "--samples", "240", "--schemes", "ring,progressive", "--json", str(out), "--report", str(tmp_path / "r"),
    )  # fmt: skip
    assert race.returncode == 0, race.stderr
    assert all(result["bit_identical"] for result in json.loads(out.read_text())["results"])


@needs_lab
def test_a_node_cut_off_and_one_paused_do_not_hold_training_up(lab: Lab, tmp_path: Path) -> None:
    """A leaf without a cable and another one paused, in different groups: the run goes on, with the same bits."""
    import numpy as np

    calm, cut = tmp_path / "calm.npz", tmp_path / "cut.npz"
    command = ["train", "--tree", "2x2", "--rounds", "120", "--lab", "--lab-name", lab.name, "--save"]
    assert codedreduce(*command, str(calm), "--inject", "one:0.02s").returncode == 0
    before = lab.status()[6].received
    arguments = [sys.executable, "-m", "codedreduce", *command, str(cut), "--inject", "one:0.02s"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            assert wait_until(lambda: lab.status()[6].received > before + 50_000)  # well under way
            lab.set_link(6, up=False)
            lab.pause(3)
            output, _ = run.communicate(timeout=120)
        finally:
            lab.set_link(6, up=True)
            lab.pause(3, paused=False)
            run.kill()
    assert run.returncode == 0, output
    assert "trained for 120 rounds" in output
    assert np.load(calm)["parameters"].tobytes() == np.load(cut)["parameters"].tobytes()


@needs_lab
def test_what_cannot_be_is_said_in_one_line(lab: Lab) -> None:
    small = codedreduce("train", "--lab", "--lab-name", lab.name, "--tree", "4x2", "--rounds", "1")
    assert small.returncode == 2
    assert "the run needs a node for each of its 21 processes" in small.stderr
    with pytest.raises(UsageError, match="no lab 'nobody'"):
        Lab.find("nobody")
    with pytest.raises(UsageError, match="nodes 0 to 7, not 8"):
        lab.set_link(8, up=False)
    with pytest.raises(UsageError, match="1 to 7 lowercase letters"):
        Lab.up(nodes=3, rate=RATE, name="Not/A/Name")
    with pytest.raises(UsageError, match="2 to 1000 nodes"):
        Lab.up(nodes=1, rate=RATE, name="one")


def test_without_root_or_iproute2_one_line_says_so(monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabUnavailable, match="needs root"):
        Lab.up(nodes=3, rate=RATE)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabUnavailable, match="apt-get install iproute2"):
        Lab.find()


def test_the_command_line_without_iproute2() -> None:
    """As a user sees it: one line, exit code 2."""
    found = subprocess.run(
        [sys.executable, "-m", "codedreduce", "lab", "up"], env={"PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert found.stderr.startswith("codedreduce: a lab needs")
    assert len(found.stderr.strip().splitlines()) == 1


APART = """
mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount -t sysfs none /sys || exit 9
"$0" -m codedreduce lab up --name one --nodes 2 --rate 1gbit &&
"$0" -m codedreduce lab up --name two --nodes 3 --rate 1gbit &&
"$0" -m codedreduce lab exec --name two 1 -- sleep 600 &
until [ "$(ls /run/netns | wc -l)" = 5 ] && pgrep -x sleep > /dev/null; do sleep 0.05; done
"$0" -m codedreduce lab down --all && ls /run/netns /sys/class/net
"""


@needs_lab
def test_all_labs_go_at_once() -> None:
    """In namespaces of its own, or it would take away what others have made on this machine."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", APART, sys.executable],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    left = done.stdout.split("/run/netns:")[1].split()
    assert left == ["/sys/class/net:", "lo"]
    assert "one" in done.stdout
    assert "two" in done.stdout
