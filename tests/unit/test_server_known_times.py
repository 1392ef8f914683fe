"""Times of another pod: what a few runs confirm is not measured again, and what is no such times counts for nothing."""

import itertools
import logging
from pathlib import Path

import pytest
from enginewright_contract.execution import Baseline, StartTimes
from enginewright_serving.server.startup import baseline
from enginewright_serving.server.startup.known_times import read_times

KNOWN = Baseline(p50=0.010, p90=0.011, p99=0.015, samples=200, shapes="opt")


@pytest.mark.parametrize(
    ("seconds", "shapes", "confirmed"),
    [
        ((0.010,), "opt", True),
        ((0.100, 0.050, 0.012), "opt", True),  # once it is warm
        ((0.014,), "opt", False),
        ((0.007,), "opt", False),
        ((0.010,), "s0", False),
    ],
)
def test_a_few_runs_confirm_a_baseline(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], shapes: str, confirmed: bool
) -> None:
    runs = itertools.chain(seconds, itertools.repeat(seconds[-1]))
    taken: list[float] = []

    def measure_run(_: object) -> float:
        taken.append(next(runs))
        return taken[-1]

    monkeypatch.setattr(baseline, "measure_run", measure_run)
    measured = baseline.measure(lambda: None, shapes, KNOWN)
    assert (measured == KNOWN, len(taken) < 10) == (confirmed, confirmed)
    if not confirmed:
        assert measured is not None
        assert (measured.p50, measured.samples) == (seconds[-1], 200)


@pytest.mark.parametrize(
    "content", [b"[]", b"\xff", b'{"batches": "all"}', b'{"usual": {"p50": "fast"}}', b"{"]
)
def test_what_is_no_times_is_logged_and_counts_for_nothing(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "start-times"
    assert read_times(file) == StartTimes()
    file.touch()  # a pod without the annotation
    assert read_times(file) == StartTimes()
    assert caplog.messages == []
    caplog.set_level(logging.WARNING)
    file.write_bytes(content)
    assert read_times(file) == StartTimes()
    assert "everything is measured" in caplog.text


def test_times_are_read_as_they_were_reported(tmp_path: Path) -> None:
    times = StartTimes(batches={8: {1: 0.001, 2: 0.0015}}, gains={1: 1.0, 2: 1.4}, usual=KNOWN)
    (tmp_path / "start-times").write_text(times.to_json())
    assert read_times(tmp_path / "start-times") == times
