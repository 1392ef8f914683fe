"""The state of a rollout as text for people: both revisions side by side, their comparison, and the history."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.formatting import duration, share, visible
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


def show_analysis(analysis: RolloutAnalysis, console: Console) -> None:
    """Print the comparison of two revisions."""
    for part in _analysis(analysis):
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
    for note in rollout.notes:
        yield Text(f"note: {visible(note)}", style="dim")


def _arms(rollout: RolloutStatus) -> Table:
    table = output.table("", "STABLE", "NEW")
    stable, new = rollout.stable, rollout.new
    rows = {
        "revision": (stable.revision if stable else "none", new.revision if new else "none"),
        "phase": ("serves" if stable else "", _phase(rollout.progress)),
        "model": (_digest(stable), _digest(new)),
        "precision": (_precision(stable), _precision(new)),
    }
    for name, (left, right) in rows.items():
        table.add_row(Text(name, style="dim"), Text(left), Text(right))
    sides = [
        {device_class.name: device_class for device_class in arm.classes} if arm else {}
        for arm in (stable, new)
    ]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        found_classes = [side.get(name) for side in sides]
        table.add_row(Text(f"class {visible(name)}", style="dim"), *map(_class, found_classes))
        images = [
            found_device_class.image if found_device_class else ""
            for found_device_class in found_classes
        ]
        table.add_row("", *(Text(visible(image), style="dim") for image in images))
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


def _class(rollout_class: RolloutClass | None) -> Text:
    if rollout_class is None:
        return Text()
    pods = (
        "pods not known"
        if rollout_class.pods is None
        else f"{rollout_class.ready}/{rollout_class.pods} pods ready"
    )
    interim = " (interim)" if rollout_class.interim else ""
    return Text(visible(f"{rollout_class.backend}{interim}, {pods}"))


def _analysis(analysis: RolloutAnalysis) -> Iterator[RenderableType]:
    message = f": {visible(analysis.message)}" if analysis.message else ""
    yield Text.assemble("comparison ", (analysis.state, _STYLES[analysis.state]), message)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("COMPARED")
    for name in ("STABLE", "NEW", "RATIO", "LIMIT", "SAMPLES", "STATE"):
        table.add_column(name, justify="right")
    for figure in analysis.figures:
        table.add_row(
            Text(visible(figure.name)),
            _value(figure.stable, figure.unit),
            _value(figure.canary, figure.unit),
            "" if figure.ratio is None else f"{figure.ratio:.3g}",
            _limit(figure),
            f"{figure.stable_samples} : {figure.canary_samples}",
            Text(figure.state, style=_STYLES[figure.state]),
        )
    if analysis.figures:
        yield table


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return _UNKNOWN
    if unit == "seconds":
        return duration(value)
    return share(value) if unit == "share" else f"{value:.3g}"


def _limit(figure: ComparedFigure) -> str:
    if figure.limit is None:
        return "none"
    if figure.ratio is not None or figure.unit == "seconds":
        return f"{figure.limit:.3g}"
    return (
        f"+{_value(figure.limit, figure.unit)}" if figure.unit == "share" else f"{figure.limit:.3g}"
    )


def _history(rollout: RolloutStatus, now: datetime) -> Table:
    table = output.table("REVISION", "OUTCOME", "AGE", "MODEL", no_wrap=True)
    table.add_column("IMAGES", overflow="fold")
    table.add_column("")
    stable, new = rollout.stable, rollout.new
    roles = {new.revision: "new"} if new else {}
    roles |= {stable.revision: "active"} if stable else {}
    for revision in rollout.history:
        outcome = roles.get(revision.revision) or revision.outcome or "none"
        why = f"{revision.reason}: {revision.message}" if revision.reason else revision.answers
        table.add_row(
            Text(visible(revision.revision)),
            Text(outcome, style=_STYLES.get(revision.outcome, "")),
            age(revision.created, now),
            (revision.model_digest or _UNKNOWN)[:_DIGEST],
            Text(visible(", ".join(revision.images))),
            Text(visible(why, _MESSAGE)),
        )
    return table
