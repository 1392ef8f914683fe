"""The lies found over the false alarms as SVG, for the documentation: one panel for each precision."""

from html import escape
from typing import Final

from bench.truth.comparators import OURS, PRECISIONS
from bench.truth.results import TUNED, Results
from bench.truth.targets import SIZES_FOUND

_WIDTH: Final = 760
_LEFT: Final = 250  # of the bars
_FULL: Final = 330  # length of a bar of 100%
_LINE: Final = 20
_BAR: Final = 14
_STYLE: Final = (
    "text{font:13px sans-serif;fill:#333}.title{font-weight:bold}.alarm{fill:#c62828}"
    "rect{fill:#9aa5b1}rect.ours{fill:#3f51b5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.alarm{fill:#ef9a9a}rect.ours{fill:#8c9eff}}"
)


def svg(results: Results) -> str:
    """Return the share of the lies that must be found, with the false alarms beside it."""
    parts, top = [], _LINE
    for precision in PRECISIONS:
        sizes = SIZES_FOUND[precision]
        title = f"{precision}: lies found, of {sizes[0].partition(' to')[0]} of the spread and more"
        title = title.replace(" and more of the spread", " of the spread")
        parts.append(f'<text class="title" x="0" y="{top}">{escape(title)}</text>')
        for comparator in results.comparators():
            counts = results.count(comparator, precision, *sizes)
            alarms = results.alarms_of(comparator, precision)
            if not counts.told or alarms is None:
                continue
            top += _LINE
            share = counts.detected / counts.told
            width = max(1.0, _FULL * share)
            kind = ' class="ours"' if comparator == OURS else ""
            alarm = ' class="alarm"' if alarms.alarms else ""
            name = escape(comparator.replace(TUNED, ", best tolerance"))
            said = f"{share:.0%}, {alarms.alarms} false alarms"
            parts += [
                f'<text x="{_LEFT - 8}" y="{top}" text-anchor="end">{name}</text>',
                f'<rect{kind} x="{_LEFT}" y="{top - 11}" width="{width:.1f}" height="{_BAR}"/>',
                f'<text{alarm} x="{_LEFT + width + 6:.1f}" y="{top}">{said}</text>',
            ]
        top += 2 * _LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img">'
        f"<title>Lies found, and false alarms</title><style>{_STYLE}</style>{''.join(parts)}</svg>"
    )
