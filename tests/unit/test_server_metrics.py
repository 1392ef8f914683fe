"""What the server counts, and how it is exposed."""

import time

import pytest
from enginewright_serving.histogram import RunCounts, SizeHistogram
from enginewright_serving.server.observe.metrics import Metrics
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

DURATION = "enginewright_request_duration_seconds"


def samples(metrics: Metrics, name: str, **labels: str) -> list[float]:
    families = text_string_to_metric_families(metrics.expose().decode())
    result = [sample for family in families for sample in family.samples if sample.name == name]
    return [sample.value for sample in result if labels.items() <= sample.labels.items()]


@given(st.lists(st.integers(0, 2**40)))
def test_sizes_are_counted_in_every_bucket_that_they_fit(sizes: list[int]) -> None:
    histogram = SizeHistogram()
    for size in sizes:
        histogram.observe(size)
    assert histogram.total == sum(sizes)
    for bound, count in histogram.buckets():
        assert count == sum(size <= float(bound) for size in sizes), bound


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans())))
def test_runs_are_counted_by_their_requests(runs: list[tuple[int, bool]]) -> None:
    counts = RunCounts()
    for requests, succeeded in runs:
        counts.add(requests, 0.5, succeeded=succeeded)
    assert counts.requests == sum(requests for requests, _ in runs)
    for bound, count in counts.buckets((1, 2, 64)):
        assert count == sum(requests <= float(bound) for requests, _ in runs), bound
    assert sum(count for count, _ in counts.succeeded.values()) == sum(ok for _, ok in runs)
    assert sum(total for _, total in counts.succeeded.values()) == sum(ok for _, ok in runs) / 2


def test_an_answer_is_counted_with_its_duration_and_sizes() -> None:
    metrics = Metrics("m", "r1")
    metrics.count_answer(200, time.monotonic() - 70, 1000, 4000)
    metrics.count_answer(503, time.monotonic(), 0, 64)
    assert samples(metrics, f"{DURATION}_bucket", code="2xx", le="60.0") == [0]
    assert samples(metrics, f"{DURATION}_bucket", code="2xx", le="120.0") == [1]
    assert samples(metrics, f"{DURATION}_count", code="5xx") == [1]
    assert samples(metrics, "enginewright_requests_total", code="200") == [1]
    assert samples(metrics, "enginewright_requests_total", code="503") == [1]
    assert samples(metrics, "enginewright_request_bytes_sum") == [1000]
    assert samples(metrics, "enginewright_response_bytes_bucket", le="64") == [1]
    assert samples(metrics, "enginewright_response_bytes_count") == [2]


@given(st.lists(st.sampled_from([200, 400, 408, 413, 499, 500, 501, 503, 504])))
def test_all_figures_of_ended_requests_count_the_same(statuses: list[int]) -> None:
    metrics = Metrics("m", "r1")
    for status in statuses:
        metrics.count_answer(status, time.monotonic(), 10, 10)
    ended = sum(metrics.requests.values())
    assert ended == len(statuses)
    assert sum(samples(metrics, f"{DURATION}_count")) == ended
    for what in ("request", "response"):
        assert samples(metrics, f"enginewright_{what}_bytes_count") == [ended]


@pytest.mark.parametrize("part", ["queue", "compute"])
def test_parts_of_a_request_are_metrics_of_their_own(part: str) -> None:
    text = Metrics("m", "r1").expose().decode()
    assert f'enginewright_request_{part}_seconds_count{{model="m",revision="r1"}} 0.0' in text


def test_steps_are_exposed_where_there_are_some() -> None:
    metrics = Metrics("m", "r1")
    name = "enginewright_request_preprocess_seconds_count"
    assert samples(metrics, name) == []
    metrics.has_steps()
    assert samples(metrics, name) == [0]


def test_the_number_of_series_is_bounded() -> None:
    metrics = Metrics("m", "r1")
    before, codes = len(metrics.expose().splitlines()), set(metrics.requests)
    for status in (200, 400, 404, 408, 413, 431, 499, 500, 503, 504):
        metrics.count_answer(status, time.monotonic(), 2**50, 2**50)
    new = set(metrics.requests) - codes
    assert len(metrics.expose().splitlines()) == before + len(new), "one of each code"
