"""What `make test` runs is there."""

import ast
from pathlib import Path

import pytest

from tests.tiers import END_TO_END, is_in_make_test

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("path", END_TO_END)
def test_what_is_named_is_there(path: str) -> None:
    found = {node.name for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert set(END_TO_END[path]) <= found


def test_most_tests_with_processes_are_for_make_test_all() -> None:
    assert is_in_make_test("unit/test_tiers.py", "test_most_tests_with_processes_are_for_make_test_all")
    assert is_in_make_test("integration/test_striped.py", "test_one_is_killed")
    assert not is_in_make_test("integration/test_ray.py", "test_placements_and_what_cannot_be_had")
    assert 50 <= sum(map(len, END_TO_END.values())) <= 80
