"""The results as Markdown, for the terminal and docs/reference/scale.md."""

from bench.scale.results import Results, Run, list_targets
from hack.tables.markdown import table


def conditions(results: Results) -> str:
    """Return what was measured with, as one sentence."""
    about = results.about
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return f"Measured {about['date']} on {about['cores']} cores, {about['cpu']}; {versions}."


def figures(results: Results) -> str:
    """Return the table of runs."""
    heading = (
        "models", "of", "models/s", "apply to Ready p50, p99", "requests each", "passes each", "CPU each",
        "memory", "idle CPU", "restart", "CPU each", "memory",
    )  # fmt: skip
    return table(heading, [_row(run) for run in results.runs])


def _row(run: Run) -> tuple[str, ...]:
    requests = ", ".join(
        f"{count:.1f} {verb}" for verb, count in run.requests.items() if count >= 0.1
    )
    return (
        f"{run.models:,}",
        run.kind,
        f"{run.rate:.1f}",
        f"{run.p50:.1f} s, {run.p99:.1f} s",
        f"{run.requests_each:.1f} ({requests})",
        f"{run.passes:.1f}",
        f"{run.cpu_ms:.0f} ms",
        f"{run.peak_mib:.0f} MiB",
        f"{run.idle_cpu:.1%}",
        f"{run.restart_seconds:.0f} s",
        f"{run.restart_cpu_ms:.1f} ms",
        f"{run.restart_peak_mib:.0f} MiB",
    )


def targets(results: Results) -> str:
    """Return the table of targets."""
    rows = [
        (
            target.what,
            f"{'≥' if target.at_least else '≤'} {target.bound:g}",
            "" if target.value is None else f"{target.value:.3g}",
            target.outcome,
        )
        for target in list_targets(results)
    ]
    return table(("target", "bound", "measured", "outcome"), rows)
