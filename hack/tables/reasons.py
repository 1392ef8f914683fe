"""Reasons, conditions, rules and remedies."""

import inspect
import re
from enum import StrEnum

from enginewright.api.conditions import ConditionType, StatusReason
from enginewright_contract.reasons import ExitCode, Reason, Repeats, exit_code
from enginewright_runtime.rules.table import RULES

from hack.tables.markdown import code, table


def reasons() -> str:
    """Return every failure reason."""

    def again(reason: Reason) -> str:
        if reason.facets.repeats is Repeats.MOSTLY:
            return "five times"
        return "no" if exit_code(reason) is ExitCode.PERMANENT else "yes"

    rows = ((item, item.facets.fault.value, again(item), item.remedy) for item in Reason)
    return table(("reason", "at fault", "tried again", "remedy"), rows)


def status_reasons() -> str:
    """Return the operator's own reasons, with the comment beside each."""
    return table(("reason", "meaning"), sorted(_read_comments(StatusReason)))


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


def remedies(*named: str) -> str:
    """Return the remedies of some reasons."""
    rows = ((code(name), Reason(name).remedy) for name in named)
    return table(("reason", "first step"), rows)


def rules() -> str:
    """Return every rule of stage validate."""
    heading = ("rule", "severity", "reason", "finds", "remedy", "source")
    return table(
        heading,
        ((code(r.name), r.severity, r.reason, r.what, r.remedy, r.source) for r in RULES),
    )
