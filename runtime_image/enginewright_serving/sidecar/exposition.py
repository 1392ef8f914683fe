"""The part of Prometheus' text format 0.0.4 that the sidecar writes."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL: Final = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_VALUE: Final = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|Inf|NaN)"
_LINE: Final = re.compile(  # a sample, or a line about a family; not OpenMetrics' "# EOF"
    rf"{_NAME}(?:\{{(?:{_LABEL}(?:,{_LABEL})*,?)?\}})?[ \t]+{_VALUE}(?:[ \t]+-?\d+)?"
    rf"|\# (?:HELP {_NAME} .*|TYPE {_NAME} (?:counter|gauge|histogram|summary|untyped))"
)

Row = tuple[Mapping[str, str], float]


class Family(NamedTuple):
    """One metric family."""

    name: str
    help: str
    labels: tuple[str, ...] = ()  # in addition to the common ones
    kind: Literal["counter", "gauge", "histogram"] = "gauge"

    def header(self) -> tuple[str, str]:
        """Return the HELP and TYPE lines."""
        return f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"


class Exposition:
    """Builds an exposition; `common` labels come first in every series."""

    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = common
        self._lines: list[str] = []

    def family(self, family: Family, rows: Iterable[Row]) -> None:
        """Add one gauge or counter; nothing if there are no rows."""
        series = [self._series(family.name, labels, value) for labels, value in rows]
        if series:
            self._lines += [*family.header(), *series]

    def histogram(self, family: Family, buckets: Iterable[tuple[str, int]], total: float) -> None:
        """Add a histogram of one series; `buckets` are upper bound and cumulative count."""
        name, rows = family.name, list(buckets)
        self._lines += family.header()
        self._lines += [
            self._series(f"{name}_bucket", {"le": bound}, count) for bound, count in rows
        ]
        self._lines.append(self._series(f"{name}_count", {}, rows[-1][1]))
        self._lines.append(self._series(f"{name}_sum", {}, total))

    def text(self, appended: bytes = b"") -> bytes:
        """Return the text, followed by another exposition without its invalid lines, which would fail the scrape."""
        try:
            other = [line for line in appended.decode().split("\n") if _LINE.fullmatch(line)]
        except UnicodeDecodeError:
            other = []
        return "".join(f"{line}\n" for line in (*self._lines, *other)).encode()

    def _series(self, name: str, labels: Mapping[str, str], value: float) -> str:
        pairs = {**self._common, **labels}.items()
        inside = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in pairs)
        return f"{name}{{{inside}}} {float(value)!r}"
