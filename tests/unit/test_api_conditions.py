"""A condition's time moves when its status flips, and at no other moment."""

from datetime import UTC, datetime, timedelta

import pytest
from enginewright.api.conditions import (
    Condition,
    ConditionStatus,
    WantedCondition,
    merge_conditions,
)

THEN = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC)
NOW = THEN + timedelta(minutes=5, microseconds=123456)


def wanted(kind: str, status: ConditionStatus, reason: str = "Because") -> WantedCondition:
    return WantedCondition(type=kind, status=status, reason=reason, message=f"{reason} it is")


def known(kind: str, status: ConditionStatus) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason="Because",
        message="Because it is",
        observed_generation=1,
        last_transition_time=THEN,
    )


@pytest.mark.parametrize(
    ("before", "status", "reason", "expected"),
    [
        ((), "True", "Because", NOW.replace(microsecond=0)),  # new
        ((known("Ready", "True"),), "True", "Because", THEN),  # the same
        ((known("Ready", "True"),), "True", "Other", THEN),  # another reason is no flip
        ((known("Ready", "False"),), "True", "Because", NOW.replace(microsecond=0)),  # a flip
        ((known("Stalled", "True"),), "True", "Because", NOW.replace(microsecond=0)),  # another's
    ],
)
def test_time_moves_only_on_a_flip(
    before: tuple[Condition, ...], status: ConditionStatus, reason: str, expected: datetime
) -> None:
    (merged,) = merge_conditions(before, [wanted("Ready", status, reason)], generation=2, now=NOW)
    assert merged.last_transition_time == expected
    assert merged.reason == reason
    assert merged.observed_generation == 2


def test_order_is_as_wanted_and_the_unwanted_go() -> None:
    before = (known("Gone", "True"), known("Stalled", "False"), known("Ready", "True"))
    merged = merge_conditions(
        before, [wanted("Ready", "True"), wanted("Stalled", "False")], generation=1, now=NOW
    )
    assert [condition.type for condition in merged] == ["Ready", "Stalled"]


def test_merging_twice_changes_nothing() -> None:
    conditions = [wanted("Ready", "True"), wanted("Stalled", "False")]
    once = merge_conditions((), conditions, generation=1, now=NOW)
    later = merge_conditions(once, conditions, generation=1, now=NOW + timedelta(hours=1))
    assert later == once


def test_written_as_the_api_has_it() -> None:
    (merged,) = merge_conditions((), [wanted("Ready", "True")], generation=1, now=NOW)
    assert merged.model_dump(mode="json", by_alias=True) == {
        "type": "Ready",
        "status": "True",
        "reason": "Because",
        "message": "Because it is",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-11-21T04:05:00Z",
    }
