"""A report: one self-contained HTML file."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from codedreduce.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
div.wide { overflow-x: auto; } figure div.wide svg { min-width: 38rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { color: #555; margin-top: 0; } figure { margin: 0; } figure svg { width: 100%; height: auto; }
figcaption { color: #555; font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; white-space: nowrap; padding: .3rem .6rem; border-bottom: 1px solid #e3e3e3; }
p.caption { color: #555; font-size: .92rem; margin-bottom: .3rem; }
th:first-child, td:first-child { text-align: left; } tr.best td { font-weight: 600; color: #00674a; }
"""

#: Dots per inch of rasterized parts of a figure, such as thousands of intervals.
DOTS = 150


class Section(NamedTuple):
    """A figure with a heading and a caption that explains it."""

    heading: str
    figure: Figure
    caption: str


class HtmlTable(NamedTuple):
    """A table; the row with the index `best` is highlighted."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int
    caption: str


def write_page(folder: Path, title: str, lead: str, table: HtmlTable, sections: Sequence[Section]) -> Path:
    """Write `index.html` into a folder; the page loads nothing from elsewhere."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8>"
        f"<meta name=viewport content='width=device-width, initial-scale=1'><title>{html.escape(title)}</title>",
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><p class=lead>{html.escape(lead)}</p>",
        _table(table),
    ]
    for section in sections:
        parts.append(
            f"<h2>{html.escape(section.heading)}</h2><figure><div class=wide>{_svg(section.figure)}</div>"
            f"<figcaption>{html.escape(section.caption)}</figcaption></figure>"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "index.html"
        path.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the report into {str(folder)!r}: {error.strerror}") from None
    return path


def _table(table: HtmlTable) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "".join(
        f"<tr{' class=best' if index == table.best else ''}>"
        + "".join(f"<td>{html.escape(c)}</td>" for c in row)
        + "</tr>"
        for index, row in enumerate(table.rows)
    )
    caption = f"<p class=caption>{html.escape(table.caption)}</p>"
    return f"{caption}<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", dpi=DOTS)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
