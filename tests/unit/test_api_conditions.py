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


def make_wanted(kind: str, status: ConditionStatus, reason: str = "Because") -> WantedCondition:
    return WantedCondition(type=kind, status=status, reason=reason, message=f"{reason} it is")


def make_condition(kind: str, status: ConditionStatus) -> Condition:
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
        ((make_condition("Ready", "True"),), "True", "Because", THEN),  # the same
        ((make_condition("Ready", "True"),), "True", "Other", THEN),  # another reason is no flip
        (
            (make_condition("Ready", "False"),),
            "True",
            "Because",
            NOW.replace(microsecond=0),
        ),  # a flip
        (
            (make_condition("Stalled", "True"),),
            "True",
            "Because",
            NOW.replace(microsecond=0),
        ),  # another's
    ],
)
def test_time_moves_only_on_a_flip(
    before: tuple[Condition, ...], status: ConditionStatus, reason: str, expected: datetime
) -> None:
    (merged,) = merge_conditions(
        before, [make_wanted("Ready", status, reason)], generation=2, now=NOW
    )
    assert merged.last_transition_time == expected
    assert merged.reason == reason
    assert merged.observed_generation == 2


def test_order_is_as_wanted_and_the_unwanted_go() -> None:
    before = (
        make_condition("Gone", "True"),
        make_condition("Stalled", "False"),
        make_condition("Ready", "True"),
    )
    merged = merge_conditions(
        before,
        [make_wanted("Ready", "True"), make_wanted("Stalled", "False")],
        generation=1,
        now=NOW,
    )
    assert [condition.type for condition in merged] == ["Ready", "Stalled"]


def test_merging_twice_changes_nothing() -> None:
    conditions = [make_wanted("Ready", "True"), make_wanted("Stalled", "False")]
    once = merge_conditions((), conditions, generation=1, now=NOW)
    later = merge_conditions(once, conditions, generation=1, now=NOW + timedelta(hours=1))
    assert later == once


def test_written_as_the_api_has_it() -> None:
    (merged,) = merge_conditions((), [make_wanted("Ready", "True")], generation=1, now=NOW)
    assert merged.model_dump(mode="json", by_alias=True) == {
        "type": "Ready",
        "status": "True",
        "reason": "Because",
        "message": "Because it is",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-11-21T04:05:00Z",
    }
