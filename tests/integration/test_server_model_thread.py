"""What runs the model, on the real server: the event loop as long as it is fast, and threads that must not be lost."""

from pathlib import Path

import numpy as np
from enginewright_contract.reasons import Reason, exit_code

from tests.support.serving import Server, linear_model, read_report, write_artifact
from tests.support.waiting import Deadline

ROW = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.5] * 8}],
}
# the end of a run is not recorded: an error that is in no request, and that no handler expects
LOSE = """
from enginewright_serving.server.inference.job_queue import JobQueue

finish = JobQueue.finish

def lose(queue, thread, jobs):
    if any(job.call.of_client for job in jobs):
        raise RuntimeError("a bug")
    finish(queue, thread, jobs)

JobQueue.finish = lose
"""
# every run takes processor time, until three did
SLOW = """
import time
from enginewright_serving.server.inference.runs import ModelRuns

outputs = ModelRuns._outputs
runs = [3]

def compute(model, jobs, counted):
    end = time.thread_time() + 0.025 * (runs[0] > 0)
    runs[0] -= 1
    while time.thread_time() < end:
        pass
    return outputs(model, jobs, counted)

ModelRuns._outputs = compute
"""


# fault: Servers | a thread that runs the model ends | the process ends with RunsFail, and the kubelet starts it again | at once
def test_a_thread_of_the_model_that_ends_ends_the_process(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((1, 8), np.float32)}])
    with Server(tmp_path, task, before=LOSE, loop_run_seconds=0.0) as server:
        with server.wire() as client:
            client.send(server.infer_request(ROW))
            assert server.wait() == exit_code(Reason.RUNS_FAIL)
        assert "a bug" in server.log()
        report = read_report(tmp_path)
        assert report.reason == Reason.RUNS_FAIL
        assert "a thread that runs the model has ended" in report.outcome


def test_long_runs_leave_the_event_loop_for_a_while_only(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((1, 8), np.float32)}])
    with Server(tmp_path, task, before=SLOW, loop_pause_seconds=0.5) as server:
        for _ in range(3):
            assert server.post(ROW).status == 200
        assert "the model's thread runs all requests for 0.5 s" in server.log()
        deadline = Deadline(60)
        while not server.metric("enginewright_event_loop_runs{"):
            assert not deadline.is_over()
        assert server.post(ROW).status == 200


def test_a_model_that_is_slow_from_the_start_runs_in_its_thread(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((1, 8), np.float32)}])
    with Server(tmp_path, task, loop_run_seconds=0.0) as server:
        assert server.post(ROW).status == 200
        assert server.metric("enginewright_event_loop_runs{") == 0.0
