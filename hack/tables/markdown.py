"""Tables in Markdown."""

import re
from collections.abc import Iterable, Sequence

Rows = Iterable[Sequence[str]]


def table(heading: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(map(_cell, line)) + " |" for line in (heading, *rows)]
    lines.insert(1, "|---" * len(heading) + "|")
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(lines))


def _cell(text: str) -> str:
    return re.sub(r"<(\w+)>", r"&lt;\1>", text.replace("|", r"\|").replace("\n", " "))


def code(text: str) -> str:
    """Return `text` as code; empty if it is empty."""
    return f"`{text}`" if text else ""
