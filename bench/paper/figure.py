from pathlib import Path
from typing import Any


def draw(found: dict[str, Any], path: Path) -> None: ...


def table(found: dict[str, Any]) -> str:
    return ""
