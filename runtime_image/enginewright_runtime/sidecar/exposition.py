"""Prometheus' text format 0.0.4, as much of it as the sidecar writes."""

from collections.abc import Iterable, Mapping
from typing import Final

CONTENT_TYPE: Final = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_END: Final = b"# EOF\n"  # of OpenMetrics, which must be the last line of a whole exposition

Row = tuple[Mapping[str, str], float]


class Exposition:
    """Text that grows by families; `common` labels come first in every series."""

    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = common
        self._lines: list[str] = []

    def family(self, kind: str, name: str, about: str, rows: Iterable[Row]) -> None:
        """Add one family of type `kind`, gauge or counter; none without rows."""
        series = [self._series(name, labels, value) for labels, value in rows]
        if series:
            self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *series]

    def histogram(
        self, name: str, about: str, buckets: Iterable[tuple[str, int]], total: float
    ) -> None:
        """Add a histogram of one series; `buckets` are upper bound and cumulative count."""
        rows = list(buckets)
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} histogram"]
        self._lines += [
            self._series(f"{name}_bucket", {"le": bound}, count) for bound, count in rows
        ]
        self._lines.append(self._series(f"{name}_count", {}, rows[-1][1]))
        self._lines.append(self._series(f"{name}_sum", {}, total))

    def text(self, appended: bytes = b"") -> bytes:
        """Return the text, followed by another exposition."""
        own = "".join(f"{line}\n" for line in self._lines).encode()
        other = appended.removesuffix(_END)
        if other and not other.endswith(b"\n"):
            other += b"\n"
        return own + other

    def _series(self, name: str, labels: Mapping[str, str], value: float) -> str:
        pairs = {**self._common, **labels}.items()
        inside = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in pairs)
        return f"{name}{{{inside}}} {float(value)!r}"
