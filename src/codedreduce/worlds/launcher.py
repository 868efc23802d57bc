"""Starts a script once as the root and once for each worker, and looks after them until the root is done."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from codedreduce.errors import CodedReduceError, UsageError
from codedreduce.worlds.local import die_with_parent
from codedreduce.worlds.site import Site, meeting_at
from codedreduce.worlds.zeromq.arena import remove_arenas
from codedreduce.worlds.zeromq.node import free_port

#: Seconds that workers have to leave after the root has ended.
GRACE = 5.0


@dataclass
class _Child:
    rank: int
    process: subprocess.Popen[bytes]
    pending: bytes = b""

    @property
    def name(self) -> str:
        return "root" if self.rank == 0 else str(self.rank)


def launch(
    command: Sequence[str],
    workers: int,
    settings: Mapping[str, str],
    *,
    port: int = 0,
    site: Site | None = None,
    say: Callable[[str, str], None],
) -> int:
    """Run a command as root and workers; `say(who, line)` gets what they print. 0, or an error that says who failed.

    All on this machine, or each on its node of a site.
    """
    if workers < 1:
        raise UsageError(f"a run needs at least one worker, got {workers}")
    run = f"codedreduce-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    host, port = ("127.0.0.1", port or free_port()) if site is None else (site.host, port or meeting_at(site).port)
    shared = {
        "OMP_NUM_THREADS": "1", **os.environ, "WORLD_SIZE": str(workers + 1), "MASTER_ADDR": host,
        "MASTER_PORT": str(port), "CODEDREDUCE_RUN": run, "PYTHONUNBUFFERED": "1", **settings,
    }  # fmt: skip
    children: list[_Child] = []
    try:
        for rank in range(workers + 1):
            children.append(_Child(rank, _start(command, {**shared, "RANK": str(rank)}, rank, site)))
        return _look_after(children, say)
    finally:
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait()
        remove_arenas(run)


def _start(
    command: Sequence[str], environment: Mapping[str, str], rank: int, site: Site | None
) -> subprocess.Popen[bytes]:
    def begin() -> None:
        die_with_parent()
        if site is not None:
            site.enter(rank)

    try:
        return subprocess.Popen(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=begin,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"cannot start {command[0]!r}: {error.strerror}") from None


def _look_after(children: list[_Child], say: Callable[[str, str], None]) -> int:
    selector = selectors.DefaultSelector()
    for child in children:
        assert child.process.stdout is not None
        os.set_blocking(child.process.stdout.fileno(), False)
        selector.register(child.process.stdout, selectors.EVENT_READ, child)
    root = children[0]
    gone: set[int] = set()
    deadline: float | None = None
    interrupts = 0
    while True:
        try:
            for key, _ in selector.select(timeout=0.1):
                _read(key.data, selector, say)
            if root.process.poll() is not None and deadline is None:
                deadline = time.monotonic() + GRACE
            _note_the_gone(children, gone, root_is_done=deadline is not None, say=say)
            running = [child for child in children if child.process.poll() is None]
            if deadline is not None and (not running or time.monotonic() > deadline):
                break
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                raise CodedReduceError("interrupted") from None
            root.process.send_signal(signal.SIGINT)
    for child in children:
        _read(child, selector, say)
    code = root.process.returncode
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise CodedReduceError(f"the root {how}; its last words are above")
    return 0


def _read(child: _Child, selector: selectors.BaseSelector, say: Callable[[str, str], None]) -> None:
    assert child.process.stdout is not None
    try:
        data = child.process.stdout.read()
    except ValueError:
        return
    if data:
        *lines, child.pending = (child.pending + data).split(b"\n")
        for line in lines:
            say(child.name, line.decode(errors="replace"))
    elif data == b"" and child.process.stdout in selector.get_map():
        selector.unregister(child.process.stdout)
        if child.pending:
            say(child.name, child.pending.decode(errors="replace"))
            child.pending = b""


def _note_the_gone(
    children: list[_Child], gone: set[int], *, root_is_done: bool, say: Callable[[str, str], None]
) -> None:
    """A worker that failed ends the run; one that was killed is late for ever, which is what coding is for."""
    for child in children[1:]:
        code = child.process.poll()
        if code is None or child.rank in gone:
            continue
        gone.add(child.rank)
        if code > 0 and not root_is_done:
            time.sleep(0.2)  # its last words
            assert child.process.stdout is not None
            for line in (child.process.stdout.read() or b"").decode(errors="replace").splitlines():
                say(child.name, line)
            raise CodedReduceError(f"worker {child.rank} ended with exit code {code}; its last words are above")
        if code < 0 and not root_is_done:
            say(child.name, f"(killed by signal {-code}; the run goes on without it)")


def python_command(script: str, arguments: Sequence[str]) -> list[str]:
    """How to run a script."""
    if not os.path.isfile(script):
        raise UsageError(f"there is no script {script!r}")
    return [sys.executable, script, *arguments]
