"""Command lines that cannot be: each is refused at once, in a line that names the value; nothing is begun."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from codedreduce.cli import main

Try = Callable[[str], tuple[int, str, str]]

#: A command line, and what its message has to name.
MISTAKES = [
    # train
    ("train -n 0", "`--workers 0`: must be at least 1"),
    ("train -n -3", "`--workers -3`: must be at least 1"),
    ("train -n x", "`--workers x`: must be a whole number"),
    ("train -n 2.5", "`--workers 2.5`: must be a whole number"),
    ("train -n 1000000000", "1,000,000,000 workers"),
    ("train -n 4 --tree 4x2", "`-n 4`: the tree 4x2 has 20 workers"),
    ("train --tree 0x0", "0x0"),
    ("train --tree 4by2", "'4by2'"),
    ("train --tree 0/4", "at least"),
    ("train --tree 9x9", "435,848,049 workers"),
    ("train --tree 10x999999999", "10x999999999"),
    ("train --tree 1000000000/1", "1000000000/1"),
    (f"train --tree {'9' * 5000}x1", "FANOUTxDEPTH"),
    ("train --tree 4x2 --stragglers 9", "stragglers=9"),
    ("train --stragglers -1", "`--stragglers -1`: must be at least 0"),
    ("train --stragglers 20", "`--stragglers 20`: at most 19 of 20 workers can be stragglers"),
    ("train --scheme ring --order eager", "`--order eager`: ring"),
    ("train --scheme striped --order progressive", "`--order progressive`: striped"),
    ("train --scheme master-worker --stragglers 2", "`--stragglers 2`: master-worker"),
    ("train --scheme magic", "unknown scheme 'magic'"),
    ("train --order sideways", "sideways"),
    ("train --scheme ring --units 6", "units"),
    ("train --scheme striped --units 3", "got 3"),
    ("train --rounds 0", "`--rounds 0`: must be at least 1"),
    ("train --rounds -7", "`--rounds -7`"),
    ("train --rounds", "--rounds"),
    ("train --lr nan", "nan"),
    ("train --lr -0.1", "-0.1"),
    ("train --lr fast", "`--lr fast`: must be a number"),
    ("train --batch 0", "`--batch 0`: must be at least 1"),
    ("train --batch 99999", "got 99999"),
    ("train --seed -1", "`--seed -1`: must be at least 0"),
    ("train --model cubic", "unknown model 'cubic'"),
    ("train --model softmax:1", "softmax:1"),
    ("train --optimizer newton", "unknown optimizer 'newton'"),
    ("train --data /nowhere.npz", "'/nowhere.npz'"),
    ("train --data /", "'/'"),
    ("train --save /nowhere/x.npz", "cannot write '/nowhere/x.npz'"),
    ("train --log /nowhere/x.jsonl", "cannot write '/nowhere/x.jsonl'"),
    ("train --save /", "cannot write '/'"),
    ("train --resume", "folder"),
    ("train --checkpoints c --checkpoint-every soon", "soon"),
    ("train --checkpoints c --keep 0", "`--keep 0`: must be at least 1"),
    ("train --inject windy", "unknown delays 'windy'"),
    ("train --inject stalls:1.2.3:1s", "stalls:1.2.3:1s"),
    ("train --inject worker:1:7:1s", "the probability 7 is not between 0 and 1"),
    ("train --inject rank:99:1:1s", "99"),
    ("train --on-excess panic", "'panic'"),
    ("train --say-waiting-after 1e400s", "1e400s"),
    ("train --audit 2", "`--audit 2`: must be at most 1"),
    ("train --quarantine 0", "`--quarantine 0`: must be at least 1"),
    ("train --scheme ''", "unknown scheme ''"),
    ("train --scheme striped --on-excess approximate", "`--on-excess approximate`: a striped run"),
    ("train --model softmax:²", "'softmax:²'"),
    ("train --model softmax:99999999", "parameters are too many"),
    ("train --checkpoints c --checkpoint-every ²", "'²'"),
    ("train --save one --log one", "two results cannot be written to one file, 'one'"),
    ("train --bogus", "--bogus"),
    ("train extra", "extra"),
    # run
    ("run", "script"),
    ("run -n 0 x", "`--workers 0`: a run needs at least 1 worker"),
    ("run -n -2 x", "`--workers -2`"),
    ("run -n 4:2 x", "`--workers 4:2`: the minimum (4) exceeds the maximum (2)"),
    ("run -n 0:2 x", "`--workers 0:2`: a run needs at least 1 worker"),
    ("run -n many x", "`--workers many`"),
    ("run -n 9999999 x", "9,999,999 workers"),
    (f"run -n {'9' * 5000} x", "4:12"),
    ("run --tree 0x0 x", "0x0"),
    ("run --tree 9x9 x", "435,848,049 workers"),
    ("run --tree 2x2 --stragglers 9 x", "stragglers=9"),
    ("run --stragglers 9 x", "`--stragglers 9`: striped"),
    ("run --scheme ring --order eager x", "`--order eager`: ring"),
    ("run --worker 4 x", "No such option: --worker"),
    ("run --scheme '' x", "unknown scheme ''"),
    ("run --start 0 x", "`--start 0`: must be at least 1"),
    ("run --port 70000 x", "`--port 70000`: must be at most 65535"),
    ("run --restarts -1 x", "-1"),
    ("run --grace soon x", "'soon'"),
    ("run --grace 99999999999s x", "99999999999s"),
    ("run --within 5s x", "--within needs a cluster: add --on ray"),
    ("run --on mars x", "'mars'"),
    ("run --inject windy x", "'windy'"),
    # draw
    ("draw --tree 9x9", "435,848,049 workers are too many to draw"),
    ("draw --tree 0x0", "0x0"),
    ("draw --tree 4x2 --stragglers 9", "stragglers=9"),
    ("draw --scheme ring --order eager", "`--order eager`: ring"),
    ("draw --scheme striped --code cyclic", "`--code cyclic`: striped"),
    ("draw --scheme master-worker --stragglers 1", "`--stragglers 1`: master-worker"),
    ("draw --code morse", "morse"),
    ("draw --samples 0", "`--samples 0`: must be at least 1"),
    ("draw --samples 99999999999999999999", "must be at most"),
    ("draw --out tree.gif", "'tree.gif'"),
    ("draw --out /nowhere/tree.svg", "'/nowhere/tree.svg'"),
    # simulate
    ("simulate --tree 9x9", "435,848,049 workers are too many to simulate"),
    ("simulate --rounds 0", "`--rounds 0`: must be at least 1"),
    ("simulate --rounds 1000000000000", "must be at most 1000000"),
    ("simulate --parameters 0", "`--parameters 0`: must be at least 1"),
    ("simulate --parameters 1000000000000", "memory"),
    ("simulate --samples -5", "`--samples -5`: must be at least 1"),
    ("simulate --seed -1", "`--seed -1`: must be at least 0"),
    ("simulate --head-start -1", "`--head-start -1`"),
    ("simulate --schemes ,", "unknown scheme ''"),
    ("simulate --schemes ring,striped --stragglers 2", "`--stragglers 2`"),
    ("simulate --rate 0mbit", "0mbit"),
    ("simulate --latency late", "'late'"),
    ("simulate --compute 0s", "above zero"),
    ("simulate --code morse", "morse"),
    ("simulate --delays stalls:..:1s", "stalls:..:1s"),
    ("simulate --json /nowhere/x.json", "cannot write '/nowhere/x.json'"),
    ("simulate --report /dev/null/x", "cannot write '/dev/null/x'"),
    ("simulate --trace /nowhere/x", "cannot write '/nowhere/x'"),
    ("simulate --tree 2x1 --samples 2", "each in 4 blocks"),
    ("simulate --json one --trace one", "two results cannot be written to one file"),
    # race
    ("race --json /nowhere/x.json", "cannot write '/nowhere/x.json'"),
    ("race --report /dev/null/x", "cannot write '/dev/null/x'"),
    ("race --tree 9x9", "435,848,049 workers"),
    ("race --rounds 0", "`--rounds 0`: must be at least 1"),
    ("race --schemes magic", "unknown scheme 'magic'"),
    ("race --compute never", "'never'"),
    ("race --parameters 1000000000000", "memory"),
    ("race --stragglers 9", "stragglers=9"),
    ("race --samples 3", "3 samples"),
    ("race --tree 1000x1 --samples 900", "900 samples cannot be shared by 1000 workers"),
    # chaos
    ("chaos --minutes inf", "`--minutes inf`"),
    ("chaos --minutes nan", "`--minutes nan`"),
    ("chaos --seed -1", "`--seed -1`: must be at least 0"),
    ("chaos -n 0", "`--workers 0`: must be at least 2"),
    ("chaos -n 99999999", "`--workers 99999999`: must be at most 1000"),
    ("chaos -n 8 --tree 4x2", "`-n 8`: the tree 4x2 has 20 workers"),
    ("chaos --tree 9x9", "435,848,049 workers are too many for a lab"),
    ("chaos --every 0.0000001s", "more than 1,000,000"),
    ("chaos --only ''", "unknown fault ''"),
    ("chaos --keep /dev/null/x", "cannot write to '/dev/null/x'"),
    ("chaos --replay /dev/null --out /", "cannot write '/'"),
    # others
    ("secret --file ''", "name a file for the secret"),
    ("secret --new --file /", "name a file for the secret"),
    ("nonsense", "nonsense"),
    ("--nonsense", "--nonsense"),
    ("replay /nowhere.trace", "'/nowhere.trace'"),
    ("replay", "file"),
    ("lab nonsense", "nonsense"),
    ("lab rate 1", "rate"),
    ("lab pause x", "`node x`: must be a whole number"),
    ("secret --file", "--file"),
    ("race --schemes [bold]", "'[bold]'"),
    ("train --data root:x:0:0", "'root:x:0:0'"),
    (f"train --data {'long/' * 100}x.npz", "long/" * 100),
]


@pytest.fixture
def try_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Try]:
    """Run a command line in this process, where nothing may be begun."""

    def begin(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(os, "fork", begin)
    monkeypatch.setattr(subprocess, "Popen", begin)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").touch()
    before = signal.getsignal(signal.SIGTERM)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["codedreduce", *shlex.split(line)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    yield run
    signal.signal(signal.SIGTERM, before)
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() or "." in path.name], "nothing is left behind"


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line[:60] for line, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_is_begun(line: str, message: str, try_line: Try) -> None:
    code, out, errors = try_line(line)
    assert code == 2, errors
    assert message in errors
    assert errors.startswith("codedreduce: ")
    assert errors.count("\n") == 1, "one line, however long"
    assert not out, "not a word before it is refused"


def test_help_in_a_pipe_has_no_boxes_and_whole_lines(try_line: Try) -> None:
    code, out, _ = try_line("train --help")
    assert code == 0
    assert "╭" not in out
    assert "number of wrong results after which" in " ".join(out.lower().split())
    (line,) = [line for line in out.splitlines() if "Number of wrong results" in line]
    assert "gets no more work" in line


def test_without_a_command_help_is_shown(try_line: Try) -> None:
    code, out, errors = try_line("")
    assert code in (0, 2)
    assert "Usage: codedreduce" in out + errors
    assert "codedreduce: " not in errors


def test_what_is_not_written_is_not_emptied(try_line: Try, tmp_path: Path) -> None:
    """A file of an earlier run stays as it was when the next one is refused."""
    kept = tmp_path / "kept"
    kept.write_text("of an earlier run")
    assert try_line(f"train --save {kept} --rounds 3 --inject windy")[0] == 2
    assert try_line(f"race --json {kept} --report /dev/null/x")[0] == 2
    assert kept.read_text() == "of an earlier run"


def test_a_file_that_is_no_data_is_refused_before_a_scheme_is_named(try_line: Try, tmp_path: Path) -> None:
    (tmp_path / "prose").write_text("no numbers here\n" * 40)
    code, out, errors = try_line(f"train --data {tmp_path / 'prose'}")
    assert (code, out) == (2, "")
    assert "is not LIBSVM text" in errors


#: Files of data that cannot be trained on, and what is said of them.
DATA = [
    ("empty.csv", b"", "has no samples"),
    ("header.csv", b"a,b,c\n", "has no samples"),
    ("labels.csv", b"1,2,0\n3,4,7\n" * 20, "sample 1 has the label 7; this model needs labels from 0 to 2"),
    ("negative.csv", b"1,2,-1\n3,4,1\n" * 20, "sample 0 has the label -1"),
    ("between.csv", b"1,2,0.5\n" * 20, "sample 0 has the label 0.5"),
    ("labels", b"1\n0\n" * 20, "has no features"),
    ("wide", b"1 999999999:1\n" * 40, "do not fit into memory"),
    ("long", b"1 " + b"9" * 5000 + b":1\n0 1:2\n" * 20, "is not LIBSVM text"),
]


@pytest.mark.parametrize(("name", "content", "message"), DATA, ids=[name for name, _, _ in DATA])
def test_data_that_cannot_be_trained_on_is_refused(
    name: str, content: bytes, message: str, try_line: Try, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("data") / name
    path.write_bytes(content)
    code, out, errors = try_line(f"train --data {path} --model softmax:3")
    assert (code, out) == (2, "")
    assert message in errors


@pytest.mark.parametrize("kind", ["empty", "text", "npy", "cut", "nan", "complex", "inf"])
def test_a_trace_that_cannot_be_read_is_refused(
    kind: str, try_line: Try, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.npz"
    values = {"nan": np.full((2, 2), np.nan), "complex": np.ones((2, 2)) * 1j, "inf": np.full((2, 2), np.inf)}
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.ones((2, 2)))
    else:
        np.savez(path, t=values.get(kind, np.ones((2, 2))))
    if kind in ("empty", "text", "cut"):
        path.write_bytes({"empty": b"", "text": b"words", "cut": path.read_bytes()[:100]}[kind])
    code, out, errors = try_line(f"train --inject {path}")
    assert (code, out) == (2, "")
    assert errors.startswith("codedreduce: ")
    assert errors.count("\n") == 1


def test_the_target_of_a_link_is_not_left_behind(try_line: Try, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link to a file that is not there yet stays one."""
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(link.with_name("target"))
    assert try_line(f"train --save {link} --inject windy")[0] == 2
    assert link.is_symlink()
    assert not link.exists()
