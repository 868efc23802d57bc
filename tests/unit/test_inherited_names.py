"""Classes derived from Python's own do not use private names of their bases, which differ from version to version."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import codedreduce
from codedreduce.node.driver import Driver

#: Slow to import, and their classes derive from those of others.
FRAMEWORKS = {"lightning", "ray", "transformers"}


def names_in(class_: ast.ClassDef) -> set[str]:
    """What a class's source defines, and what its methods assign to `self`."""
    names: set[str] = set()
    for statement in class_.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(class_):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            names |= {node.attr} if node.value.id == "self" else set()
    return names


def private(names: set[str]) -> set[str]:
    """Without those that are meant to be overridden: dunders, and `_fields_` and the like."""
    return {name for name in names if name.startswith("_") and not name.endswith("_")}


@cache
def own_names(class_: type) -> set[str]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(class_))).body
    assert isinstance(parsed, ast.ClassDef)
    return private(names_in(parsed))


def inherited_names(class_: type) -> Iterator[tuple[str, type]]:
    """The private names of all bases that are of the standard library, as this Python has them."""
    for base in class_.__mro__[1:]:
        if base is not object and base.__module__.split(".")[0] in sys.stdlib_module_names:
            try:
                names = own_names(base)
            except (OSError, TypeError, ValueError):  # written in C
                names = set()
            yield from ((name, base) for name in names | private(set(vars(base))))


def clashes(class_: type) -> list[str]:
    own = own_names(class_)
    where = f"{class_.__module__}.{class_.__qualname__}"
    return [f"{where}.{name} is {base.__qualname__}'s" for name, base in inherited_names(class_) if name in own]


def classes() -> Iterator[type]:
    """All of the package's, but of modules that need what is not installed."""
    source = Path(codedreduce.__file__).parent
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        if parts[0] in FRAMEWORKS or parts[-1] in ("__init__", "__main__"):
            continue
        name = ".".join(("codedreduce", *parts))
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue
        yield from (class_ for class_ in vars(found).values() if inspect.isclass(class_) and class_.__module__ == name)


def test_no_class_uses_a_private_name_of_a_base_of_the_standard_library() -> None:
    found = list(classes())
    assert Driver in found
    assert [clash for class_ in found for clash in clashes(class_)] == []


class Clashing(threading.Thread):
    """As some have been: on every Python from 3.11 on `_target` is assigned, and `_bootstrap` defined, by Thread."""

    def __init__(self) -> None:
        super().__init__()
        self._target = None

    def _bootstrap(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["_target", "_bootstrap"])
def test_a_clash_would_be_found(name: str) -> None:
    assert any(f".{name} is Thread's" in clash for clash in clashes(Clashing))
