"""Pieces that every section of the page is put together from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from enginewright_cli.preflight.html_markup import Child, Markup, tag
from enginewright_cli.preflight.result import Verdict
from enginewright_cli.preflight.words import visible

LABEL: Final = 160  # characters of a node's name that are shown
_SIGNS: Final[dict[Verdict, str]] = {
    "pass": "M3 8.5 6.5 12 13 4.5",
    "warn": "M8 2 14.5 14H1.5ZM8 6.5V10M8 12V12.2",
    "fail": "M4 4 12 12M12 4 4 12",
}


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: str | None = None  # its style: number | wide


def badge(verdict: Verdict, word: str | None = None) -> Markup:
    """Return a verdict as a word with a sign, so that it needs no colour."""
    sign = tag("path", d=_SIGNS[verdict])
    picture = tag("svg", sign, viewBox="0 0 16 16", aria_hidden="true")
    return tag("span", picture, word or verdict.upper(), class_=f"badge {verdict}")


def name(text: str, limit: int = LABEL) -> Markup:
    """Return a name of the model's, in letters of one width and in its own direction."""
    return tag("span", visible(text, limit), class_="name")


def names(labels: Iterable[str]) -> list[Child]:
    """Return names with commas between."""
    found: list[Child] = []
    for each in labels:
        found += [", "] if found else []
        found.append(name(each))
    return found


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Return terms and what is known of each; unknown ones are left out, names take a line."""
    rows = [
        tag(
            "div",
            tag("dt", term),
            tag("dd", known),
            class_="whole" if isinstance(known, Markup) else None,
        )
        for term, known in pairs
        if known is not None
    ]
    return tag("dl", rows, class_="facts")


def table(
    caption: Child, columns: Sequence[Column], rows: Iterable[Sequence[Child]], label: str
) -> Markup:
    """Return a table whose first column names its rows, and that can be scrolled by keyboard."""
    head = tag("tr", (tag("th", each.name, scope="col", class_=each.kind) for each in columns))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            (
                tag("td", cell, class_=column.kind)
                for column, cell in zip(columns[1:], row[1:], strict=True)
            ),
        )
        for row in rows
    ]
    drawn = tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", head),
        tag("tbody", body),
    )
    return tag("div", drawn, class_="scroll", tabindex=0, role="group", aria_label=label)


def details(summary: Child, *children: Child) -> Markup:
    """Return what is shown when it is asked for."""
    return tag("details", tag("summary", summary), *children)


def heading(level: int, kind: str, *children: Child, id_: str | None = None) -> Markup:
    """Return a heading; its kind, not its level, decides how large it is."""
    return tag(f"h{min(level, 6)}", *children, class_=kind, id=id_)


def section(id_: str, level: int, title: str, *children: Child) -> Markup:
    """Return a section that is named by its heading."""
    head = heading(level, "of-section", title, id_=f"{id_}-title")
    return tag("section", head, *children, id=id_, aria_labelledby=f"{id_}-title")
