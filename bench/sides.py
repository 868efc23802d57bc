"""The sides that bench.striped compares: one script, trained in a lab by stripes, DDP, MPI, our ring or our tree.

Every rank is a process in a network namespace of its own, behind a link of the given rate. All sides train the same
model on the same batches. Computing is slept, so that 2 cores carry all ranks.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import codedreduce.torch as cr
from codedreduce import CodedReduce, RingAllReduce, Tree
from codedreduce.lab import Lab
from codedreduce.node.node import Node
from codedreduce.process.nursery import Nursery
from codedreduce.process.secrets import Secret
from codedreduce.run.agreement import Run
from codedreduce.run.site import meeting_at
from codedreduce.run.world import RoundResult
from codedreduce.torch.gradient.unit_gradient import UnitGradient
from codedreduce.torch.model.layout import Layout
from codedreduce.torch.training.training import Training

torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # loads what optimizers need, once for all ranks

FEATURES = 64
UNLUCKY = 2
PORT = 29512

#: Trees for as many workers, as our default lays them.
TREES = {2: "2/2", 4: "4/4", 6: "2x2", 12: "12/4"}


@dataclass(frozen=True)
class Case:
    """What is trained, by how many, over what: parameters, bit a second, samples a rank and seconds of computing."""

    ranks: int
    parameters: int
    rate: float
    unit: float = 0.05  # seconds that a rank computes for in a calm step
    samples: int = 64  # a rank, in a batch
    steps: int = 12
    trouble: str = ""  # stall:P, slow:FACTOR, kill, link:FACTOR, unequal
    calm_step: float = 0.0  # seconds, which stalls are nine times of

    @property
    def wire(self) -> float:
        """Seconds that a vector takes on a link."""
        return self.parameters * 4 * 8 / self.rate

    @property
    def limit(self) -> float:
        """What physics allows: 2 (N - 1)/N V/B, and the computing."""
        return 2 * (self.ranks - 1) / self.ranks * self.wire + self.unit

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.parameters / 1e6:g} M, {self.rate / 1e6:g} Mbit/s, unit {self.unit:g} s"


def network(parameters: int) -> nn.Module:
    """Two layers with about so many parameters."""
    torch.manual_seed(0)
    hidden = parameters // (FEATURES + 10 + 1)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def dataset(case: Case) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    count = case.ranks * case.samples * 4
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, (x @ torch.randn(FEATURES, 10, generator=generator)).argmax(1))


class Machine:
    """Plays the machine that a rank runs on: how long a sample takes it, when it stalls, when it dies."""

    def __init__(self, case: Case, rank: int) -> None:
        self._rank = rank
        self._sample = case.unit / case.samples
        self._stall = 0.0
        self._chance = 0.0
        self._dies = False
        kind, _, value = case.trouble.partition(":")
        if kind == "unequal":
            self._sample *= 14 / 6 / (1, 1, 2, 2, 4, 4)[rank]  # together as quick as equal ones
        if rank != UNLUCKY:
            return
        if kind == "slow":
            self._sample *= float(value)
        elif kind == "stall":
            self._chance, self._stall = float(value), 9 * case.calm_step
        self._dies = kind == "kill"

    def compute(self, samples: int, step: int, *, first: bool) -> None:
        """Take as long as this machine would for so many samples of a step."""
        if first and step > 1 and np.random.default_rng([7, step]).random() < self._chance:
            time.sleep(self._stall)
        if self._dies and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(samples * self._sample)


class Script:
    """What a user's script does, on whatever side."""

    def __init__(self, case: Case, rank: int, out: str) -> None:
        self.case = case
        self.rank = rank
        self.model = network(case.parameters)
        self.data = dataset(case)
        self.batch = case.ranks * case.samples
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.step = 1
        self._machine = Machine(case, rank)
        self._computed = 0  # the step that was last computed for
        self._out = out
        self._ends: list[float] = []

    def losses(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        self._machine.compute(len(x), self.step, first=self._computed != self.step)
        self._computed = self.step
        return F.cross_entropy(model(x), y, reduction="none")

    def over(self, loss: float) -> None:
        """A step has been taken."""
        self._ends.append(time.monotonic())
        self.step += 1
        if self.rank == 0:
            Path(self._out).write_text(json.dumps({"ends": self._ends, "loss": loss}))

    def begin(self) -> None:
        """The first step begins."""
        self._ends.append(time.monotonic())


def codedreduce_side(tree: str | None, wire: str | None = None) -> Callable[[Script, Lab], None]:
    """Striped, or our tree, as a script uses it."""

    def side(script: Script, lab: Lab) -> None:
        scheme = CodedReduce(_tree(tree), 1) if tree else None
        with cr.join(scheme) as cluster:
            script.begin()
            for step in cluster.train(
                script.model, script.data, script.losses, script.batch, script.case.steps, state=[script.optimizer],
                wire=wire,
            ):  # fmt: skip
                script.step = step.round
                script.optimizer.step()
                script.over(step.loss)

    return side


def _tree(text: str) -> Tree:
    from codedreduce.schemes.names import parse_tree

    return parse_tree(text, 1)


def ring_side(script: Script, lab: Lab) -> None:
    """Our ring, on which every rank steps by itself."""
    case = script.case
    training = Training(
        model=script.model, dataset=script.data, losses=script.losses, batch_size=script.batch, steps=case.steps
    )
    layout = Layout(script.model)
    meeting = replace(meeting_at(lab, os.environ["CODEDREDUCE_RUN"]), port=PORT)
    run = Run.of(meeting, RingAllReduce(case.ranks).plan(samples=script.batch), layout.length)
    gradient = UnitGradient(training, layout, given_model=False)
    with Node(run, script.rank + 1, gradient=gradient) as node:
        script.begin()
        for _ in range(case.steps):
            result = node.aggregate(np.zeros(layout.length, np.float32))
            assert isinstance(result, RoundResult)
            loss = layout.write_gradients(result.vector, script.batch).loss
            script.optimizer.step()
            script.over(loss)
        time.sleep(1.0)  # others may still need what passes through here


def own_part(script: Script) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's samples of a step's batch, for the sides that divide it themselves."""
    case, step = script.case, script.step
    indices = cr.batch_indices(len(script.data), script.batch, step)
    part = torch.as_tensor(indices[script.rank * case.samples : (script.rank + 1) * case.samples].copy())
    x, y = script.data[part]
    return x, y


def ddp_side(script: Script, lab: Lab) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo")
    model = DistributedDataParallel(script.model)
    dist.barrier()
    script.begin()
    for _ in range(script.case.steps):
        script.optimizer.zero_grad()
        loss = script.losses(model, own_part(script)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        script.optimizer.step()
        script.over(float(loss.detach()))
    dist.barrier()
    dist.destroy_process_group()


def mpi_side(script: Script, lab: Lab) -> None:
    """A step with MPICH's Allreduce; run under mpiexec."""
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    layout = Layout(script.model)
    vector, total = np.zeros(layout.length, np.float32), np.zeros(layout.length, np.float32)
    world.Barrier()
    script.begin()
    for _ in range(script.case.steps):
        layout.forget_gradients()
        loss = script.losses(script.model, own_part(script)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        layout.read_gradients(vector, loss.detach().double().reshape(1))
        request = world.Iallreduce(vector, total)
        while not request.Test():  # without spinning: ranks share the cores of one machine here
            time.sleep(0.002)
        script.over(layout.write_gradients(total, script.batch).loss)
        script.optimizer.step()
    world.Barrier()


def run_side(side: str, case: Case) -> dict[str, Any]:
    """Train on one side in a lab of its own; the seconds of every step on rank 0."""
    tree = TREES.get(case.ranks, f"{case.ranks}/4") if side == "tree" else None
    nodes = case.ranks + (1 if tree else 0)
    with lab_of(nodes, case) as lab, tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        if case.trouble.startswith("link:"):
            lab.set_rate(UNLUCKY, case.rate / 8 / float(case.trouble.partition(":")[2]))
        if side == "mpi":
            _run_mpi(case, lab, out)
        else:
            sides = {
                "striped": codedreduce_side(None), "striped, bfloat16": codedreduce_side(None, "bfloat16"),
                "ring": ring_side, "ddp": ddp_side,
            }  # fmt: skip
            run_forked(codedreduce_side(tree) if tree else sides[side], case, lab, nodes, out)
        found: dict[str, Any] = json.loads(Path(out).read_text()) if Path(out).exists() else {"ends": [], "loss": None}
    seconds = [after - before for before, after in itertools.pairwise(found["ends"])]
    return {"seconds": seconds, "loss": found["loss"]}


@contextmanager
def lab_of(nodes: int, case: Case) -> Iterator[Lab]:
    lab = Lab.up(nodes=max(2, nodes), rate=case.rate / 8, name=f"s{os.getpid() % 100000}")
    try:
        yield lab
    finally:
        lab.down()


def run_forked(side: Callable[[Script, Lab], None], case: Case, lab: Lab, nodes: int, out: str) -> None:
    """Run a side in processes of this machine, each in its node of the lab, until rank 0 is through."""
    run, secret = f"codedreduce-bench-{os.getpid()}", Secret.fresh()
    codes: dict[int, int] = {}
    is_tree = nodes > case.ranks

    def rank_main(rank: int) -> None:
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(nodes), MASTER_ADDR=lab.address(0), MASTER_PORT=str(PORT),
            OMP_NUM_THREADS="1", CODEDREDUCE_RUN=run, CODEDREDUCE_SECRET=secret.reveal(), TORCH_CPP_LOG_LEVEL="ERROR",
        )  # fmt: skip
        torch.set_num_threads(1)
        script = Script(case, rank - 1 if is_tree and rank else rank, out)
        script.rank = rank
        side(script, lab)

    processes = Nursery(rank_main, lab.enter)
    try:
        for rank in range(nodes):
            processes.start(rank)
        deadline = time.monotonic() + 240
        while 0 not in codes and time.monotonic() < deadline:
            codes.update(processes.newly_ended())
            if any(code > 0 for code in codes.values()):
                processes.raise_what_was_raised()
            time.sleep(0.02)
    finally:
        processes.end(3.0 if 0 in codes else 0.0)


def _run_mpi(case: Case, lab: Lab, out: str) -> None:
    command = [
        str(Path(sys.executable).with_name("mpiexec")), "-n", str(case.ranks), sys.executable, "-m", "bench.sides",
        json.dumps({"case": asdict(case), "lab": lab.name, "nodes": lab.nodes, "out": out}),
    ]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0", "MPIR_CVAR_ENABLE_GPU": "0",
    }  # fmt: skip
    subprocess.run(command, check=False, timeout=240, env=environment)


def mpi_rank(text: str) -> None:
    """A process that mpiexec has started: moves to its node before MPI is loaded."""
    given = json.loads(text)
    case, lab = Case(**given["case"]), Lab(given["lab"], given["nodes"])
    rank = int(os.environ.get("PMI_RANK", "0"))
    lab.enter(rank)
    torch.set_num_threads(1)
    mpi_side(Script(case, rank, given["out"]), lab)


if __name__ == "__main__":
    mpi_rank(sys.argv[1])
