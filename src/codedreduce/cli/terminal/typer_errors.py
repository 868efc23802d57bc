"""Errors of Typer, which parses the command line, reworded in the style of all other errors."""

from __future__ import annotations

from typing import Any

import typer

#: Typer raises this for a command line that it cannot parse (`ClickException`, which recent releases do not export).
COMMAND_LINE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

#: The words of pydantic for a valid value, and ours.
PLAINLY = {
    "Input should be": "must be",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def is_help(error: Exception) -> bool:
    """Whether there were no arguments, so that the message is the help (which may have been printed already)."""
    return type(error).__name__ == "NoArgsIsHelpError"


def typer_error_text(error: Any) -> str:
    """What is wrong, with the value, then what to do."""
    message = error.format_message().rstrip(".")
    findings = getattr(error.__cause__, "errors", None)  # of pydantic; its texts lack the value
    param = getattr(error, "param", None)
    if param is not None and callable(findings):
        first = findings()[0]
        name = param.opts[-1] if param.param_type_name == "option" else param.name
        rule = str(first["msg"]).partition(",")[0]
        for words, plainly in PLAINLY.items():
            rule = rule.replace(words, plainly)
        message = f"`{name} {first['input']}`: {rule}"
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context is not None else message
