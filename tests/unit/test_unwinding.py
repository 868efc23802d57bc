"""Whether a loop is left by an error or by `break`, as the generator sees it that is dropped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from codedreduce.torch.rounds.loop_exit import is_unwinding

found: list[bool] = []
kept: list[ValueError] = []


def inner() -> Iterator[int]:
    try:
        yield from (1, 2)
    finally:
        found.append(is_unwinding())


def steps() -> Iterator[int]:
    yield from inner()


def progress(of: Iterable[int]) -> Iterator[int]:
    """As tqdm does."""
    try:
        yield from of
    finally:
        found.append(False)
        found.pop()


def breaks() -> None:
    for _ in steps():
        break


def returns() -> int | None:
    for one in steps():
        return one
    return None


def breaks_of_a_name() -> None:
    named = steps()
    for _ in named:
        break


def breaks_in_except() -> None:
    for _ in steps():
        try:
            int("x")
        except ValueError:
            break


def breaks_after_an_error() -> None:
    for _ in steps():
        try:
            int("x")
        except ValueError as error:
            kept.append(error)
        break


def breaks_in_progress() -> None:
    for _ in progress(steps()):
        break


def breaks_while_another_error_is_handled() -> None:
    try:
        int("x")
    except ValueError:
        breaks()


def raises() -> None:
    for _ in steps():
        raise ValueError("no")


def calls() -> None:
    for _ in enumerate(steps()):
        int("x")


def raises_in_progress() -> None:
    for _ in progress(steps()):
        int("x")


def raises_in_with() -> None:
    for _ in steps():
        with contextlib.nullcontext(), contextlib.ExitStack():
            int("x")


def raises_before_finally() -> None:
    for _ in steps():
        try:
            int("x")
        finally:
            len("x")


def raises_past_except() -> None:
    for _ in steps():
        try:
            int("x")
        except KeyError:
            len("x")


def raises_again() -> None:
    for _ in steps():
        try:
            int("x")
        except ValueError:
            raise


def exits() -> None:
    for _ in steps():
        sys.exit(3)


BREAKS = (
    breaks, returns, breaks_of_a_name, breaks_in_except, breaks_after_an_error, breaks_in_progress,
    breaks_while_another_error_is_handled,
)  # fmt: skip
RAISES = (
    raises, calls, raises_in_progress, raises_in_with, raises_before_finally, raises_past_except, raises_again, exits,
)  # fmt: skip


@pytest.mark.parametrize("loop", BREAKS + RAISES)
def test_it_is_seen_how_a_loop_is_left(loop: Callable[[], object]) -> None:
    found.clear()
    with contextlib.suppress(ValueError, SystemExit):
        loop()
    assert found == [loop in RAISES]
