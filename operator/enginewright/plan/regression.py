"""A revision that fails after it was promoted: one goes back only if the one before is provably better.

When no pod of the active revision passes its proofs any more, one pod of the revision before it is started
on each of its classes, without requests. If the proofs pass there, that revision is restored; else the
failure is that of the nodes or of the data, and going back would not help.
"""

from collections.abc import Collection
from typing import Final

from enginewright.api.inference_model_status import RolloutFailure
from enginewright.contract.reasons import Reason
from enginewright.manifests.labels import CANARY, TRACK
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.failures import failure_of, pods_of
from enginewright.plan.types import Facts

# Found by proofs, in every pod alike.
_OF_A_REVISION: Final = frozenset(
    {
        Reason.PARITY_FAILED,
        Reason.NODE_FALLBACK,
        Reason.FALLBACK_OVER_BUDGET,
        Reason.BACKEND_FALLBACK,
    }
)
STAGE: Final = "serving"  # of the failure


def regression(facts: Facts, active: str) -> RolloutFailure | None:
    """Return why no pod of the active revision passes its proofs any more; None: one does."""
    serving = [pod for pod in pods_of(facts, active) if pod.label(TRACK) != CANARY]
    found = [None if pod.ready else failure_of(facts, pod) for pod in serving]
    failures = [each for each in found if each and each.reason in _OF_A_REVISION]
    if not failures or len(failures) < len(serving):
        return None
    first = failures[0]
    return RolloutFailure(
        revision=active, stage=STAGE, reason=first.reason, message=first.finding.message
    )


def trial_counts(
    deployments: Collection[DeploymentView], classes: Collection[str]
) -> dict[str, int]:
    """Return one pod for each of `classes` on which something is to serve."""
    return {
        each.accelerator_class: 1
        for each in deployments
        if each.accelerator_class in classes and each.desired
    }
