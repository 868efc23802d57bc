"""Injects scheduled faults into the nodes of a lab, and ends them."""

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

#: Factor by which a slow link is slower.
SLOWER = 100

#: Seconds in which processes must end when the run is over.
LAST_WORDS = 5.0


class Disturbing:
    """Injects faults into a lab's nodes. `restore` ends all current faults at any time."""

    def __init__(self, lab: Lab, rate: float, seed: int) -> None:
        self._lab = lab
        self._rate = rate
        self._random = np.random.default_rng([seed, 1])
        self._on: list[ChaosFault] = []
        self._started_as: dict[int, tuple[list[str], dict[str, str]]] = {}  # the processes that left, by node
        self._started: list[subprocess.Popen[bytes]] = []
        self._by_hand: set[int] = set()  # the nodes with processes that this object started

    def wrong(self) -> Iterator[tuple[int, str]]:
        """The nodes with a current fault, and its kind."""
        for fault in self._on:
            for node in fault.nodes:
                yield node, fault.kind

    def begin(self, fault: ChaosFault) -> bool:
        """Inject a fault. False if there was nothing to inject it into."""
        happened = self._do(fault)
        if happened:
            self._on.append(fault)
        return happened

    def end(self, fault: ChaosFault) -> None:
        """End a fault, if it was injected."""
        if fault in self._on:
            self._on.remove(fault)
            self._undo(fault)

    def restore(self) -> None:
        """End all current faults."""
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
            case "kill" if node in self._by_hand:  # the launcher does not restart it
                self._start_again(node)
            case _:
                pass

    def _remember(self, node: int) -> None:
        """Record the command and the environment of a node's process."""
        for process in processes_in(self._lab.namespace(node))[:1]:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[:-1]
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                pairs = (one.decode().partition("=") for one in variables if one)
                self._started_as[node] = [word.decode() for word in words], {name: value for name, _, value in pairs}

    def _start_again(self, node: int) -> None:
        """Start a replacement for a process that left, as by hand, unless the node has a process."""
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
        """Wait a little for the processes that this object started, and kill the remaining ones."""
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
        """Break one of the node's connections, as a router that lost its state does."""
        inside = ["ip", "netns", "exec", self._lab.namespace(node)]
        lines = run([*inside, "ss", "-Htn", "state", "established"]).splitlines()
        found = [line.split()[2:4] for line in lines if len(line.split()) >= 4]
        if not found:
            return False
        here, there = found[int(self._random.integers(len(found)))]
        run([*inside, "ss", "-K", "src", here, "dst", there])
        return True
