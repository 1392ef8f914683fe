"""The forecast as text for people: steps and differences."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from enginewright_cli.plan.result import ClassPlan, Difference, Forecast, Forecasts, PlanStep
from enginewright_cli.preflight.formatting import visible

_STYLES: Final = {
    "refused": "bold red",
    "waits": "yellow",
    "changes": "cyan",
    "unchanged": "green",
    "refuse": "bold red",
    "wait": "yellow",
    "make": "green",
    "change": "cyan",
    "delete": "red",
}
_SHOWN: Final = 12  # characters of a key


def show(forecasts: Forecasts, console: Console) -> None:
    """Print the forecasts; without colours where the console is not a terminal."""
    for number, each in enumerate(forecasts.models):
        if number:
            console.print()
        for part in _model(each):
            console.print(part, soft_wrap=isinstance(part, Text))
    for message in forecasts.assumed:
        console.print(Text(f"\nassumed: {visible(message)}", style="dim"), soft_wrap=True)
    if forecasts.ignored:
        message = f"\nnot planned: {', '.join(map(visible, forecasts.ignored))}"
        console.print(Text(message, style="dim"), soft_wrap=True)


def _model(each: Forecast) -> Iterator[RenderableType]:
    new = "" if each.exists else " (new)"
    yield Text.assemble(
        (each.verdict.upper(), _STYLES[each.verdict]),
        f"  InferenceModel {visible(each.namespace)}/{visible(each.name)}{new}",
    )
    for one in each.refusals:
        style = "bold red" if one.lasting else "yellow"
        yield Text.assemble((one.reason, style), f": {visible(one.message)}")
    if each.backend:
        yield Text(f"backend {each.backend}, fallback {each.policy}, image {each.image}")
    for accelerator in each.classes:
        yield Text(_class(accelerator))
    if each.steps:
        yield _steps(each.steps)
    if each.steps and each.verdict != "refused":
        yield Text(_revision(each))
    yield from _differences(each.spec)
    yield from _differences(each.rollout)


def _class(each: ClassPlan) -> str:
    parts = [f"{each.replicas} pod{'' if each.replicas == 1 else 's'}"]
    parts += [each.resource] if each.resource else []
    parts += [f"compute capability {each.compute_capability}"] if each.compute_capability else []
    trouble = f"; {each.trouble}" if each.trouble else ""
    return f"class {each.name}: {', '.join(parts)}{trouble}"


def _steps(steps: tuple[PlanStep, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "KIND", "NAME", "CLASS", "KEY"):
        table.add_column(name, no_wrap=True)
    table.add_column("")
    for each in steps:
        parts = [" > ".join(each.stages), each.message]
        table.add_row(
            Text(each.action, style=_STYLES.get(each.action, "")),
            each.kind,
            each.name or ("" if each.kind == "Prepared" else "not known yet"),
            each.class_name or "",
            (each.key or "")[:_SHOWN],
            Text("; ".join(filter(None, map(visible, parts)))),
        )
    return table


def _revision(each: Forecast) -> str:
    revision = each.revision or "known once the model is prepared"
    if each.serving is None:
        return f"revision: {revision}"
    if each.serving == each.revision:
        return f"revision: {revision}, already serving"
    how = "with downtime" if each.strategy == "Recreate" else "new pods first"
    return f"revision: {each.serving} → {revision}, strategy {each.strategy}, {how}"


def _differences(differences: tuple[Difference, ...]) -> Iterator[Text]:
    for each in differences:
        before, after = each.before or "none", each.after or "none"
        yield Text.assemble((f"  {each.field}: ", "cyan"), f"{visible(before)} → {visible(after)}")
