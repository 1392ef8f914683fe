"""A bar chart of the rates as SVG, for the documentation."""

from html import escape
from typing import Final

from bench.serving.results import Results
from bench.serving.servers import OURS
from bench.serving.targets import MANY

_MODELS: Final = ("tiny", "image")
_WIDTH: Final = 760
_LEFT: Final = 250  # of the bars
_RIGHT: Final = 80  # after the longest bar, for its value
_LINE: Final = 22
_BAR: Final = 15
_STYLE: Final = (
    "text{font:13px sans-serif;fill:#333}.title{font-weight:bold}"
    "rect{fill:#9aa5b1}rect.ours{fill:#3f51b5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}rect.ours{fill:#8c9eff}}"
)


def svg(results: Results) -> str:
    """Return the rates of every server at the most connections, one group of bars per model."""
    parts, top = [], _LINE
    for model in _MODELS:
        if model not in results.bare:
            continue
        title = f"{results.bare[model].title}: requests/s, {MANY} connections, one core"
        parts.append(f'<text class="title" x="0" y="{top}">{escape(title)}</text>')
        bars = sorted(
            (
                (row.figures[MANY].per_second, row.server, row.transport)
                for row in results.of_model(model)
                if MANY in row.figures
            ),
            reverse=True,
        )
        for rate, server, transport in bars:
            top += _LINE
            width = max(1.0, (_WIDTH - _LEFT - _RIGHT) * rate / bars[0][0])
            name = escape(f"{server}, {transport}")
            kind = ' class="ours"' if server == OURS else ""
            parts += [
                f'<text x="{_LEFT - 8}" y="{top}" text-anchor="end">{name}</text>',
                f'<rect{kind} x="{_LEFT}" y="{top - 12}" width="{width:.1f}" height="{_BAR}"/>',
                f'<text x="{_LEFT + width + 6:.1f}" y="{top}">{rate:,.0f}</text>',
            ]
        top += 2 * _LINE
    size = f'width="{_WIDTH}" height="{top - _LINE}" viewBox="0 0 {_WIDTH} {top - _LINE}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    label = "<title>Requests per second of model servers</title>"
    return "\n".join([head, label, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])
