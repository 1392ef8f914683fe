"""The results as Markdown, for the terminal and docs/reference/verdicts.md."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from bench.verdicts.comparing import TITLES, Disagreement, count, find_disagreements
from bench.verdicts.results import BESIDE, COLUMNS, Model, Results, Verdict, Word
from hack.tables.markdown import table

_ALWAYS: Final = "DriverMissing"  # of a target whose device alone builds


def conditions(results: Results) -> str:
    """Return what was asked, as one sentence."""
    about = results.about
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return f"Asked {about['date']}: {len(results.models)} real models; {versions}."


def tallies(results: Results) -> str:
    """Return the table of agreement."""
    return table(
        ("tool", "models", "as preflight", "preflight is right", "the tool is right"),
        [
            (
                TITLES[tally.column],
                str(tally.models),
                str(tally.agree),
                str(tally.preflight),
                str(tally.tool),
            )
            for tally in count(results)
        ],
    )


def verdicts(results: Results) -> str:
    """Return the table of models: for each target preflight's verdict, and whether the tool takes the model."""
    heading = ["model", "kind", "opset", "sizes"]
    for column in COLUMNS:
        heading += [f"`{column.target}`", column.title]
    heading += BESIDE
    return table(heading, [_row(model) for model in results.models])


def _row(model: Model) -> Sequence[str]:
    cells = [
        model.file,
        model.kind,
        str(model.opset or ""),
        _show_sizes(model),
    ]
    for column in COLUMNS:
        verdict = model.verdicts.get(column.name)
        cells += [
            _show_verdict(verdict) if verdict else "",
            _show_word(model.words.get(column.name)),
        ]
    return [*cells, *(_show_word(model.words.get(name)) for name in BESIDE)]


def _show_sizes(model: Model) -> str:
    if not model.shapes:
        return ""
    return "proposed" if model.proposed else "given"


def _show_verdict(verdict: Verdict) -> str:
    reasons = ", ".join(reason for reason in verdict.reasons if reason != _ALWAYS)
    name = verdict.verdict if verdict.accepts else f"**{verdict.verdict}**"
    return f"{name} {reasons}".strip()


def _show_word(word: Word | None) -> str:
    if word is None:
        return ""
    return "yes" if word.takes else "no"


def disagreements(results: Results) -> str:
    """Return the table of disagreements: those of one cause and tool in one row."""
    ordered = sorted(find_disagreements(results), key=_order)
    rows = []
    for _, group in groupby(ordered, key=_order):
        same = list(group)
        first = same[0]
        cause = first.cause
        rows.append(
            (
                ", ".join(dict.fromkeys(item.model.file for item in same)),
                ", ".join(dict.fromkeys(TITLES[item.column] for item in same)),
                "accepts" if first.accepted else "refuses",
                cause.right if cause else "",
                cause.text if cause else "",
                _show_prepared(same),
            )
        )
    heading = ("models", "tools", "preflight", "right", "cause", "the tool takes what is served")
    return table(heading, rows)


def _order(item: Disagreement) -> tuple[bool, str]:
    return not item.accepted, item.cause.text if item.cause else ""


def _show_prepared(same: Sequence[Disagreement]) -> str:
    """Return how often a tool takes the model that preflight prepared, where it was asked."""
    asked = [item.model.words[item.column].takes_prepared for item in same]
    taken = [item for item in asked if item is not None]
    return f"{sum(taken)} of {len(taken)}" if taken else ""


def text(results: Results) -> str:
    """Return all of it, for the terminal."""
    said = [
        f"{model.name}, {column}: {line}"
        for model in results.models
        for column, line in _list_messages(model)
    ]
    parts = (verdicts, disagreements, tallies, conditions)
    return "\n\n".join(["\n".join(said), *(part(results) for part in parts)])


def _list_messages(model: Model) -> list[tuple[str, str]]:
    ours = [
        (f"preflight on {name}", verdict.message)
        for name, verdict in model.verdicts.items()
        if verdict.message
    ]
    theirs = [(TITLES[name], word.refusal) for name, word in model.words.items() if word.refusal]
    return ours + theirs
