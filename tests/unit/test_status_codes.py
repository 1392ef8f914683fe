"""One rule of what a response says: the sidecar's check and the analysis of a rollout judge alike."""

import pytest
from enginewright.analysis.shares import compare_shares
from enginewright_contract.measurements import Measurements
from enginewright_contract.reasons import Reason
from enginewright_contract.status_codes import select_errors, select_run
from enginewright_serving.sidecar.errors import ErrorShare

from tests.support.rollout_simulation import limits

ANSWERED = {200: 1, 400: 2, 404: 3, 499: 4, 500: 5, 502: 6, 503: 7, 504: 8}


def test_what_was_not_run_is_neither_run_nor_an_error() -> None:
    assert select_run(ANSWERED) == {200: 1, 400: 2, 404: 3, 499: 4, 500: 5, 502: 6}
    assert select_errors(ANSWERED) == {500: 5, 502: 6}


@pytest.mark.parametrize("code", sorted(ANSWERED))
def test_check_and_analysis_agree_on_what_an_error_is(code: int) -> None:
    share = ErrorShare()
    share.add({200: 0, code: 0}, 0.0)
    share.add({200: 100, code: 900}, 5.0)
    healthy, suspect = (
        Measurements(model="m", revision=name, since=1.8e9, responses=responses)
        for name, responses in (("r1", {"200": 10_000}), ("r2", {"200": 100, str(code): 900}))
    )
    result = compare_shares([healthy], [suspect], limits())
    fails = any(finding.reason is Reason.TOO_MANY_ERRORS for finding in result.findings)
    assert fails is (share.outcome().state == "failed") is (code in {500, 502})
