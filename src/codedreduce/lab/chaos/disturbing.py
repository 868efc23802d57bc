"""Does to the nodes of a lab what a schedule says, and takes it back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from codedreduce.lab import Lab
from codedreduce.lab.chaos.schedule import ChaosFault
from codedreduce.lab.namespaces import processes_in
from codedreduce.lab.tools import run

#: By how much a slow link is slower.
SLOWER = 100

#: Seconds that processes have to end when the run is over.
LAST_WORDS = 5.0


class Disturbing:
    """Whoever is at it on a lab's nodes. What is not over can be taken back at any time (`restore`)."""

    def __init__(self, lab: Lab, rate: float, seed: int) -> None:
        self._lab = lab
        self._rate = rate
        self._random = np.random.default_rng([seed, 1])
        self._on: list[ChaosFault] = []
        self._started_as: dict[int, tuple[list[str], dict[str, str]]] = {}  # the processes that left, by node
        self._started: list[subprocess.Popen[bytes]] = []
        self._by_hand: set[int] = set()  # the nodes whose processes were started here

    def wrong(self) -> Iterator[tuple[int, str]]:
        """The nodes with which something is wrong, and what."""
        for fault in self._on:
            for node in fault.nodes:
                yield node, fault.kind

    def begin(self, fault: ChaosFault) -> bool:
        """Let it happen; whether there was anything to do it to."""
        happened = self._do(fault)
        if happened:
            self._on.append(fault)
        return happened

    def end(self, fault: ChaosFault) -> None:
        """It is over."""
        if fault in self._on:
            self._on.remove(fault)
            self._undo(fault)

    def restore(self) -> None:
        """Everything is over."""
        for fault in list(self._on):
            self.end(fault)

    def _do(self, fault: ChaosFault) -> bool:
        lab, node = self._lab, fault.nodes[0]
        match fault.kind:
            case "kill":
                return self._signal(node, signal.SIGKILL)
            case "leave":
                self._remember(node)
                return self._signal(node, signal.SIGTERM)
            case "fail":
                return self._signal(node, signal.SIGUSR1)
            case "stop":
                return bool(lab.pause(node))
            case "cut":
                lab.set_link(node, up=False)
            case "slow":
                lab.set_rate(node, self._rate / SLOWER)
            case "reset":
                return self._reset(node)
            case "partition":
                lab.part(fault.nodes)
        return True

    def _undo(self, fault: ChaosFault) -> None:
        lab, node = self._lab, fault.nodes[0]
        match fault.kind:
            case "stop":
                lab.pause(node, paused=False)
            case "cut":
                lab.set_link(node, up=True)
            case "slow":
                lab.set_rate(node, self._rate)
            case "partition":
                lab.join(fault.nodes)
            case "leave":
                self._start_again(node)
            case "kill" if node in self._by_hand:  # nobody else looks after it
                self._start_again(node)
            case _:
                pass

    def _remember(self, node: int) -> None:
        """How the process of a node was started."""
        for process in processes_in(self._lab.namespace(node))[:1]:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[:-1]
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                pairs = (one.decode().partition("=") for one in variables if one)
                self._started_as[node] = [word.decode() for word in words], {name: value for name, _, value in pairs}

    def _start_again(self, node: int) -> None:
        """Another process in place of one that left, as somebody would start it by hand; unless there is one."""
        if node not in self._started_as or processes_in(self._lab.namespace(node)):
            return
        command, variables = self._started_as[node]
        self._by_hand.add(node)
        self._started.append(
            subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                preexec_fn=lambda: self._lab.enter(node),
            )
        )  # fmt: skip

    def close(self) -> None:
        """Wait a little for the processes that were started here, and end those that stay."""
        deadline = time.monotonic() + LAST_WORDS
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()

    def _signal(self, node: int, number: signal.Signals) -> bool:
        found = processes_in(self._lab.namespace(node))
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        return bool(found)

    def _reset(self, node: int) -> bool:
        """Break one of the node's connections to others, as a router that forgot it would."""
        inside = ["ip", "netns", "exec", self._lab.namespace(node)]
        lines = run([*inside, "ss", "-Htn", "state", "established"]).splitlines()
        found = [line.split()[2:4] for line in lines if len(line.split()) >= 4]
        if not found:
            return False
        here, there = found[int(self._random.integers(len(found)))]
        run([*inside, "ss", "-K", "src", here, "dst", there])
        return True
