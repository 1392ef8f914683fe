"""The result as text for people: one row per target, then findings and remedies."""

import math
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.formatting import duration, size, visible
from enginewright_cli.preflight.result import AnsweredOutput, Found, Result, TargetResult, Verdict

STYLES: Final[dict[Verdict, str]] = {
    "pass": "green",
    "warn": "yellow",
    "unknown": "magenta",
    "fail": "bold red",
}
_SHOWN_NODES: Final = 5


def show(result: Result, console: Console) -> None:
    """Print the result; without colours where the console is not a terminal."""
    console.print(_head(result), soft_wrap=True)
    console.print(Group(_targets(result), *_findings(result)), crop=False)


def _head(result: Result) -> Text:
    text = Text.assemble(_verdict(result.verdict), f"  {visible(result.source)}")
    model = result.model
    if model is None:
        return text
    facts = [size(model.size_bytes)]
    if model.opset is not None:
        facts += [f"opset {model.opset}", f"IR {model.ir_version}", f"{model.nodes} nodes"]
    facts.append(f"sha256 {model.digest[:12]}")
    seconds = "cached" if result.cached else f"{result.seconds:.1f} s"
    return text.append(f"  {', '.join(facts)} ({seconds})", style="dim")


def _targets(result: Result) -> Table:
    columns = "TARGET VERDICT REASON BACKEND NODES ENGINE BUILD P50 P99 RUNS"
    table = output.table(*columns.split(), no_wrap=True)
    for name, target in result.targets.items():
        table.add_row(
            name, _verdict(target.verdict), target.reason or "", target.backend, *_figures(target)
        )
    return table


def _figures(result: TargetResult) -> tuple[str, ...]:
    nodes = "" if result.nodes_total is None else f"{result.nodes_accelerated}/{result.nodes_total}"
    engine = "" if result.engine_bytes is None else size(result.engine_bytes)
    build = "" if result.build_seconds is None else duration(result.build_seconds)
    if (latency := result.latency) is None:
        return nodes, engine, build
    p99 = duration(latency.p99) if latency.shows_p99 else ""
    return nodes, engine, build, duration(latency.p50), p99, str(latency.samples)


def _findings(result: Result) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(f"{name}: {target.scope}", style="dim")
        for name, target in result.targets.items()
        if target.scope
    ]
    for name, target in result.targets.items():
        if target.reason and not result.explains(name):
            lines.append(Text(f"\n{name}: {visible(target.message)}", style=STYLES[target.verdict]))
        lines += [
            Text(f"\n{name}: changed: {visible(change.message)}", style="cyan")
            for change in target.changes
        ]
        lines += [
            Text(f"\n{name}: not judged by the samples: {visible(part)}", style=STYLES["warn"])
            for part in (target.parity.list_unjudged() if target.parity else ())
        ]
        lines += [
            Text(f"\n{name}: answers {visible(_describe_answer(output))}", style="cyan")
            for output in target.answer
        ]
    return lines + [
        line for finding in result.findings for line in (_finding(finding), *_options(finding))
    ]


def _describe_answer(output: AnsweredOutput) -> str:
    shape = ", ".join(map(str, output.shape))
    more = ", ..." if len(output.values) < math.prod(output.shape) else ""
    return f"{output.name} {output.datatype} [{shape}]: {', '.join(output.values)}{more}"


def _finding(finding: Found) -> Text:
    style = STYLES["fail" if finding.severity == "error" else "warn"]
    where = ", ".join(finding.targets)
    text = Text.assemble(
        ("\n" + finding.severity, style), f" {finding.reason} ({finding.stage}; {where}): "
    )
    text.append(visible(finding.message))
    missing = [node for node in finding.nodes[:_SHOWN_NODES] if node not in finding.message]
    if missing:
        rest = finding.node_count - len(finding.nodes[:_SHOWN_NODES])
        more = f" and {rest} more" if rest > 0 else ""
        text.append(f"\n  nodes: {visible(', '.join(missing))}{more}", style="dim")
    if finding.remedy:
        text.append(f"\n  remedy: {visible(finding.remedy)}", style="bold")
    return text


def _options(finding: Found) -> list[Text]:
    """Return the options that resolve it, never wrapped, so that they can be pasted."""
    return [
        Text(f"  option: {visible(option)}", style="bold", no_wrap=True, overflow="ignore")
        for option in finding.options
    ]


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict.upper(), style=STYLES[verdict])
