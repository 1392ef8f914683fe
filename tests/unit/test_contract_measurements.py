"""Bounds of what pods report, within which no comparison of any measurements fails."""

import json
from dataclasses import replace
from typing import Any

import pytest
from enginewright.analysis.comparison import compare
from enginewright_contract.measurements import (
    AnswerChange,
    Counts,
    LatencySeries,
    Measurements,
    MemorySample,
    OutputChange,
    ShadowComparison,
    ShadowOutput,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.effort import examples
from tests.support.rollout_load import START
from tests.support.rollout_simulation import limits

SERIES = {"source": "requests", "name": "8", "count": 10}
OUTPUT = {"name": "y"}


def document(**fields: Any) -> str:
    return json.dumps({"model": "m", "revision": "r", "since": START, **fields})


@pytest.mark.parametrize("figure", [-1, float("nan"), float("inf"), float("-inf"), 10**400])
@pytest.mark.parametrize(
    "fields",
    [
        lambda figure: {"since": figure},
        lambda figure: {"responses": {"200": figure}},
        lambda figure: {"golden_wrong": figure},
        lambda figure: {"counts": [{"at": figure}]},
        lambda figure: {"counts": [{"at": START, "golden_ok": figure}]},
        lambda figure: {"memory": [{"at": figure, "bytes": 1}]},
        lambda figure: {"memory": [{"at": START, "bytes": figure}]},
        lambda figure: {"latencies": [{**SERIES, "count": figure}]},
        lambda figure: {"latencies": [{**SERIES, "windows": [[figure, 0.1]]}]},
        lambda figure: {"latencies": [{**SERIES, "windows": [[START, figure]]}]},
        lambda figure: {"answers": {"prepared_key": "k", "samples": figure}},
        lambda figure: {"answers": {"prepared_key": "k", "outputs": [{**OUTPUT, "top1": figure}]}},
        lambda figure: {
            "answers": {"prepared_key": "k", "outputs": [{**OUTPUT, "relative": figure}]}
        },
        lambda figure: {"shadow": {"revision": "r", "compared": figure}},
        lambda figure: {"shadow": {"revision": "r", "outputs": [{**OUTPUT, "worst": figure}]}},
    ],
)
def test_unknown_figure_makes_the_document_unreadable(fields: Any, figure: float) -> None:
    assert Measurements.model_validate_json(document(**fields(1))).model == "m"
    with pytest.raises(ValidationError):
        Measurements.model_validate_json(document(**fields(figure)))


@pytest.mark.parametrize(
    "responses", [{"2xx": 1}, {"": 1}, {str(code): 1 for code in range(200, 300)}]
)
def test_only_status_codes_are_counted_and_not_too_many(responses: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Measurements.model_validate_json(document(responses=responses))


NUMBERS = st.sampled_from([0, 1, 9, 400, 2**53 - 1])
TIMES = st.sampled_from([0.0, START, START + 1e-5, START + 10, START + 60, 1e11])
SECONDS = st.sampled_from([0.0, 5e-324, 1e-7, 0.01, 9e8])
DIFFERENCES = st.sampled_from([None, 0.0, 5e-324, 0.01, 1.7e308])
SHARES = st.sampled_from([None, 0.0, 1.0])
NAMES = st.sampled_from(["", "y"])

LATENCIES = st.builds(
    LatencySeries,
    source=st.sampled_from(["requests", "golden"]),
    name=NAMES,
    count=NUMBERS,
    windows=st.lists(st.tuples(TIMES, SECONDS), max_size=60).map(tuple),
)
MEMORY = st.builds(MemorySample, at=TIMES, bytes=NUMBERS)
CHANGES = st.builds(
    OutputChange,
    name=NAMES,
    form=NAMES,
    unequal=SHARES,
    max_abs=DIFFERENCES,
    relative=DIFFERENCES,
    top1=SHARES,
    nonfinite=NUMBERS,
    resized=NUMBERS,
)
OF_REQUESTS = st.builds(
    ShadowOutput,
    name=NAMES,
    answers=NUMBERS,
    max_abs=DIFFERENCES,
    worst=DIFFERENCES,
    mean=DIFFERENCES,
    top1=SHARES,
    incomparable=NUMBERS,
    resized=NUMBERS,
)
RESPONSES = st.dictionaries(st.sampled_from(["200", "400", "500", "503"]), NUMBERS)
COUNTED = st.builds(
    Counts,
    at=TIMES,
    responses=RESPONSES,
    golden_ok=NUMBERS,
    golden_wrong=NUMBERS,
    golden_failed=NUMBERS,
)
MEASURED = st.builds(
    Measurements,
    model=st.just("m"),
    revision=st.just("r"),
    since=TIMES,
    responses=RESPONSES,
    golden_ok=NUMBERS,
    golden_wrong=NUMBERS,
    golden_failed=NUMBERS,
    counts=st.lists(COUNTED, max_size=4).map(tuple),
    memory=st.lists(MEMORY, max_size=40).map(tuple),
    latencies=st.lists(LATENCIES, max_size=4).map(tuple),
    answers=st.none()
    | st.builds(
        AnswerChange,
        prepared_key=st.just("k"),
        samples=NUMBERS,
        outputs=st.lists(CHANGES, max_size=3).map(tuple),
        failure=NAMES,
    ),
    shadow=st.none()
    | st.builds(
        ShadowComparison,
        revision=st.just("r"),
        compared=NUMBERS,
        rejected=NUMBERS,
        failed=NUMBERS,
        outputs=st.lists(OF_REQUESTS, max_size=3).map(tuple),
    ),
)
ARM = st.lists(MEASURED, min_size=1, max_size=2)


@settings(max_examples=examples(100), deadline=None)
@given(stable=ARM, canary=ARM)
def test_values_within_bounds_compare(
    stable: list[Measurements], canary: list[Measurements]
) -> None:
    result = compare(stable, canary, replace(limits(), max_output_difference=0.05))
    assert result.state in {"passed", "failed", "inconclusive"}


def test_the_largest_ratio_within_the_bounds_does_not_overflow() -> None:
    def arm(seconds: float) -> Measurements:
        windows = tuple((START + index, seconds) for index in range(100))
        series = LatencySeries(source="requests", name="8", count=1000, windows=windows)
        return Measurements(model="m", revision="r", since=START, latencies=(series,))

    assert compare([arm(5e-324)], [arm(9e8)], limits()).state == "inconclusive"
    assert compare([arm(1e-7)], [arm(9e8)], limits()).state == "failed"
