"""Children of the fork server: as alone, as limited and as mortal as processes that were started."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from enginewright_cli.preflight.stages import _PRELOAD
from enginewright_contract.reasons import Reason
from enginewright_runtime.core import children, isolated
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.graph.raw.checker import checker_error

from tests.support import broken_models as broken
from tests.support.programs import run_program
from tests.support.waiting import until

HERE = "tests.integration.test_forkserver"


def add_up(path: str, value: float) -> float:
    """Run a model, in a child."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": np.full((1, 4), value, np.float32)})
    return float(np.sum(output))


def surroundings() -> dict[str, Any]:
    """Return what a child sees of the process that asked for it."""
    return {
        "folder": os.getcwd(),
        "variable": os.environ.get("ENGINEWRIGHT_TEST"),
        "temporary": tempfile.gettempdir(),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "descriptors": sorted(
            os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in _descriptors()
        ),
    }


def _descriptors() -> list[str]:
    return [item for item in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{item}")]


def wait_for_ever(file: str) -> None:
    """Write the id of this process, and wait until a signal ends it."""
    Path(file).write_text(str(os.getpid()))
    signal.pause()


def wait_in_a_child(file: str) -> None:
    """Have a child of one's own wait."""
    Call(wait_for_ever, "waiting").run(file)


def test_models_run_in_one_child_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.relu().SerializeToString())
    for value in (1.0, 2.0, -1.0):
        total = Call(add_up, "adding up").run(str(path), value)
        assert total == max(0.0, value) * 4


def test_a_child_has_the_environment_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Call(surroundings, "looking").run()  # the server is there before they change
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEWRIGHT_TEST", "mine")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    seen = Call(surroundings, "looking").run()
    assert seen["folder"] == seen["temporary"] == str(tmp_path)
    assert (seen["variable"], seen["interrupt"]) == ("mine", True)
    # its way to the server, and no other's socket nor process
    assert sum(item.startswith("socket:") for item in seen["descriptors"]) == 1
    assert not any("pidfd" in item or "eventpoll" in item for item in seen["descriptors"])


@pytest.mark.parametrize("environment", [".venv", ".venv-openvino", ".venv-gpu"])
def test_a_server_that_has_imported_everything_has_one_thread(environment: str) -> None:
    """A fork copies the thread that calls it alone: whatever another one holds stays held."""
    python = Path(__file__).resolve().parents[2] / environment / "bin/python"
    if not python.exists():
        pytest.skip(f"NOT TESTED, there is no {environment}: make install")
    script = (
        f"import importlib, json, os, sys\n"
        f"for name in {_PRELOAD!r}: importlib.import_module(name)\n"
        "pid = os.fork()\n"  # OpenBLAS ends its threads then, and begins them when it needs them
        "pid or os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(json.dumps({'threads': len(os.listdir('/proc/self/task')),"
        " 'heavy': [each for each in ('tensorrt_rtx', 'tensorrt', 'openvino') if each in sys.modules]}))"
    )
    done = run_program([python, "-c", script], timeout=300)
    assert json.loads(done.stdout) == {"threads": 1, "heavy": []}


# fault: Commands | a child process outlives its stage | the fork server ends and reaps it | at
#   once
def test_children_end_with_their_caller(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with tempfile.TemporaryFile() as output:
        arguments = (f"{HERE}:wait_in_a_child", {"file": str(file)})
        with children.Child(
            isolated.main,
            *arguments,
            output=output.fileno(),
            descriptors=(output.fileno(),),
        ) as child:
            until(lambda: file.exists() and file.read_text(), "the child's own child", 100)
            inner = int(file.read_text())
            child.kill()
            end = child.wait(100)
    assert end is not None
    assert end.code == -signal.SIGKILL
    assert not Path(
        f"/proc/{inner}"
    ).exists()  # ended, and reaped, before its parent's end is reported


def test_a_server_that_is_killed_is_replaced(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, threading\n"
        "from enginewright_runtime.core import children\n"
        "from enginewright_runtime.core.failure import StageFailure\n"
        "from enginewright_runtime.core.isolation import Call\n"
        f"from {HERE} import surroundings, wait_for_ever\n"
        "Call(surroundings, 'looking').run()\n"
        "server = children._processes[0]\n"
        "threading.Timer(0.5, server.kill).start()\n"
        "try:\n"
        f"    Call(wait_for_ever, 'waiting').run({str(tmp_path / 'pid')!r})\n"
        "except StageFailure as failure:\n"
        "    print(failure.reason.value)\n"
        "server.wait()\n"
        "print(Call(surroundings, 'looking').run()['interrupt'])\n"
    )
    done = run_program(
        [sys.executable, "-c", script], timeout=300, cwd=Path(__file__).resolve().parents[2]
    )
    assert done.stdout.split() == [Reason.OUT_OF_MEMORY.value, "True"]


def test_a_child_costs_little_beside_a_python(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.relu().SerializeToString())
    Call(surroundings, "looking").run()
    (server,) = children._processes
    before = _seconds(server.pid)
    for _ in range(5):
        Call(checker_error, "checking").run(path)
    forked = (_seconds(server.pid) - before) / 5
    began = os.times()
    subprocess.run([sys.executable, "-c", "import enginewright_runtime.engine.verify"], check=True)
    ended = os.times()
    started = ended.children_user + ended.children_system
    started -= began.children_user + began.children_system
    assert forked < started


def _seconds(pid: int) -> float:
    """Return the processor time of a process and of those that it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def spend(seconds: float, works: bool) -> float:
    """Let time pass, with the processor or without, as where other processes have it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not works:
            time.sleep(0.01)
    return seconds


def test_a_child_that_had_no_processor_has_not_had_its_time() -> None:
    limits = Limits(seconds=100, work_seconds=0.5)
    assert Call(spend, "waiting", limits).run(1.5, works=False) == 1.5


@pytest.mark.parametrize(
    ("limits", "works"),
    [
        pytest.param(Limits(work_seconds=1), True, id="it works"),
        pytest.param(Limits(seconds=2, work_seconds=1), False, id="it hangs"),
        pytest.param(Limits(seconds=1), False, id="its time is on the clock"),
    ],
)
def test_a_child_that_has_had_its_time_is_ended(limits: Limits, works: bool) -> None:
    with pytest.raises(StageFailure, match="trying took longer than 1 s") as caught:
        Call(spend, "trying", limits).run(100.0, works)
    assert caught.value.reason is Reason.TIMEOUT
