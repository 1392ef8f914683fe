"""The forecast as text for people: steps and differences."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.plan.result import ClassPlan, Difference, Forecast, Forecasts, PlanStep

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
    for number, model in enumerate(forecasts.models):
        if number:
            console.print()
        for part in _model(model):
            console.print(part, soft_wrap=isinstance(part, Text))
    for message in forecasts.assumed:
        console.print(Text(f"\nassumed: {visible(message)}", style="dim"), soft_wrap=True)
    if forecasts.ignored:
        message = f"\nnot planned: {', '.join(map(visible, forecasts.ignored))}"
        console.print(Text(message, style="dim"), soft_wrap=True)


def _model(forecast: Forecast) -> Iterator[RenderableType]:
    new = "" if forecast.exists else " (new)"
    yield Text.assemble(
        (forecast.verdict.upper(), _STYLES[forecast.verdict]),
        f"  InferenceModel {visible(forecast.namespace)}/{visible(forecast.name)}{new}",
    )
    for one in forecast.refusals:
        style = "bold red" if one.lasting else "yellow"
        yield Text.assemble((one.reason, style), f": {visible(one.message)}")
    if forecast.backend:
        yield Text(
            f"backend {forecast.backend}, fallback {forecast.policy}, image {forecast.image}"
        )
    for accelerator in forecast.classes:
        yield Text(_class(accelerator))
    if forecast.steps:
        yield _steps(forecast.steps)
    if forecast.steps and forecast.verdict != "refused":
        yield Text(_revision(forecast))
    yield from _differences(forecast.spec)
    yield from _differences(forecast.rollout)


def _class(plan: ClassPlan) -> str:
    parts = [f"{plan.replicas} pod{'' if plan.replicas == 1 else 's'}"]
    parts += [plan.resource] if plan.resource else []
    parts += [f"compute capability {plan.compute_capability}"] if plan.compute_capability else []
    trouble = f"; {plan.trouble}" if plan.trouble else ""
    return f"class {plan.name}: {', '.join(parts)}{trouble}"


def _steps(steps: tuple[PlanStep, ...]) -> Table:
    table = output.table("", "KIND", "NAME", "CLASS", "KEY", no_wrap=True)
    table.add_column("")
    for step in steps:
        parts = [" > ".join(step.stages), step.message]
        table.add_row(
            Text(step.action, style=_STYLES.get(step.action, "")),
            step.kind,
            step.name or ("" if step.kind == "Prepared" else "not known yet"),
            step.class_name or "",
            (step.key or "")[:_SHOWN],
            Text("; ".join(filter(None, map(visible, parts)))),
        )
    return table


def _revision(forecast: Forecast) -> str:
    revision = forecast.revision or "known once the model is prepared"
    if forecast.serving is None:
        return f"revision: {revision}"
    if forecast.serving == forecast.revision:
        return f"revision: {revision}, already serving"
    how = "with downtime" if forecast.strategy == "Recreate" else "new pods first"
    return f"revision: {forecast.serving} → {revision}, strategy {forecast.strategy}, {how}"


def _differences(differences: tuple[Difference, ...]) -> Iterator[Text]:
    for difference in differences:
        before, after = difference.before or "none", difference.after or "none"
        yield Text.assemble(
            (f"  {difference.field}: ", "cyan"), f"{visible(before)} → {visible(after)}"
        )
