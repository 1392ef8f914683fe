"""The page of `--html`: whole in one file, without scripts, and fit to be attached to a review.

A browser that shows it asks nobody for anything: a content security policy in it forbids that.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import PurePath

from jinja2 import Environment, PackageLoader, StrictUndefined

from enginewright_cli.preflight import formatting
from enginewright_cli.preflight.html.charts import axis, error_share, treemap
from enginewright_cli.preflight.html.placement_map import tiles
from enginewright_cli.preflight.result import Result, worst


def page(results: Sequence[Result]) -> str:
    """Return the page about one model or several."""
    verdict = worst(tuple(each.verdict for each in results))
    return environment().get_template("page.html").render(results=results, verdict=verdict)


@cache
def environment() -> Environment:
    """Return the templates: what they print is escaped, and its control characters are spelled out.

    Their filters leave None as it is, and None is printed as nothing: figures may be absent.
    """
    made = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printed,
    )
    made.filters |= {
        "visible": formatting.visible,
        "title_of": lambda source: PurePath(source).name or source,
        "counted": formatting.counted,
        "shape": formatting.shape,
        "opsets": _opsets,
        "treemap": treemap,
        "size": _unless_absent(formatting.size),
        "duration": _unless_absent(formatting.duration),
        "share": _unless_absent(formatting.share),
        "number": _unless_absent("{:,}".format),
        "digits": _unless_absent(lambda value, digits=3: f"{value:,.{digits}g}"),
        "cosine": _unless_absent("{:.6f}".format),
        "percent": lambda part: f"{min(1.0, max(0.0, part)) * 100:.2f}%",
        "error_share": error_share,
    }
    made.globals |= {"axis": axis, "tiles": tiles}
    return made


def _printed(value: object) -> object:
    """Return what a template prints of a value; markup, which is a string too, has been here before."""
    if value is None:
        return ""
    return formatting.visible(value) if type(value) is str else value


def _opsets(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in versions.items())


def _unless_absent(write: Callable[..., str]) -> Callable[..., str | None]:
    def written(value: object, *arguments: object) -> str | None:
        return None if value is None else write(value, *arguments)

    return written
