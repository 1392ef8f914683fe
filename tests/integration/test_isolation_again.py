"""Every child that fails leaves the command that does the same again."""

import json
import logging
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from enginewright.contract.reasons import Reason
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.proof.latency.process import WorkerProcess

LONG = 200_000  # characters, more than Linux takes as one argument


def fail(how: str) -> None:
    """Fail in a child."""
    match how:
        case "stage":
            raise StageFailure(Reason.CALIBRATION_INVALID, "no such array")
        case "session":
            raise SessionError("refused")
        case "error":
            raise ValueError("a bug")
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            signal.pause()
        case _:
            raise SessionError(str(len(how)))


def again(caplog: pytest.LogCaptureFixture) -> str:
    """Return the command that was logged."""
    (command,) = [
        message.partition("to run it again: ")[2]
        for message in caplog.messages
        if message.startswith("to run it again: ")
    ]
    return command


@pytest.mark.parametrize(
    ("how", "raised", "answer"),
    [
        ("stage", StageFailure, "failure"),
        ("session", SessionError, "session-error"),
        ("error", StageFailure, "error"),
        ("signal", StageFailure, None),
        ("hang", StageFailure, None),
        ("x" * LONG, SessionError, "session-error"),
    ],
    ids=lambda each: each[:8] if isinstance(each, str) else None,
)
def test_the_logged_command_fails_alike(
    how: str, raised: type[Exception], answer: str | None, caplog: pytest.LogCaptureFixture,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    limits = Limits(seconds=2.0 if how == "hang" else None)
    with pytest.raises(raised):
        Call(fail, "failing", limits).run(how)
    command = shlex.split(again(caplog))
    if how == "hang":
        assert command[-2:] == [f"{__name__}:fail", json.dumps({"how": how})]
        return
    done = subprocess.run(command, capture_output=True, check=False, timeout=90)
    if answer is None:
        assert done.returncode == -signal.SIGSEGV
    else:
        assert json.loads(done.stdout)["outcome"] == answer


def test_a_worker_that_fails_does_too(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO)
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model")
    with (
        WorkerProcess("measuring", 60.0) as worker,
        pytest.raises(StageFailure) as failed,
    ):
        worker.load(model, "cpu", tmp_path / "inputs.npz")
    shell = ("sh", "-c", again(caplog))
    done = subprocess.run(shell, capture_output=True, check=True, timeout=90)
    cause = json.loads(done.stdout)["failure"]["cause"]
    assert failed.value.cause == f"measuring: {cause}"
