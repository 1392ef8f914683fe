"""Runs that find too little memory while outputs of earlier ones are being sent."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from enginewright_runtime.serve.server.outside_memory import RunsInLimitedMemory
from enginewright_runtime.session.request_errors import RequestError
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = "Available memory of 1 is smaller than requested bytes of 2"


class Model:
    """Fails as often as `failures` has messages."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.runs = 0
        self.at_failure: Callable[[], object] = lambda: None

    def run(self, *_: Any) -> list[NDArray[Any]]:
        self.runs += 1
        if self.failures:
            self.at_failure()
            raise RuntimeError(self.failures.pop())
        return [np.ones(2, np.float32)]


def test_a_run_is_tried_again_once_earlier_outputs_are_sent() -> None:
    model = Model()
    runs = RunsInLimitedMemory(model.run, wait_seconds=0.0)
    being_sent = runs.run(["y"], {})
    model.failures, model.at_failure = [FULL], being_sent.clear
    assert len(runs.run(["y"], {})) == 1
    assert model.runs == 3


def test_while_views_of_outputs_are_sent_others_get_a_503() -> None:
    model = Model()
    runs = RunsInLimitedMemory(model.run, wait_seconds=0.0)
    view = runs.run(["y"], {})[0][1:].data
    model.failures = [FULL, FULL]
    with pytest.raises(RequestError, match="which are being sent, take the memory") as refused:
        runs.run(["y"], {})
    assert refused.value.status == 503
    del view
    model.failures = [FULL, FULL]
    with pytest.raises(RuntimeError, match="Available memory"):  # it is the request's own size
        runs.run(["y"], {})


def test_outputs_that_are_still_being_sent_may_leave_enough() -> None:
    model = Model()
    runs = RunsInLimitedMemory(model.run, wait_seconds=0.0)
    being_sent = runs.run(["y"], {})
    model.failures = [FULL]
    assert len(runs.run(["y"], {})) == len(being_sent)


@pytest.mark.parametrize("before", [[], [FULL]])
def test_other_errors_are_the_models(before: list[str]) -> None:
    model = Model()
    model.failures = ["Invalid shape", *before]
    with pytest.raises(RuntimeError, match="Invalid shape"):
        RunsInLimitedMemory(model.run).run(["y"], {})
    assert model.runs == 1 + len(before)


def test_outputs_that_were_sent_are_not_kept_track_of() -> None:
    runs = RunsInLimitedMemory(Model().run)
    for _ in range(100):
        runs.run(["y"], {})
        assert runs._sent.qsize() <= 1
        assert len(runs._sending) <= 1
