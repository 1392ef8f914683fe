"""How far a build is: a share that only rises, reported over HTTP while the build runs."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from enginewright_contract.report import Progress
from enginewright_runtime.tensorrt import progress
from enginewright_runtime.tensorrt.native import Phase, share


def ask(port: int | None, path: str = "/progress") -> Progress:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return Progress.model_validate_json(answer.read())


def test_phases_in_phases() -> None:
    phases = {"all": Phase(None, 4)}
    assert share(phases) == 0
    phases["all"].done = 1
    phases["part"] = Phase("all", 2)
    phases["part"].done = 1
    assert share(phases) == pytest.approx(0.375)
    phases["other"] = Phase("all", 1)
    phases["other"].done = 1
    assert share(phases) == pytest.approx(0.5), "no phase is more than its parent's step"
    del phases["part"], phases["other"]
    phases["all"].done = 4
    assert share(phases) == 1


def test_reported_progress_is_served(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with progress.serve(file, port=0) as port:
        assert ask(port) == Progress(stage="build", percent=0, phase="starting")
        progress.report_progress(file, 41.7, "Timing tactics")
        assert ask(port) == Progress(stage="build", percent=41, phase="Timing tactics")
        progress.report_progress(file, 140, "Ending")
        assert ask(port).percent == 100
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(port, "/other")
        with socket.create_connection(("127.0.0.1", port or 0)):  # an idle client delays no other
            assert ask(port).percent == 100
    with pytest.raises(OSError, match="refused"):
        ask(port)


def test_a_port_that_is_taken_hinders_no_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with progress.serve(tmp_path / "progress.json", port=number) as port:
            assert port is None
    assert f"no progress on port {number}: Address already in use" in caplog.text
