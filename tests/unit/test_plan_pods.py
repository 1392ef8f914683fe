"""Reading what pods tell."""

from enginewright.contract.reasons import Reason
from enginewright.contract.report import StageReport
from enginewright.plan import pods


def test_an_out_of_memory_kill_outweighs_the_word_left_before_loading() -> None:
    herald = StageReport(
        stage="serve", ok=False, reason=Reason.BACKEND_CRASHED, message="the backend crashed"
    ).herald()
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": herald}
    pod = {
        "metadata": {"name": "x"},
        "status": {
            "containerStatuses": [
                {"name": "server", "state": {}, "lastState": {"terminated": ended}}
            ]
        },
    }
    found = pods.failure(pod)
    assert found is not None
    assert found.reason is Reason.OUT_OF_MEMORY
    ended["reason"] = "Error"
    found = pods.failure(pod)
    assert found is not None
    assert found.reason is Reason.BACKEND_CRASHED
