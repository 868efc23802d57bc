"""Imports point one way: from the command line down to the mathematics, and no two folders import each other."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import codedreduce

SOURCE = Path(codedreduce.__file__).parent

#: Lowest first. Rooms of one layer do not import each other.
LAYERS = (
    {"errors"},
    {"_extras", "digests", "timing", "units", "vectors"},
    {"packed"},
    {"codes", "topology"},
    {"schemes"},
    {"protocol/core"},
    {"protocol/leader", "protocol/tree"},
    {"protocol/election"},
    {"protocol/rank"},
    {"protocol"},
    {"memory", "process"},
    {"run"},
    {"launch", "net", "simulator"},
    {"launch/ssh", "net/rendezvous"},
    {"node"},
    {"training"},
    {"torch/device", "torch/model"},
    {"torch/data"},
    {"torch/training"},
    {"torch/gradient"},
    {"torch/rounds"},
    {"torch", "lab"},
    {"lightning", "ray", "transformers"},
    {"comparison", "lab/chaos"},
    {"report"},
    {"__init__"},
    {"cli/terminal"},
    {"cli"},
    {"__main__"},
)
HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}


def room_of(file: Path) -> str:
    """The folder a file is in; a file beside the folders is a room of its own."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return "/".join(parts[:-1]) or parts[-1]


def imported(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Every module of this package that is imported anywhere in a file, inside functions too."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}:{node.lineno} imports from a place relative to itself"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "codedreduce")


def room_named(name: str) -> str:
    """The room that a module, or a name in it, lives in."""
    parts = name.split(".")[1:]
    while parts:
        path = SOURCE.joinpath(*parts)
        if path.is_dir():
            return "/".join(parts)
        if path.with_suffix(".py").exists():
            return room_of(path.with_suffix(".py"))
        parts.pop()
    return "__init__"


def edges() -> list[tuple[str, str, str]]:
    """Who imports from where: room, other room, and the line that does."""
    return [
        (room_of(file), room_named(name), f"{file.relative_to(SOURCE)}:{line}")
        for file in sorted(SOURCE.rglob("*.py"))
        for line, name in imported(file.read_text(), str(file))
        if room_named(name) != room_of(file)
    ]


def test_every_room_has_its_layer() -> None:
    rooms = {room_of(file) for file in SOURCE.rglob("*.py")}
    assert rooms == set(HEIGHT)


def test_imports_point_one_way() -> None:
    found = edges()
    assert len({(one, other) for one, other, _ in found}) > 30, "the imports were not found"
    wrong = [f"{where} imports {other}" for one, other, where in found if HEIGHT[other] >= HEIGHT[one]]
    assert wrong == []


def test_no_two_folders_import_each_other() -> None:
    """Follows from the order; looked at by itself, so that it holds whatever the order is said to be."""
    below: dict[str, set[str]] = defaultdict(set)
    for one, other, _ in edges():
        below[one].add(other)

    def reach(room: str, seen: set[str]) -> set[str]:
        for other in below[room] - seen:
            seen.add(other)
            reach(other, seen)
        return seen

    assert [room for room in list(below) if room in reach(room, set())] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from codedreduce.net.rendezvous import meeting", "net/rendezvous"),
        ("from codedreduce.net import rendezvous", "net/rendezvous"),
        ("from codedreduce.run.journal import Journal", "run"),
        ("def run():\n    import codedreduce.cli.train", "cli"),
        ("from codedreduce.errors import UsageError", "errors"),
        ("from codedreduce import Tree", "__init__"),
    ],
)
def test_imports_are_read_right(text: str, expected: str) -> None:
    ((_, name),) = imported(text, "here")
    assert room_named(name) == expected
