"""Where preflight and a bare tool disagree about a model, and which of them is right."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.verdicts.causes import CAUSES, Cause
from bench.verdicts.results import BESIDE, COLUMNS, CPU, Model, Results

TITLES: Final = {column.name: column.title for column in COLUMNS} | {name: name for name in BESIDE}


@dataclass(frozen=True)
class Disagreement:
    """Preflight accepts what a tool refuses, or the other way round."""

    model: Model
    column: str  # of the tool
    accepted: bool  # by preflight

    @property
    def cause(self) -> Cause | None:
        """Return why, and who is right; nothing if that is not written yet."""
        return next(
            (item for item in CAUSES if item.explains(self.model.name, self.column, self.accepted)),
            None,
        )


def find_disagreements(results: Results) -> list[Disagreement]:
    """Return all of them, by model."""
    return [item for model in results.models for item in _compare(model)]


def _compare(model: Model) -> Iterator[Disagreement]:
    for column, word in model.words.items():
        verdict = model.verdicts.get(CPU if column in BESIDE else column)
        if verdict is not None and verdict.accepts != word.takes:
            yield Disagreement(model, column, verdict.accepts)


@dataclass(frozen=True)
class Tally:
    """How often preflight and one tool agree, and who is right where they do not."""

    column: str
    models: int
    agree: int
    preflight: int
    tool: int


def count(results: Results) -> list[Tally]:
    """Return a tally of each tool."""
    disagreements = find_disagreements(results)
    tallies = []
    for column in TITLES:
        own = [item for item in disagreements if item.column == column]
        right = [item.cause.right for item in own if item.cause]
        models = sum(column in model.words for model in results.models)
        tallies.append(
            Tally(column, models, models - len(own), right.count("preflight"), right.count("tool"))
        )
    return tallies


def list_misses(results: Results, *, whole: bool) -> list[str]:
    """Return what must not be: no verdict, a disagreement without its cause, or a cause of none if all models were tried."""
    disagreements = find_disagreements(results)
    silent = [
        f"NO VERDICT {model.name}, {column}: {verdict.message}"
        for model in results.models
        for column, verdict in model.verdicts.items()
        if verdict.verdict == "error"
    ]
    unexplained = [
        f"UNEXPLAINED {item.model.name}, {TITLES[item.column]}: preflight"
        f" {'accepts' if item.accepted else 'refuses'} it, the tool does not"
        for item in disagreements
        if item.cause is None
    ]
    wrong = [
        f"WRONG {item.model.name}, {item.column}: {item.cause.text}"
        for item in disagreements
        if item.cause and item.cause.right == "tool"
    ]
    used = {item.cause for item in disagreements}
    idle = [f"IDLE {cause.text}" for cause in CAUSES if whole and cause not in used]
    return [*silent, *unexplained, *wrong, *idle]
