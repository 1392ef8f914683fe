"""The findings of the commands as text for people."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.diagnose.result import (
    Explanation,
    Link,
    ModelPlacement,
    ModelRow,
    PodPlacement,
    RevisionDiff,
)
from enginewright_cli.formatting import share, visible
from enginewright_cli.rollout.decide import age
from enginewright_cli.rollout.view import show_analysis

_STYLES: Final = {
    "ready": "green",
    "impaired": "yellow",
    "working": "cyan",
    "stalled": "bold red",
    "unknown": "yellow",
    "True": "green",
    "False": "red",
    "failed": "bold red",
    "ok": "green",
}
_MESSAGE: Final = 160  # characters in a table


def show_explanation(explanation: Explanation, console: Console) -> None:
    """Print the chain from the condition to the cause, the remedy and the next command."""
    _title(console, explanation.state, explanation.namespace, explanation.name)
    for depth, link in enumerate(explanation.chain):
        _line(console, Text("  " * min(depth, 4)) + _link(link))
    if cause := explanation.cause:
        _line(console, Text.assemble(("cause:  ", "bold"), _where(cause), _why(cause)))
    if explanation.remedy:
        _line(console, Text.assemble(("remedy: ", "bold"), visible(explanation.remedy)))
    if explanation.command:
        _line(console, Text.assemble(("next:   ", "bold"), visible(explanation.command)))
    _notes(console, explanation.notes)


def _link(link: Link) -> Text:
    return Text.assemble((_where(link), "bold"), _why(link))


def _where(link: Link) -> str:
    return visible(", ".join(filter(None, (link.object, link.part))))


def _why(link: Link) -> str:
    why = ": ".join(filter(None, (link.reason, link.message)))
    return f": {visible(why)}" if why else ""


def show_placement(placement: ModelPlacement, console: Console) -> None:
    """Print where the nodes run in each pod, and what is outside the engines."""
    promise = f", fallback {placement.promise}" if placement.promise else ""
    _title(console, "", placement.namespace, placement.name, promise)
    if placement.pods:
        table = output.table("POD", "CLASS", "NODE", "PROVIDER", "CHECK", "ELSEWHERE", "")
        for pod in placement.pods:
            table.add_row(
                *map(Text, map(visible, (pod.pod, pod.class_name, pod.node or "none yet"))),
                Text(visible(pod.provider or pod.backend or "?")),
                Text(pod.state or "?", style=_STYLES.get(pod.state, "")),
                _elsewhere(pod),
                Text(visible(pod.message, _MESSAGE)),
            )
        console.print(table)
    else:
        _line(console, Text("no pod serves or is to serve"))
    for engine in placement.engines:
        outside = engine.compute_share_elsewhere
        time = f", {share(outside)} of the time outside" if outside is not None else ""
        inside = f"{engine.nodes_accelerated} of {engine.nodes_total} nodes"
        nodes = f": {', '.join(engine.elsewhere)}" if engine.elsewhere else ""
        _line(console, Text(visible(f"engine {engine.engine}: {inside}{time}{nodes}")))
    _notes(console, placement.notes)


def _elsewhere(pod: PodPlacement) -> str:
    if pod.nodes_total is None or pod.nodes_elsewhere is None:
        return "?"
    time = pod.compute_share_elsewhere
    more = f", {share(time)} of the time" if time else ""
    return f"{pod.nodes_elsewhere} of {pod.nodes_total} nodes{more}"


def show_diff(diff: RevisionDiff, console: Console) -> None:
    """Print what differs between two revisions, then their live comparison."""
    _title(console, "", diff.namespace, diff.name, f": {diff.outcome}" if diff.outcome else "")
    if diff.differences:
        table = output.table("", f"ACTIVE {diff.active}", f"TARGET {diff.target}")
        for row in diff.differences:
            style = "dim" if row.same else "bold"
            cells = (row.what, row.active or "none", "same" if row.same else row.target or "none")
            table.add_row(*(Text(visible(cell), style=style) for cell in cells))
        console.print(table)
    if diff.analysis:
        show_analysis(diff.analysis, console)
    _notes(console, diff.notes)


def models(rows: Sequence[ModelRow]) -> Table:
    """Return all models as a table."""
    table = output.table("MODEL", "READY", "REASON", "DOING", "CLASSES", "PLACEMENT", "FOR", "")
    now = datetime.now(UTC)
    for row in rows:
        since = age(row.since.isoformat(), now) if row.since else ""
        cells = (row.reason, row.doing, row.classes, row.placement, since)
        table.add_row(
            Text(visible(f"{row.namespace}/{row.name}")),
            Text(row.ready or "?", style=_STYLES.get(row.ready, "yellow")),
            *(Text(visible(cell)) for cell in cells),
            Text(visible(row.message, _MESSAGE)),
        )
    return table


def _title(console: Console, state: str, namespace: str, name: str, more: str = "") -> None:
    model = visible(f"InferenceModel {namespace}/{name}{more}")
    shown = (state.upper(), _STYLES.get(state, "")), "  " if state else ""
    _line(console, Text.assemble(*shown, model))


def _notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        _line(console, Text(f"note: {visible(note)}", style="dim"))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
