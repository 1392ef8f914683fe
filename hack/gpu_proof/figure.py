"""Draws the incident as SVG: the time of a run in a plain program, and what a pod's sidecar exports before and after."""

from collections.abc import Mapping
from html import escape
from typing import Any, Final

_WIDTH: Final = 760
_LEFT: Final = 250  # of the bars
_RIGHT: Final = 150  # after the longest bar, for its value
_LINE: Final = 22
_BAR: Final = 15
_COLUMNS: Final = (560, 700)  # right edges of the values before and after
_METRICS: Final = (
    'enginewright_placement_nodes{provider="CUDAExecutionProvider"}',
    'enginewright_placement_nodes{provider="CPUExecutionProvider"}',
    "enginewright_fallback_nodes",
    "enginewright_fallback_ratio",
    'enginewright_fallback_active{kind="NodeFallback"}',
    'enginewright_check{check="placement",state="failed"}',
)
_STYLE: Final = (
    "text{font:13px sans-serif;fill:#333}.title{font-weight:bold}rect{fill:#c62828}rect.good{fill:#3f51b5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}rect.good{fill:#8c9eff}rect{fill:#ef9a9a}}"
)


def draw_incident(figures: Mapping[str, Any]) -> str:
    """Return the figures of the step `incident` as SVG."""
    top = _LINE
    parts = [_text(0, top, "One run of an encoder in a plain program, median", "title")]
    plain = figures["plain"]
    longest = max(row["p50_ms"] for row in plain.values())
    for place, (name, row) in enumerate(plain.items()):
        top += _LINE
        width = (_WIDTH - _LEFT - _RIGHT) * row["p50_ms"] / longest
        kind = ' class="good"' if place == 0 else ""
        bar = f'x="{_LEFT}" y="{top - 12}" width="{width:.1f}" height="{_BAR}"'
        value = f"{row['p50_ms']:.1f} ms ({figures['factors'][name]:g}x)"
        parts += [
            _text(_LEFT - 8, top, name, anchor="end"),
            f"<rect{kind} {bar}/>",
            _text(_LEFT + width + 6, top, value),
        ]
    top += 2 * _LINE
    parts.append(_text(0, top, "Metrics of the pod's sidecar", "title"))
    parts += _row(top, "every node on the device", "without a kernel")
    for metric in (*_METRICS, "ready"):
        top += _LINE
        parts.append(_text(0, top, metric))
        parts += _row(top, *(_read(figures[name], metric) for name in ("before", "after")))
    top += _LINE
    size = f'width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}"'
    label = (
        "<title>An encoder whose attention has no kernel on the device, before and after</title>"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, label, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _read(pod: Mapping[str, Any], metric: str) -> str:
    if metric == "ready":
        return "yes" if pod["ready"] else "no"
    return f"{pod['metrics'].get(metric, 0):.3g}"


def _row(top: float, *values: str) -> list[str]:
    return [
        _text(right, top, value, anchor="end")
        for right, value in zip(_COLUMNS, values, strict=True)
    ]


def _text(left: float, top: float, text: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{left:.1f}" y="{top}" text-anchor="{anchor}">{escape(text)}</text>'
