"""What the documents show works: every Python snippet runs, and every command line is one that is understood."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch  # noqa: F401  (loaded here, once for all snippets)
import typer

from codedreduce.cli import app
from codedreduce.training import synthetic
from tests.command import script

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

#: What the reader of a PyTorch snippet has already.
TORCH = """
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset
import codedreduce.torch as cr
torch.manual_seed(0)
model = torch.nn.Linear(5, 3)
dataset = TensorDataset(torch.randn(1100, 5), torch.randint(0, 3, (1100,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 300)
"""


class Fence(NamedTuple):
    """A fenced block: where it begins, in what language, and what it says."""

    place: str
    language: str
    text: str


def fences() -> list[Fence]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        blocks = list(re.finditer(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL))
        assert 2 * len(blocks) == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{document.name}: a fence is open"
        for block in blocks:
            place = f"{document.name}:{text.count(chr(10), 0, block.start()) + 1}"
            found.append(Fence(place, block[2], block[3]))
    return found


FENCES = fences()


def python_snippets() -> list[Fence]:
    """Python, and what a diff makes of it."""
    added = [
        fence._replace(text="\n".join(line[1:] for line in fence.text.splitlines() if line[:1] in "+ "))
        for fence in FENCES
        if fence.language == "diff"
    ]
    return [fence for fence in FENCES if fence.language == "python"] + added


def commands() -> list[tuple[str, str]]:
    """Every command line of a block without a language, of a batch script and in the text, with its place."""
    found = [
        (fence.place, line.partition("  #")[0].strip())
        for fence in FENCES
        if fence.language in ("", "sh", "bash")
        for line in fence.text.splitlines()
        if line.strip() and not (fence.language == "bash" and line.startswith("#"))
    ]
    for document in DOCUMENTS:
        text = re.sub(r"^( *)```.*?^\1```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        inline = re.findall(r"`((?:codedreduce|make|python|torchrun|diff|pip) [^`]+)`", text)
        found += [(document.name, " ".join(line.split())) for line in inline]
    return list(dict.fromkeys(found))


COMMANDS = commands()


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    """Mermaid is compared with the tables it is drawn from (test_protocol); the others are tested here."""
    assert {fence.language for fence in FENCES} <= {"python", "diff", "", "sh", "bash", "mermaid"}
    names = [fence.place.partition(":")[0] for fence in python_snippets()]
    assert names.count("README.md") >= 2
    assert "pytorch.md" in names
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("snippet", python_snippets(), ids=lambda snippet: snippet.place)
def test_python(snippet: Fence, tmp_path: Path) -> None:
    data = synthetic(400, 10)
    np.savez(tmp_path / "file.npz", x=data.x, y=data.y)
    uses_torch = re.search(r"\bcr\b|codedreduce\.(lightning|transformers)", snippet.text) is not None
    (tmp_path / "snippet.py").write_text((TORCH if uses_torch else "") + snippet.text)
    run = script(tmp_path / "snippet.py", timeout=120)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("place", "line"), COMMANDS, ids=lambda text: text)
def test_command(place: str, line: str) -> None:
    program, *words = shlex.split(line)
    if program in ("nohup", "tmux"):  # which run another: what they are for is tested where runs end
        program, *words = words[words.index("codedreduce") :]
    check = {"codedreduce": check_codedreduce, "make": check_make, "python": check_python}.get(program)
    if check is not None:
        check(words)
    else:
        known = {"torchrun", "mpiexec", "srun", "diff", "pip", "ray"}
        assert program in known, f"{place}: say here how {program!r} is tested"
        check_files(words)


def check_codedreduce(words: list[str]) -> None:
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert not words or not hasattr(command, "commands"), f"codedreduce has no command {words[0]!r}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word == "--" or word.endswith(".py"):
            break  # what follows is for another program
        assert not word.startswith("-") or word.partition("=")[0] in options, f"{command.name} has no option {word}"
    check_files(words)


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        assert re.search(rf"^{re.escape(word.partition('=')[0])} *[:?]", makefile, re.MULTILINE), f"no target {word!r}"


def check_python(words: list[str]) -> None:
    """A script is there; a module, too, and if it is ours it knows the options that it is given."""
    check_files(words)
    if words[0] == "-m":
        spec = importlib.util.find_spec(words[1])
        assert spec is not None, f"there is no module {words[1]}"
        assert spec.origin is not None
        source = Path(spec.origin).with_name("__main__.py") if spec.submodule_search_locations else Path(spec.origin)
        for option in (word for word in words[2:] if word.startswith("-") and source.is_relative_to(ROOT)):
            assert f'"{option}"' in source.read_text(), f"{words[1]} has no option {option}"


def check_files(words: list[str]) -> None:
    for word in words:
        if word.endswith(".py"):
            assert (ROOT / word).exists(), f"there is no {word}"
