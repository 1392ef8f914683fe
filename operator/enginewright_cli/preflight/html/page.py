"""The page of `--html`: a single file without scripts that loads nothing from the network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import PurePath
from typing import Final

from enginewright_contract.manifest import LEAST_RUNS, Latency, Manifest
from jinja2 import Environment, PackageLoader, StrictUndefined

from enginewright_cli import formatting
from enginewright_cli.preflight.artifact import describe_artifact
from enginewright_cli.preflight.html.charts import Tile, axis, error_share, treemap
from enginewright_cli.preflight.placement import operator_of
from enginewright_cli.preflight.result import (
    PlacedNode,
    PlacedOperator,
    Placement,
    Result,
    TargetResult,
    worst,
)

_TITLE_LENGTH: Final = 300  # characters of a node's name
_NAME_LENGTH: Final = 60


def page(results: Sequence[Result]) -> str:
    """Return the page about one model or several."""
    verdict = worst(tuple(result.verdict for result in results))
    return environment().get_template("page.html").render(results=results, verdict=verdict)


def artifact_page(manifest: Manifest) -> str:
    """Return the page about an engine or a prepared model in a store: placement, parity and latency."""
    engine = manifest.engine
    times = (engine.latencies or (engine.latency,)) if engine else ()
    measured = {latency.shapes or "opt": latency for latency in times if latency}
    for other in (engine.backends or ()) if engine else ():
        if other.latency and other.backend != manifest.recipe.backend:
            measured[f"backend {other.backend}"] = other.latency
    return (
        environment()
        .get_template("artifact.html")
        .render(
            manifest=manifest,
            engine=engine,
            target_result=describe_artifact(manifest),
            latencies={label: {"latency": latency} for label, latency in measured.items()},
        )
    )


@cache
def environment() -> Environment:
    """Return the Jinja2 environment: values are escaped and made visible, None is printed as nothing."""
    jinja = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_print_value,
    )
    jinja.filters |= {
        "visible": formatting.visible,
        "title_of": lambda source: PurePath(source).name or source,
        "counted": formatting.count_noun,
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
        "p99": _p99,
        "moment": _unless_absent("{:%Y-%m-%d %H:%M UTC}".format),
        "worth_showing": _select_shown,
    }
    jinja.tests["whole"] = lambda target: target.nodes_accelerated == target.nodes_total
    jinja.globals |= {
        "axis": axis,
        "least_runs": LEAST_RUNS[99],
        "tiles": _tiles,
        "version": metadata.version("enginewright"),
    }
    return jinja


def _print_value(value: object) -> object:
    """Return what a template prints for a value; markup, a subclass of str, was processed before."""
    if value is None:
        return ""
    return formatting.visible(value) if type(value) is str else value


def _p99(latency: Latency | None) -> str | None:
    return formatting.duration(latency.p99) if latency and latency.shows_p99 else None


def _select_shown(result: Result) -> dict[str, TargetResult]:
    """Return the targets about which more is known than the table of targets and the findings say."""
    return {
        name: target
        for name, target in result.targets.items()
        if target.parity or not result.explains(name)
    }


def _opsets(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in versions.items())


def _unless_absent(write: Callable[..., str]) -> Callable[..., str | None]:
    def write_present(value: object, *arguments: object) -> str | None:
        return None if value is None else write(value, *arguments)

    return write_present


def _tiles(placement: Placement, backend: str) -> Iterator[Tile]:
    """Yield the tiles of the placement map: of each label on the backend and elsewhere, and of each operator's rest."""
    listed: dict[str, list[PlacedNode]] = {}
    for node in placement.nodes:
        operator = operator_of(node.label)
        listed.setdefault(operator, []).append(node)
        for part, kind, where in (
            (node.count - node.elsewhere, "on", f"on backend {backend}"),
            (node.elsewhere, "off", "elsewhere"),
        ):
            if part:
                weight = (node.share or 0.0) * part / node.count
                label = formatting.visible(node.label, _TITLE_LENGTH)
                title = f"{label}: {formatting.share(weight)} of the compute time, {where}"
                name = formatting.visible(node.label.rpartition(" (")[0], _NAME_LENGTH)
                times = f" x{part}" if part > 1 else ""
                yield Tile(weight, title, name + times, operator, kind)
    for placed_operator in placement.operators:
        yield from _rest(placed_operator, listed.get(placed_operator.operator, []), backend)


def _rest(operator: PlacedOperator, listed: list[PlacedNode], backend: str) -> Iterator[Tile]:
    """Yield the nodes of an operator that are not listed, as one tile."""
    count = operator.count - sum(node.count for node in listed)
    weight = (operator.share or 0.0) - sum(node.share or 0.0 for node in listed)
    outside = operator.elsewhere - sum(node.elsewhere for node in listed)
    if count > 0 and weight > 0:
        where = f"{outside} of them elsewhere" if outside else f"on backend {backend}"
        nodes = f"{formatting.count_noun(count, 'further node')} of {operator.operator}"
        title = f"{nodes}: {formatting.share(weight)} of the compute time, {where}"
        kind = "off" if outside else "on"
        yield Tile(weight, title, f"{count} further", operator.operator, kind)
