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
    at_most = {"stage": "total", "code": "2xx"}
    assert samples(metrics, f"{DURATION}_bucket", **at_most, le="60.0") == [0]
    assert samples(metrics, f"{DURATION}_bucket", **at_most, le="120.0") == [1]
    assert samples(metrics, f"{DURATION}_count", stage="total", code="5xx") == [1]
    assert samples(metrics, "enginewright_request_bytes_sum") == [1000]
    assert samples(metrics, "enginewright_response_bytes_bucket", le="64") == [1]
    assert samples(metrics, "enginewright_response_bytes_count") == [2]


@pytest.mark.parametrize("stage", ["queue", "compute"])
def test_stages_inside_of_the_server_have_no_code(stage: str) -> None:
    text = Metrics("m", "r1").expose().decode()
    assert f'{DURATION}_count{{model="m",revision="r1",stage="{stage}"}} 0.0' in text


def test_the_number_of_series_is_bounded() -> None:
    metrics = Metrics("m", "r1")
    before = len(metrics.expose().splitlines())
    for status in (200, 400, 404, 408, 413, 431, 499, 500, 503, 504):
        metrics.count_answer(status, time.monotonic(), 2**50, 2**50)
    assert len(metrics.expose().splitlines()) == before
