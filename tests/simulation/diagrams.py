"""Puts the state diagrams of the protocol, drawn from its tables, into docs/protocol.md."""

import re
from pathlib import Path

from codedreduce.protocol import Rank, RingNode, Root, TreeWorker, diagram

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"


def with_diagrams(text: str) -> str:
    for machine in (Root, TreeWorker, RingNode, Rank):
        block = f"<!-- {machine.__name__} -->\n```mermaid\n{diagram(machine)}\n```\n<!-- end -->"
        pattern = rf"<!-- {machine.__name__} -->.*?<!-- end -->"
        text = re.sub(pattern, lambda _, block=block: block, text, flags=re.DOTALL)
    return text


def main() -> None:
    DOCUMENT.write_text(with_diagrams(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
