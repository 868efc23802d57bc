"""A lab: nodes as network namespaces on one bridge, with a limited rate in both directions of every link.

The kernel alone has the state of a lab. Any process finds a lab by its names, and can use or remove it, also after a
crash. For a lab NAME and its node 3:

    cdr-NAME                  the bridge
    codedreduce-NAME-3        the namespace, with `lo` and `eth0`
    cdr-NAME-3                the bridge's end of the node's link; packets that leave here enter the node
    cdr-NAME-p                a second bridge, which exists after the first partition of the nodes
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from codedreduce.errors import LabFailed, UsageError
from codedreduce.lab import namespaces
from codedreduce.lab.tools import batch, batch_anyway, check_available, query, run, succeeds
from codedreduce.process.processes import is_stopped

DEFAULT_NAME = "lab"

#: Bytes that a node's interface queues before it drops. Deep, so that it shapes traffic as links in a cloud do.
QUEUE = 8_000_000

#: Limit of nodes in a lab: a bridge has 1024 ports.
MOST_NODES = 1000

_NAMESPACE = re.compile(r"codedreduce-([a-z0-9]{1,7})-(\d+)")


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """The state of a node: its address, its limit, the traffic of its link, and its processes."""

    node: int
    address: str
    rate: float | None  # bytes per second
    latency: float
    link_up: bool
    received: int
    sent: int
    dropped: int
    processes: tuple[int, ...]
    paused: bool


class Lab:
    """A lab that is up. It is also a site: processes can be placed on its nodes.

    `Lab.up(nodes=85, rate=60e6 / 8)` creates a lab, `Lab.find("lab")` finds it again, `down` removes it.
    """

    def __init__(self, name: str, nodes: int) -> None:
        self.name = name
        self.nodes = nodes

    @classmethod
    def up(cls, *, nodes: int, rate: float, name: str = DEFAULT_NAME, latency: float = 0.0) -> Lab:
        """Create a lab of `nodes` nodes, each limited to `rate` bytes per second in and out."""
        check_available()
        if not re.fullmatch(r"[a-z0-9]{1,7}", name):
            raise UsageError(f"the name of a lab has 1 to 7 lowercase letters and digits, got {name!r}")
        if not 2 <= nodes <= MOST_NODES:
            raise UsageError(f"a lab has 2 to {MOST_NODES} nodes, a root and workers; got {nodes}")
        if latency < 0:
            raise UsageError(f"a latency cannot be negative, got {latency}")
        if name in labs():
            raise UsageError(f"the lab {name!r} is up already; remove it with: {_command('down', name)}")
        lab = cls(name, nodes)
        try:
            lab._make(rate, latency)
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Lab:
        """The existing lab of that name."""
        check_available()
        found = labs()
        if name not in found:
            raise UsageError(f"there is no lab {name!r}; create one with: {_command('up', name)} --nodes 21")
        return cls(name, found[name])

    def _make(self, rate: float, latency: float) -> None:
        if latency and not _kernel_has_netem():
            raise UsageError("this kernel has no netem, so links cannot have a latency; leave out --latency")
        everyone = range(self.nodes)
        batch("ip", [f"link add {self._bridge} type bridge", f"link set {self._bridge} up"])
        batch("ip", [f"netns add {self.namespace(node)}" for node in everyone])
        cables = []
        for node in everyone:
            inside = f"name eth0 netns {self.namespace(node)} address {_hardware(node)}"
            cables += [
                f"link add {self._cable(node)} type veth peer {inside}",
                f"link set {self._cable(node)} master {self._bridge} up",
            ]
        batch("ip", cables)
        for node in everyone:
            # Set all hardware addresses: ARP among 85 nodes would overflow the kernel's neighbour table.
            others = [
                f"neigh add {self.address(other)} lladdr {_hardware(other)} dev eth0 nud permanent"
                for other in everyone
                if other != node
            ]
            own = [f"addr add {self.address(node)}/16 dev eth0", "link set lo up", "link set eth0 up"]
            batch("ip", own + others, namespace=self.namespace(node))
        batch("tc", [line for node in everyone for line in _limits(self._cable(node), rate, 0.0)])
        for node in everyone:
            batch("tc", _limits("eth0", rate, latency), namespace=self.namespace(node))

    # Where things are

    @property
    def _bridge(self) -> str:
        return f"cdr-{self.name}"

    @property
    def _second_bridge(self) -> str:
        return f"cdr-{self.name}-p"

    def _cable(self, node: int) -> str:
        return f"cdr-{self.name}-{node}"

    def namespace(self, node: int) -> str:
        """The name of a node's namespace."""
        return f"codedreduce-{self.name}-{node}"

    def address(self, node: int) -> str:
        """A node's address; only nodes of the same lab can reach it.

        >>> Lab("lab", 300).address(0), Lab("lab", 300).address(299)
        ('10.77.0.1', '10.77.1.44')
        """
        return f"10.77.{(node + 1) // 256}.{(node + 1) % 256}"

    def enter(self, node: int) -> None:
        """Move the calling thread, and all threads and processes that it starts later, to a node."""
        namespaces.enter(self.namespace(self._checked(node)))

    def at(self, node: int) -> AbstractContextManager[None]:
        """Move the calling thread to a node for a while; sockets that it opens stay there."""
        return namespaces.entered(self.namespace(self._checked(node)))

    def _checked(self, node: int) -> int:
        if not 0 <= node < self.nodes:
            raise UsageError(f"the lab {self.name!r} has the nodes 0 to {self.nodes - 1}, not {node}")
        return node

    def check_room(self, processes: int) -> None:
        """Refuse a run that needs more nodes than the lab has, and a lab that is incomplete."""
        if self.nodes < 2:
            raise LabFailed(f"the lab {self.name!r} is incomplete; remove it with: {_command('down', self.name)}")
        if processes > self.nodes:
            raise UsageError(
                f"the run needs a node for each of its {processes} processes, but the lab {self.name!r} has "
                f"{self.nodes}; create a larger lab: {_command('down', self.name)} && {_command('up', self.name)} "
                f"--nodes {processes}"
            )

    # Faults

    def set_rate(self, node: int, rate: float) -> None:
        """Limit a node to `rate` bytes per second in both directions."""
        self._checked(node)
        latency = self._latency(node)
        batch("tc", _limits(self._cable(node), rate, 0.0, verb="replace"))
        batch("tc", _limits("eth0", rate, latency, verb="replace"), namespace=self.namespace(node))

    def set_link(self, node: int, *, up: bool) -> None:
        """Take a node's link down, or bring it up again."""
        run(["ip", "link", "set", self._cable(self._checked(node)), "up" if up else "down"])

    def part(self, nodes: Iterable[int]) -> None:
        """Move nodes to the second bridge: they reach each other, but no other nodes."""
        if not os.path.exists(f"/sys/class/net/{self._second_bridge}"):
            batch("ip", [f"link add {self._second_bridge} type bridge", f"link set {self._second_bridge} up"])
        self._plug_in(nodes, self._second_bridge)

    def join(self, nodes: Iterable[int]) -> None:
        """Move nodes back to the first bridge."""
        self._plug_in(nodes, self._bridge)

    def _plug_in(self, nodes: Iterable[int], bridge: str) -> None:
        batch("ip", [f"link set {self._cable(self._checked(node))} master {bridge}" for node in nodes])

    def pause(self, node: int, *, paused: bool = True) -> list[int]:
        """Stop all processes of a node, or continue them. Returns these processes."""
        found = namespaces.processes_in(self.namespace(self._checked(node)))
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP if paused else signal.SIGCONT)
        return found

    # Status

    def status(self) -> list[NodeStatus]:
        """The state of every node."""
        links = {entry["ifname"]: entry for entry in query(["ip", "-json", "-s", "link", "show", "type", "veth"])}
        limits = {entry["dev"]: entry for entry in query(["tc", "-json", "-s", "qdisc"]) if entry["kind"] == "tbf"}
        living = namespaces.processes_by_namespace()
        found = []
        for node in range(self.nodes):
            cable = self._cable(node)
            link, limit = links.get(cable, {}), limits.get(cable, {})
            counts = link.get("stats64", {})
            try:
                where = os.stat(f"{namespaces.FOLDER}/{self.namespace(node)}").st_ino
            except FileNotFoundError:  # a process is removing the lab, or was interrupted while doing so
                continue
            processes = tuple(living.get(where, ()))
            found.append(
                NodeStatus(
                    node=node,
                    address=self.address(node),
                    rate=limit.get("options", {}).get("rate"),
                    latency=self._latency(node),
                    link_up="UP" in link.get("flags", ()),
                    received=counts.get("tx", {}).get("bytes", 0),
                    sent=counts.get("rx", {}).get("bytes", 0),
                    dropped=limit.get("drops", 0),
                    processes=processes,
                    paused=bool(processes) and all(is_stopped(process) for process in processes),
                )
            )
        return found

    def _latency(self, node: int) -> float:
        if not _kernel_has_netem():
            return 0.0
        for entry in query(["tc", "-n", self.namespace(node), "-json", "qdisc", "show", "dev", "eth0"]):
            if entry["kind"] == "netem":
                return float(entry.get("options", {}).get("delay", {}).get("delay", 0.0))
        return 0.0

    # Removal

    def down(self) -> int:
        """End the processes on the nodes and remove the lab. Returns the number of processes it had to end."""
        mine = []
        with contextlib.suppress(FileNotFoundError):
            names = (_NAMESPACE.fullmatch(entry) for entry in os.listdir(namespaces.FOLDER))
            mine = [match[0] for match in names if match and match[1] == self.name]
        inodes = {os.stat(f"{namespaces.FOLDER}/{entry}").st_ino for entry in mine}
        living = [p for inode, found in namespaces.processes_by_namespace().items() if inode in inodes for p in found]
        for process in living:
            if process != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        namespaces.wait_until_gone(living)
        ours = rf"cdr-{self.name}(-\d+|-p)?"
        cables = [entry for entry in os.listdir("/sys/class/net") if re.fullmatch(ours, entry)]
        if cables:  # first, so that nothing remains if an unkillable process keeps a namespace alive
            batch_anyway("ip", [f"link del {entry}" for entry in sorted(cables, reverse=True)])
        if mine:
            batch_anyway("ip", [f"netns del {entry}" for entry in mine])
        if self.name in labs():
            raise LabFailed(f"parts of the lab {self.name!r} could not be removed; see: ip netns, ip link")
        return len(living)


def labs() -> dict[str, int]:
    """The labs that are up: their number of nodes by name."""
    found: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(namespaces.FOLDER):
            if match := _NAMESPACE.fullmatch(entry):
                found[match[1]] = max(found.get(match[1], 0), int(match[2]) + 1)
    for name in os.listdir("/sys/class/net"):
        if match := re.fullmatch(r"cdr-([a-z0-9]{1,7})", name):
            found.setdefault(match[1], 0)
    return found


def remove_probes() -> None:
    """Remove the namespaces of netem probes that ended before they removed them."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(namespaces.FOLDER):
            match = re.fullmatch(r"codedreduceprobe-(\d+)", entry)
            if match and not namespaces.is_running(int(match[1])):
                batch_anyway("ip", [f"netns del {entry}"])


def _hardware(node: int) -> str:
    return f"02:cd:00:00:{node >> 8:02x}:{node & 255:02x}"


def _limits(interface: str, rate: float, latency: float, verb: str = "add") -> list[str]:
    """A token bucket of two packets, or 0.4 ms, so that it limits short vectors, too; netem below it for latency."""
    burst = max(3028, round(rate * 0.0004))
    queue = max(QUEUE, round(rate))
    lines = [
        f"qdisc {verb} dev {interface} root handle 1: tbf rate {round(rate * 8)}bit burst {burst} limit {queue}",
    ]
    if latency:
        lines.append(f"qdisc {verb} dev {interface} parent 1: netem delay {latency * 1e6:.0f}us limit 100000")
    return lines


_netem: bool | None = None


def _kernel_has_netem() -> bool:
    """Whether this kernel can delay packets; it is probed once."""
    global _netem
    if _netem is None:
        probe = f"codedreduceprobe-{os.getpid()}"
        run(["ip", "netns", "add", probe])
        try:
            _netem = succeeds(["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
        finally:
            run(["ip", "netns", "del", probe])
    return _netem


def _command(verb: str, name: str) -> str:
    return f"codedreduce lab {verb}" + ("" if name == DEFAULT_NAME else f" --name {name}")
