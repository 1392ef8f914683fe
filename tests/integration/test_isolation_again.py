"""Every child that fails leaves the command that does the same again."""

import json
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core import isolated, isolation
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.proof.latency import worker
from enginewright_runtime.proof.latency.process import WorkerProcess

from tests.support.programs import run_program

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
        case "surrogate":
            raise SessionError("größe of a\udcff.onnx")
        case _:
            raise SessionError(str(len(how)))


def numbers() -> dict[str, float]:
    """Return what JSON has not, under names that are not ASCII."""
    return {"größe": math.inf, "naïve": -math.inf, "π": math.nan}


def again(caplog: pytest.LogCaptureFixture) -> str:
    """Return the command that was logged."""
    (command,) = [
        message.partition("to reproduce: ")[2]
        for message in caplog.messages
        if message.startswith("to reproduce: ")
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
    ids=lambda item: item[:8] if isinstance(item, str) else None,
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
        WorkerProcess("measuring", 60.0) as process,
        pytest.raises(StageFailure) as failed,
    ):
        process.load(model, "cpu", tmp_path / "inputs.npz")
    shell = ("sh", "-c", again(caplog))
    done = subprocess.run(shell, capture_output=True, check=True, timeout=90)
    cause = json.loads(done.stdout)["failure"]["cause"]
    assert failed.value.cause == f"measuring: {cause}"


def test_a_failure_with_unserializable_arguments_is_unchanged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    call = Call(fail, "failing")
    monkeypatch.setattr(isolation, "_files", {}, raising=False)
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (os.open("/dev/null", os.O_RDONLY), "/"))
    with pytest.raises(SessionError, match=str(LONG)):
        call.run("x" * LONG)
    assert any("its arguments could not be stored" in message for message in caplog.messages)
    assert not any("to reproduce" in message for message in caplog.messages)


def test_failures_of_one_function_leave_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_files", {}, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for letter in "xyz":
        with pytest.raises(SessionError):
            Call(fail, "failing").run(letter * LONG)
    (kept,) = tmp_path.glob("arguments-*")
    assert json.loads(kept.read_text()) == {"how": "z" * LONG}


def test_values_beyond_json_and_utf_8_cross() -> None:
    with pytest.raises(SessionError) as refused:
        Call(fail, "failing").run("surrogate")
    assert str(refused.value) == "größe of a\\udcff.onnx"
    numbers_read = Call(numbers, "counting").run()
    assert math.isnan(numbers_read.pop("π"))
    assert numbers_read == {"größe": math.inf, "naïve": -math.inf}


def in_ascii(module: ModuleType, *arguments: str, given: str = "") -> Any:
    """Run a module of ours by hand in a locale that is not UTF-8; return what it answers."""
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", module.__name__, *arguments]
    done = run_program(command, input=given, env=environment, timeout=90)
    return json.loads(done.stdout)


def test_text_that_is_not_ascii_is_answered_in_any_locale() -> None:
    answer = in_ascii(isolated, f"{__name__}:fail", json.dumps({"how": "surrogate"}))
    assert answer["text"] == "größe of a\\udcff.onnx"
    order = {"command": "load", "model": "m.onnx", "backend": "größe", "inputs": "inputs.npz"}
    answer = in_ascii(worker, given=json.dumps(order))
    assert "größe" in answer["failure"]["cause"]
