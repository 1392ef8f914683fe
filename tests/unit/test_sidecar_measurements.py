"""What is kept for the comparison of two revisions: windows, memory, counts, and what resets them. No IO."""

import itertools
import random

import numpy as np
import pytest
from enginewright_contract.measurements import (
    COUNTS,
    SERIES,
    WINDOW,
    WINDOWS,
    AnswerChange,
    Counts,
    LatencySeries,
    Measurements,
    MemorySample,
    ServerMeasurements,
)
from enginewright_contract.task import ServeTask
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.measurements import History, PodMeasurements
from enginewright_serving.windows import Windows

TASK = ServeTask(model="m", revision="r", prepared_key="a" * 64, backend="cpu")


def test_a_window_is_the_median_of_ten_and_the_time_of_the_last() -> None:
    windows = Windows()
    values = [0.5, 0.1, 0.2, 9.0, 0.4, 0.3, 0.25, 0.35, 0.15, 0.45]
    for index, seconds in enumerate([*values, 7.0]):
        windows.add(seconds, 100.0 + index)
    series = windows.series("golden", "s0")
    assert (series.source, series.name, series.count) == ("golden", "s0", WINDOW + 1)
    ((at, median),) = series.windows
    assert at == 109.0
    assert median == pytest.approx(float(np.median(values)))


def test_the_latest_windows_are_kept_and_everything_is_counted() -> None:
    windows = Windows()
    for index in range(WINDOW * (WINDOWS + 3)):
        windows.add(float(index // WINDOW), float(index))
    series = windows.series("requests", "16")
    assert series.count == WINDOW * (WINDOWS + 3)
    assert [median for _, median in series.windows] == [float(at) for at in range(3, WINDOWS + 3)]


def test_a_long_name_is_cut() -> None:
    assert len(Windows().series("golden", "n" * 1000).name) == 256


def requests(elements: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(elements, np.float32)}


def test_the_server_keeps_windows_by_size_without_the_first_run_of_a_shape() -> None:
    buckets = ComputeBuckets(lambda: 50.0)
    for index in range(2 * WINDOW + 1):
        buckets.add(requests(8), 100.0 if index == 0 else 0.25)
        buckets.add(requests(16), 100.0 if index == 0 else 0.5)
    buckets.add_untimed(requests(16))
    assert buckets.latencies() == tuple(
        LatencySeries(
            source="requests", name=name, count=2 * WINDOW, windows=((50.0, seconds),) * 2
        )
        for name, seconds in (("8", 0.25), ("16", 0.5))
    )


def test_of_many_sizes_the_frequent_ones_are_kept() -> None:
    buckets = ComputeBuckets()
    frequent = [2**exponent for exponent in range(SERIES - 1)]
    for _ in range(WINDOW + 1):
        for elements in frequent:
            buckets.add(requests(elements), 0.001)
    for elements in range(40_000, 400_000, 40_000):
        for _ in range(3):
            buckets.add(requests(elements), 0.001)
    latencies = buckets.latencies()
    assert len(latencies) == SERIES
    assert {str(series) for series in frequent} < {latency.name for latency in latencies}
    # what has lost its windows is still counted
    for _ in range(4):
        buckets.add(requests(40_000), 0.001)
    assert {latency.name: latency.count for latency in buckets.latencies()}["40960"] == 2 + 4


def grow(samples: int, every: float = 5.0) -> list[MemorySample]:
    history = History[MemorySample](WINDOWS)
    for index in range(samples):
        history.add(MemorySample(at=1000.0 + every * index, bytes=index))
        assert len(history.samples) <= WINDOWS
    return history.samples


def test_memory_is_kept_from_the_start_and_recent_samples_are_dense() -> None:
    day = 17_280
    samples = grow(day)
    assert len(samples) == WINDOWS
    assert (samples[0].bytes, samples[-1].bytes) == (0, day - 1)
    times = [sample.at for sample in samples]
    assert times == sorted(times)
    end = times[-1]
    gaps = [(end - before, after - before) for before, after in itertools.pairwise(times)]
    assert all(gap == 5.0 for age, gap in gaps if age <= 100)
    # in a growth by the same amount every second, any later tenth of the time is represented
    assert all(gap <= 0.1 * max(age, 50.0) for age, gap in gaps)


def test_a_clock_that_is_set_back_keeps_the_order_and_the_bound() -> None:
    history = History[MemorySample](WINDOWS)
    generator = random.Random(1)  # noqa: S311 - a test's own choice
    for index in range(4 * WINDOWS):
        at = index + generator.uniform(-3, 3)
        history.add(MemorySample(at=1000.0 + at, bytes=1))
        assert len(history.samples) <= WINDOWS
    times = [sample.at for sample in history.samples]
    assert times == sorted(times)
    assert len(times) == WINDOWS


def test_after_a_clock_was_set_back_by_an_hour_the_time_since_any_moment_can_be_counted() -> None:
    history = History[Counts](COUNTS)
    moments = [*range(1000, 10_000, 2), *range(7000, 9000, 2)]
    for index, at in enumerate(moments):
        history.add(Counts(at=float(at), responses={"200": index}))
    assert [sample.at for sample in history.samples[-3:]] == [8994.0, 8996.0, 8998.0]
    base = next(sample for sample in history.samples if sample.at >= 7500)
    answered = len(moments) - 1 - base.responses["200"]
    assert answered == pytest.approx((8998 - 7500) / 2, rel=0.15)


def test_a_clock_set_back_before_the_first_sample_begins_another_history() -> None:
    history = History[MemorySample](WINDOWS)
    for at in (100.0, 102.0, 50.0, 52.0):
        history.add(MemorySample(at=at, bytes=1))
    assert [sample.at for sample in history.samples] == [50.0, 52.0]


def report_measurements(
    started: float = 10.0, memory: int = 100, **responses: int
) -> ServerMeasurements:
    counts = {code.removeprefix("c"): count for code, count in responses.items()}
    return ServerMeasurements(started=started, memory_bytes=memory, responses=counts)


def run_probe(sample: str = "s0", compute: float | None = 0.01) -> ProbeResult:
    return ProbeResult(sample, 0.02, 0.0, compute=compute, inputs="d" * 64)


def document(pod: PodMeasurements) -> Measurements:
    sent = pod.document
    assert sent is not None
    return sent


def test_before_the_server_has_reported_there_is_nothing() -> None:
    pod = PodMeasurements(TASK)
    pod.golden(run_probe(), 1.0)
    assert pod.document is None
    pod.server(report_measurements(), 20.0, sample=False)
    assert document(pod).since == 10.0
    assert document(pod).golden_ok == 1
    assert document(pod).memory == (MemorySample(at=20.0, bytes=100),)


def test_golden_inferences_are_counted_by_their_outcome() -> None:
    pod = PodMeasurements(TASK)
    pod.server(report_measurements(c200=3, c503=1), 20.0, sample=False)
    for _ in range(WINDOW):
        pod.golden(run_probe(), 30.0)
    pod.golden(ProbeResult("s0", 0.02, 0.0, compute=0.01, wrong="...", inputs="d" * 64), 31.0)
    pod.golden(ProbeResult("s0", 0.0, 0.0, not_run="returned 500", fails=True), 31.0)
    pod.golden(ProbeResult("s0", 30.0, 0.0, not_run="timed out", late=True), 31.0)
    pod.golden(ProbeResult("s0", 0.0, 0.0, not_run="is too busy"), 31.0)
    pod.golden(ProbeResult("s0", 0.0, 0.0, not_run="does not listen", unreachable=True), 31.0)
    sent = document(pod)
    assert (sent.golden_ok, sent.golden_wrong, sent.golden_failed) == (WINDOW, 1, 2)
    assert sent.responses == {"200": 3, "503": 1}
    (series,) = sent.latencies
    assert (series.source, series.name, series.count) == ("golden", "s0", WINDOW + 1)
    assert series.inputs == "d" * 64
    assert series.windows == ((30.0, 0.01),)


def test_counts_of_the_past_are_kept_so_that_any_later_time_can_be_counted_alone() -> None:
    pod = PodMeasurements(TASK)
    pod.server(report_measurements(c200=1), 20.0, sample=False)  # the first one always is
    pod.golden(run_probe(), 21.0)
    pod.server(report_measurements(c200=9, c500=2), 22.0, sample=True)
    pod.golden(ProbeResult("s0", 0.02, 0.0, compute=0.01, wrong="...", inputs="d" * 64), 23.0)
    pod.server(report_measurements(c200=9, c500=3), 23.5, sample=False)
    sent = document(pod)
    assert sent.counts == (
        Counts(at=20.0, responses={"200": 1}),
        Counts(at=22.0, responses={"200": 9, "500": 2}, golden_ok=1),
    )
    assert (sent.responses["500"], sent.golden_wrong) == (3, 1)


def test_a_week_of_counts_is_kept_and_the_time_since_any_moment_is_counted_nearly_whole() -> None:
    history, every = History[Counts](COUNTS), 120.0
    for index in range(5_000):
        history.add(Counts(at=1000.0 + every * index, responses={"200": index}))
    samples = history.samples
    assert (len(samples), samples[0].at) == (COUNTS, 1000.0)
    end = samples[-1].at
    for ago in (5 * every, 100 * every, 2_000 * every):
        base = next(sample for sample in samples if sample.at >= end - ago)
        assert 0.8 * ago <= end - base.at <= ago


def test_a_server_that_reports_no_time_in_the_model_has_no_series() -> None:
    pod = PodMeasurements(TASK)
    pod.server(report_measurements(), 20.0, sample=False)
    pod.golden(run_probe(compute=None), 30.0)
    assert document(pod).latencies == ()


@pytest.mark.parametrize("noticed", [True, False])
def test_another_process_resets_everything_but_the_answers(noticed: bool) -> None:
    pod = PodMeasurements(TASK)
    pod.server(report_measurements(c200=5), 20.0, sample=True)
    pod.server(report_measurements(memory=120, c200=6), 25.0, sample=True)
    pod.golden(run_probe(), 21.0)
    pod.answers = AnswerChange(prepared_key="b" * 64, samples=1)
    if noticed:
        pod.restart()
        assert pod.document is None
    pod.server(report_measurements(started=40.0, memory=90), 41.0, sample=False)
    sent = document(pod)
    assert (sent.since, sent.golden_ok, sent.responses) == (40.0, 0, {})
    assert sent.memory == (MemorySample(at=41.0, bytes=90),)
    assert sent.counts == (Counts(at=41.0),)
    assert sent.latencies == ()
    assert sent.answers is not None
    assert sent.answers.samples == 1


def test_the_document_is_bounded() -> None:
    pod = PodMeasurements(TASK)
    full = tuple(
        LatencySeries(
            source="requests",
            name=str(2**index),
            count=10**9,
            windows=((1_700_000_000.123, 0.1234567),) * WINDOWS,
        )
        for index in range(SERIES)
    )
    responses = dict.fromkeys(("200", "400", "413", "415", "499", "500", "503", "504"), 10**9)
    server = ServerMeasurements(started=1.0, memory_bytes=1, responses=responses, latencies=full)
    pod.server(server, 1.0, sample=True)
    for sample in grow(WINDOWS):
        pod.server(server, sample.at, sample=True)
    for index in range(8):
        for turn in range(WINDOW * WINDOWS):
            pod.golden(run_probe(f"sample-{index}", 0.1234567), 1_700_000_000.123 + turn)
    text = document(pod).to_json()
    assert len(text) < 400_000
    assert Measurements.model_validate_json(text) == document(pod)
