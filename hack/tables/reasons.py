"""Reasons, conditions, rules and remedies."""

import inspect
import re
from enum import StrEnum
from pathlib import Path
from typing import Final

from enginewright.api.conditions import ConditionType, StatusReason
from enginewright_contract.reasons import ExitCode, Reason, Repeats, exit_code
from enginewright_runtime.rules.table import RULES

from hack.tables.markdown import code, table

_SYMPTOMS: Final = Path(__file__).resolve().parents[2] / "docs/troubleshooting.md"


def reasons() -> str:
    """Return a section for every failure reason, with the symptoms that lead to it."""

    def again(reason: Reason) -> str:
        if reason.facets.repeats is Repeats.MOSTLY:
            return "five times"
        return "no" if exit_code(reason) is ExitCode.PERMANENT else "yes"

    symptoms = find_symptoms(_SYMPTOMS.read_text())
    return "\n\n".join(
        f"### {item}\n\n**Remedy**: {item.remedy}\n\n"
        f"At fault: {item.facets.fault.value}. Tried again: {again(item)}.{symptoms.get(item, '')}"
        for item in Reason
    )


def status_reasons() -> str:
    """Return a section for each of the operator's own reasons, with the comment beside it."""
    symptoms = find_symptoms(_SYMPTOMS.read_text())
    return "\n\n".join(
        f"### {name}\n\n{about}.{symptoms.get(name, '')}"
        for name, about in sorted(_read_comments(StatusReason))
    )


def find_symptoms(page: str) -> dict[str, str]:
    """Return by reason the links to the sections of a page of symptoms that name it."""
    symptoms: dict[str, list[str]] = {}
    for section in page.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        anchor = re.sub(r"\W+", "-", title.lower())
        for name in dict.fromkeys(re.findall(r"\[(\w+)\]\(reference/reasons\.md#", section)):
            symptoms.setdefault(name, []).append(f"[{title}](../troubleshooting.md#{anchor})")
    return {name: f" Symptoms: {', '.join(links)}." for name, links in symptoms.items()}


def condition_types() -> str:
    """Return the conditions of an InferenceModel, with the comment beside each."""
    return table(
        ("type", "when True"),
        ((code(name), about) for name, about in _read_comments(ConditionType)),
    )


def _read_comments(names: type[StrEnum]) -> list[tuple[str, str]]:
    comments = re.findall(r'= \(?\s*"(\w+)"  # (.+)', inspect.getsource(names))
    if [name for name, _ in comments] != list(names):
        raise ValueError(f"a {names.__name__} has no comment: add its meaning on the same line")
    return comments


def rules() -> str:
    """Return every rule of stage validate."""
    heading = ("rule", "severity", "reason", "finds", "remedy", "source")
    return table(
        heading,
        ((code(r.name), r.severity, r.reason, r.what, r.remedy, r.source) for r in RULES),
    )
