"""Processes are known by pid and start time, on real processes."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import layout
from driver.errors import ClusterError
from driver.layout import Cluster
from driver.processes import Processes, end, run, start_time

from tests.support.optional import present


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setattr(layout, "STATE_ROOT", tmp_path)
    manager = Processes(Cluster("x"))
    yield manager
    for name in manager.names():
        manager.stop(name, seconds=0)


def test_starts_once_and_again_after_a_crash(processes: Processes) -> None:
    assert processes.start("one", ["sleep", "60"])
    pid = processes.pid("one")
    assert not processes.start("one", ["sleep", "60"])
    processes.kill("one")
    assert not processes.alive("one")
    assert processes.names() == ["one"]
    assert processes.start("one", ["sleep", "60"])
    assert processes.pid("one") != pid


def test_stopping_kills_processes_that_ignore_signals(processes: Processes) -> None:
    command = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"]
    processes.start("deaf", command)
    processes.wait("deaf", "its trap", lambda: "deaf" in processes.tail("deaf"), 5)
    pid = present(processes.pid("deaf"))
    processes.stop("deaf", seconds=0.3)
    assert start_time(pid) is None
    assert processes.names() == []


def test_a_pid_that_was_given_to_another_is_not_ours(processes: Processes, tmp_path: Path) -> None:
    processes.start("one", ["sleep", "60"])
    mark = tmp_path / "x" / "processes" / "one.json"
    original = mark.read_text()
    born = present(start_time(os.getpid()))
    mark.write_text(json.dumps({"pid": os.getpid(), "start": born - 1}))
    assert not processes.alive("one")
    processes.stop("one")  # would end this very test
    mark.write_text(original)


def test_waiting_ends_with_the_process_and_shows_its_log(processes: Processes) -> None:
    processes.start("short", ["sh", "-c", "echo the reason; exit 3"])
    begun = time.monotonic()
    with pytest.raises(ClusterError, match=r"short ended before readiness(.|\n)*the reason"):
        processes.wait("short", "readiness", lambda: False, 30)
    assert time.monotonic() - begun < 10


def test_waiting_has_a_deadline(processes: Processes) -> None:
    processes.start("slow", ["sleep", "60"])
    with pytest.raises(ClusterError, match="did not, in 0 s, reach readiness"):
        processes.wait("slow", "readiness", lambda: False, 0.3)


def test_a_start_mark_that_was_cut_off_counts_as_none(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "x" / "processes"
    folder.mkdir(parents=True)
    (folder / "one.json").write_text('{"pid": 1')
    assert not processes.alive("one")


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(ClusterError, match="did not finish within 0 s"):
        run("sleep", "60", timeout=0.2)


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(ClusterError, match="the reason"):
        run("sh", "-c", "echo the reason >&2; exit 1")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ClusterError, match="program nosuchprogram was not found"):
        run("nosuchprogram")


def test_ending_a_gone_process_is_no_error() -> None:
    end([2**22 - 1], 0.1)
