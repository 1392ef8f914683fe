"""The frame around a stage: every end is reported to each of its readers."""

import faulthandler
import os
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_runtime.core import isolation
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolated import ChildAnswer

from tests.support import broken_models as broken
from tests.support.preparing import Workplace
from tests.support.programs import run_program

REPOSITORY = Path(__file__).resolve().parents[2]


def crash(name: str) -> None:
    """End the child in the way that `name` says."""
    print("last words", flush=True)
    match name:
        case "segfault":
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "memory":
            np.zeros(1 << 60, np.int8)
        case "error":
            raise ValueError("of no use")
        case _:
            raise StageFailure(Reason.PROVIDER_MISSING, "no provider", nodes=("a (B)",))


@pytest.mark.parametrize(
    ("name", "reason", "reported"),
    [
        (
            "segfault",
            Reason.BACKEND_CRASHED,
            "trying crashed with SIGSEGV; last output: last words",
        ),
        ("killed", Reason.OUT_OF_MEMORY, "trying was killed: out of memory"),
        ("exit", Reason.BACKEND_CRASHED, "trying: the process exited with code 7"),
        ("memory", Reason.OUT_OF_MEMORY, "trying ran out of memory"),
        ("error", Reason.INTERNAL_ERROR, "trying failed: ValueError: of no use"),
        ("failure", Reason.PROVIDER_MISSING, "no provider"),
    ],
)
def test_ends_of_a_child(name: str, reason: Reason, reported: str) -> None:
    with pytest.raises(StageFailure) as caught:
        isolation.Call(crash, "trying").run(name)
    assert caught.value.reason is reason
    assert reported in caught.value.message
    assert "Traceback" not in caught.value.message


def test_the_command_that_runs_a_failed_child_again_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "enginewright_runtime")
    with pytest.raises(StageFailure):
        isolation.Call(crash, "trying").run("error")
    command = shlex.split(caplog.messages[-1].removeprefix("to reproduce: "))
    done = run_program(command, cwd=REPOSITORY, timeout=100)
    answer = ChildAnswer.model_validate_json(done.stdout.splitlines()[-1])
    assert answer == ChildAnswer(outcome="error", text="ValueError: of no use")


@pytest.mark.parametrize("task", ["", "{}", "[1]", '{"job": 1}'])
def test_a_task_that_is_none(task: str, tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    process = place.start(["stage", "fetch"], task)
    _, log = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERNAL
    assert "ENGINEWRIGHT_TASK is not a valid PrepareTask" in log
    assert "Traceback" not in log


def test_a_termination_message_of_many_nodes_is_cut_and_the_report_is_not(place: Workplace) -> None:
    model = broken.newer_operators(150)
    model.opset_import[0].version = 17  # which has them not
    for index, node in enumerate(model.graph.node):
        node.name = f"/一个/很长的/作用域/第{index}层/注意力" * 8  # three bytes a letter
    _, outcome = place.prepare(place.task(place.put("m.onnx", model)))
    assert outcome.report.reason is Reason.UNSUPPORTED_OPERATOR
    assert outcome.report.failure is not None
    assert outcome.report.failure.cause.endswith("…")
    finding = outcome.full["findings"][0]
    assert (len(finding["nodes"]), finding["node_count"]) == (100, 150)


# fault: Store | threads of the bucket's client are still at work when a stage ends, which crashes an interpreter that is
#   being finalized | the process ends without that | prevented
@pytest.mark.parametrize("ending", ["return 3", "sys.exit(3)"])
def test_a_command_ends_with_its_code_and_output_but_finalizes_nothing(ending: str) -> None:
    program = f"""\
import atexit, sys
from enginewright_runtime import __main__ as command

def main():
    atexit.register(print, "finalized", flush=True)
    print("said")
    print("logged", file=sys.stderr)
    {ending}

command.main = main
command.command()
"""
    ended = run_program([sys.executable, "-c", program], code=None)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said\n", "logged\n")
