"""The results as Markdown, for the terminal and docs/reference/benchmarks.md."""

from typing import Final

from bench.serving.results import Results, Row
from bench.serving.targets import MANY, TARGETS
from hack.tables.markdown import table

_SOME: Final = 8  # connections
_DISTURBED: Final = 0.1  # share of the cores


def figures(results: Results, model: str) -> str:
    """Return the table of one model, the quickest server first."""
    rows = sorted(results.of_model(model), key=lambda row: -_rate(row))
    bare = results.bare[model]
    cells = [_cells(row, bare.one_us) for row in rows if row.figures]
    one = f"{bare.one_us:,.1f}"
    floor = ("bare `session.run`", "", "", "", "", "", one, "1", "")
    header = (
        *("server", "transport", "p50 at 1, µs", f"requests/s at {_SOME}", f"at {MANY}"),
        *(f"p99 at {MANY}, µs", "CPU µs", "x bare", "MB"),
    )
    return table(header, [*cells, floor])


def conditions(results: Results) -> str:
    """Return what the figures depend on, as one sentence."""
    about = results.about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    aged = "".join(
        f" Aged, {model}: a minute under load with a fifth of a core, by {item.throttled_by}, before;"
        f" beside a fresh one in {item.turns} turns, the median ratio."
        for model, item in results.aging.items()
    )
    chosen = "; ".join(
        f"{name} {', '.join(map(str, rows))}" for name, rows in about.get("batch_rows", {}).items()
    )
    batches = f" Rows of the largest batch, chosen at each start: {chosen}." if chosen else ""
    return (
        f"Measured {about['date']} on {about['cpu']}: {about['cores']} cores,"
        f" {about['network']}, the quickest of {about['rounds']} rounds; {versions}.{aged}{batches}"
    )


def outcomes(results: Results) -> str:
    """Return the table of targets."""
    rows = []
    for target in TARGETS:
        value, outcome = target.outcome(results)
        shown = "" if value is None else f"{value:,.2f} {target.unit}"
        rows.append((target.model, target.what, target.bound_text, shown, outcome))
    return table(("model", "what", "target", "measured", "result"), rows)


def problems(results: Results) -> list[str]:
    """Return what was not measured, or failed in a round."""
    failures = []
    if is_disturbed(results):
        failures.append(
            f"DISTURBED: other programs took up to {_others(results):.0%} of the cores; end them"
        )
    failures += [f"ABSENT {name}: {why}" for name, why in results.absent.items()]
    for row in results.rows:
        failures += [
            f"FAILED {row.model}, {row.server}, {row.transport}: {why}" for why in row.failures
        ]
    return failures


def is_disturbed(results: Results) -> bool:
    """Return whether other programs took so much of the cores that the figures cannot be trusted."""
    return _others(results) > _DISTURBED


def text(results: Results) -> str:
    """Return all of it, for the terminal."""
    parts: list[str] = []
    for name, bare in results.bare.items():
        gain = bare.one_us * bare.batch / bare.batch_us
        parts += [
            f"## {name}: {bare.title} (a batch of {bare.batch}: {gain:.1f} x the rate)",
            figures(results, name),
        ]
    parts += ["## Targets", outcomes(results)]
    parts.append(conditions(results))
    return "\n\n".join([*parts, *problems(results)])


def _others(results: Results) -> float:
    return max((f.others for row in results.rows for f in row.figures.values()), default=0.0)


def _rate(row: Row) -> float:
    return row.figures[MANY].per_second if MANY in row.figures else 0.0


def _cells(row: Row, bare_us: float) -> tuple[str, ...]:
    one, some, many = (row.figures.get(count) for count in (1, _SOME, MANY))
    cpu = many or some or one
    return (
        row.server,
        row.transport,
        f"{one.p50_us:,.0f}" if one else "",
        f"{some.per_second:,.0f}" if some else "",
        f"{many.per_second:,.0f}" if many else "",
        f"{many.p99_us:,.0f}" if many else "",
        f"{cpu.cpu_us:,.0f}" if cpu else "",
        f"{cpu.cpu_us / bare_us:,.1f}" if cpu else "",
        f"{row.memory_mb:,.0f}" if row.memory_mb else "",
    )
