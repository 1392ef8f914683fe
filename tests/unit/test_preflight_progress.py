"""Progress without a terminal: what runs, once, among the lines of completed models."""

import io

import pytest
from enginewright_cli.preflight import progress
from enginewright_cli.preflight.result import Result
from rich.console import Console

from tests.support.waiting import until


def test_what_runs_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_SECONDS", 0.01)
    stream = io.StringIO()
    with progress.show_progress(Console(file=stream), 2) as watcher:
        until(lambda: "enginewright preflight: probing what is installed" in stream.getvalue())
        watcher.on_started("a.onnx")
        watcher.stage("a.onnx", "cpu, sm89", "golden")
        until(lambda: "preflight: a.onnx: cpu, sm89: golden (after " in stream.getvalue())
        watcher.on_started("b.onnx")
        watcher.stage("b.onnx", "cpu", "fetch")
        until(lambda: "a.onnx: cpu, sm89: golden; b.onnx: cpu: fetch (" in stream.getvalue())
        watcher.on_ended(Result(verdict="pass", source="a.onnx"))
        until(lambda: "enginewright preflight: b.onnx: cpu: fetch (" in stream.getvalue())
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[1/2] pass a.onnx (0.0 s)"]
    assert len(set(lines)) == len(lines) == 5
