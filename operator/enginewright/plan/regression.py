"""A revision that fails after it was promoted: one goes back only if the one before is provably better.

When no pod of the active revision passes its proofs any more, or all of them crash again and again, one
pod of the revision before it is started on each of its classes. If the proofs pass there, that revision is
restored; for crashes, which requests may cause, only after it has answered requests for `canary.hold`. Else
the failure is that of the nodes, of the data or of the requests, and going back would not help.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from enginewright_contract.reasons import Fault

from enginewright.api.inference_model_status import RolloutFailure
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.failures import failure_of, pods_of
from enginewright.plan.pods import Failure, failure, is_repeated
from enginewright.plan.types import Facts

STAGE: Final = "serving"  # of the failure


@dataclass(frozen=True)
class Regression:
    """Why all pods of a revision that has served fail."""

    failure: RolloutFailure
    under_requests: (
        bool  # requests may cause it, so that only pods with requests show what is better
    )


def regression(facts: Facts, active: str) -> Regression | None:
    """Return why all pods of the active revision fail; None: one of them does not."""
    serving = [pod for pod in pods_of(facts, active) if not pod.is_canary]
    refused = [None if pod.ready else failure_of(facts, pod) for pod in serving]
    if all(each and each.reason.facets.fault is Fault.REVISION for each in refused):
        return _regression(active, refused, under_requests=False)
    crashed = [failure(pod) if is_repeated([pod]) else None for pod in serving]
    if all(each and each.reason.facets.fault is Fault.LOAD for each in crashed):
        return _regression(active, crashed, under_requests=True)
    return None


def _regression(
    active: str, found: Sequence[Failure | None], *, under_requests: bool
) -> Regression | None:
    first = next(filter(None, found), None)
    if first is None:  # there are no pods
        return None
    failure = RolloutFailure(
        revision=active,
        stage=STAGE,
        reason=first.reason,
        message=first.finding.message,
        exit_code=first.exit_code,
    )
    return Regression(failure, under_requests)


def trial_counts(
    deployments: Collection[DeploymentView], classes: Collection[str]
) -> dict[str, int]:
    """Return one pod for each of `classes` on which something is to serve."""
    return {
        each.accelerator_class: 1
        for each in deployments
        if each.accelerator_class in classes and each.desired
    }
