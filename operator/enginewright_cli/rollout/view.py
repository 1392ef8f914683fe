"""The state of a rollout as text for people: both revisions side by side, their comparison, and the history."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from enginewright_cli.preflight.formatting import duration, share, visible
from enginewright_cli.rollout.decide import age
from enginewright_cli.rollout.result import (
    BringUpProgress,
    ComparedFigure,
    RolloutAnalysis,
    RolloutArm,
    RolloutClass,
    RolloutStatus,
)

_STYLES: Final = {
    "healthy": "green",
    "progressing": "cyan",
    "rejected": "bold red",
    "stalled": "bold red",
    "passed": "green",
    "failed": "bold red",
    "inconclusive": "yellow",
    "Promoted": "green",
    "Rejected": "red",
}
_DIGEST: Final = 12  # characters
_MESSAGE: Final = 120  # characters in the history
_UNKNOWN: Final = "?"


def show(rollout: RolloutStatus, console: Console, now: datetime) -> None:
    """Print a rollout; without colours where the console is not a terminal."""
    for part in _parts(rollout, now):
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(rollout: RolloutStatus, now: datetime) -> Iterator[RenderableType]:
    paused = "  (paused)" if rollout.paused else ""
    yield Text.assemble(
        (rollout.verdict.upper(), _STYLES[rollout.verdict]),
        f"  InferenceModel {visible(rollout.namespace)}/{visible(rollout.name)}{paused}",
    )
    if rollout.message:
        reason = f"{rollout.reason}: " if rollout.reason else ""
        yield Text(f"{reason}{visible(rollout.message)}")
    if rollout.stable or rollout.new:
        yield _arms(rollout)
    if rollout.progress and rollout.progress.message:
        yield Text.assemble(("waits for: ", "yellow"), visible(rollout.progress.message))
    if rollout.analysis:
        yield from _analysis(rollout.analysis)
    if failure := rollout.last_failure:
        where = f" in {failure.stage}" if failure.stage else ""
        what = f"revision {failure.revision}" if failure.revision else "the new revision"
        yield Text.assemble(
            ("last failure: ", "red"),
            f"{what}{where}: {failure.reason}: {visible(failure.message)}",
        )
    if rollout.history:
        yield _history(rollout, now)
    for each in rollout.notes:
        yield Text(f"note: {visible(each)}", style="dim")


def _arms(rollout: RolloutStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "STABLE", "NEW"):
        table.add_column(name, overflow="fold")
    stable, new = rollout.stable, rollout.new
    rows = {
        "revision": (stable.revision if stable else "none", new.revision if new else "none"),
        "phase": ("serves" if stable else "", _phase(rollout.progress)),
        "model": (_digest(stable), _digest(new)),
        "precision": (_precision(stable), _precision(new)),
    }
    for name, (left, right) in rows.items():
        table.add_row(Text(name, style="dim"), Text(left), Text(right))
    sides = [{each.name: each for each in arm.classes} if arm else {} for arm in (stable, new)]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        found_classes = [side.get(name) for side in sides]
        table.add_row(Text(f"class {visible(name)}", style="dim"), *map(_class, found_classes))
        images = [each.image if each else "" for each in found_classes]
        table.add_row("", *(Text(visible(each), style="dim") for each in images))
    return table


def _phase(progress: BringUpProgress | None) -> str:
    if progress is None:
        return ""
    parts = [progress.phase]
    if progress.step:
        parts.append(f"step {progress.step} of {progress.steps}")
    if progress.held_seconds is not None:
        parts.append(f"for {progress.held_seconds} s")
    if progress.left_seconds is not None:
        parts.append(f"{progress.left_seconds} s left")
    return ", ".join(parts)


def _digest(arm: RolloutArm | None) -> str:
    if arm is None:
        return ""
    return (arm.model_digest or _UNKNOWN)[:_DIGEST]


def _precision(arm: RolloutArm | None) -> str:
    return "" if arm is None else arm.precision or _UNKNOWN


def _class(each: RolloutClass | None) -> Text:
    if each is None:
        return Text()
    pods = "pods not known" if each.pods is None else f"{each.ready}/{each.pods} pods ready"
    interim = " (interim)" if each.interim else ""
    return Text(visible(f"{each.backend}{interim}, {pods}"))


def _analysis(analysis: RolloutAnalysis) -> Iterator[RenderableType]:
    message = f": {visible(analysis.message)}" if analysis.message else ""
    yield Text.assemble("comparison ", (analysis.state, _STYLES[analysis.state]), message)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("COMPARED")
    for name in ("STABLE", "NEW", "RATIO", "LIMIT", "SAMPLES", "STATE"):
        table.add_column(name, justify="right")
    for each in analysis.figures:
        table.add_row(
            Text(visible(each.name)),
            _value(each.stable, each.unit),
            _value(each.canary, each.unit),
            "" if each.ratio is None else f"{each.ratio:.3g}",
            _limit(each),
            f"{each.stable_samples} : {each.canary_samples}",
            Text(each.state, style=_STYLES[each.state]),
        )
    if analysis.figures:
        yield table


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return _UNKNOWN
    if unit == "seconds":
        return duration(value)
    return share(value) if unit == "share" else f"{value:.3g}"


def _limit(each: ComparedFigure) -> str:
    if each.limit is None:
        return "none"
    if each.ratio is not None or each.unit == "seconds":
        return f"{each.limit:.3g}"
    return f"+{_value(each.limit, each.unit)}" if each.unit == "share" else f"{each.limit:.3g}"


def _history(rollout: RolloutStatus, now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("REVISION", "OUTCOME", "AGE", "MODEL"):
        table.add_column(name, no_wrap=True)
    table.add_column("IMAGES", overflow="fold")
    table.add_column("")
    stable, new = rollout.stable, rollout.new
    roles = {new.revision: "new"} if new else {}
    roles |= {stable.revision: "active"} if stable else {}
    for each in rollout.history:
        outcome = roles.get(each.revision) or each.outcome or "none"
        why = f"{each.reason}: {each.message}" if each.reason else ""
        table.add_row(
            Text(visible(each.revision)),
            Text(outcome, style=_STYLES.get(each.outcome, "")),
            age(each.created, now),
            (each.model_digest or _UNKNOWN)[:_DIGEST],
            Text(visible(", ".join(each.images))),
            Text(visible(why, _MESSAGE)),
        )
    return table
