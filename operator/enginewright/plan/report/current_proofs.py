"""Which pods' verdicts count for a model, and what is reported until they are known."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from enginewright_contract.task import SIDECAR, Promise
from enginewright_contract.verdict import Verdict

from enginewright.api.conditions import Condition, ConditionType, StatusReason
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.observed.pods import PodView
from enginewright.plan.history.outcomes import promise_of
from enginewright.plan.pods import serving_pods
from enginewright.plan.rollout.proofs import Proofs, Statement, proofs
from enginewright.plan.rollout.rollout import RolloutPlan
from enginewright.plan.types import Facts


def current_proofs(facts: Facts, rollout: RolloutPlan) -> Proofs | None:
    """Return the proofs for the serving revision or, if none serves, for the one being rolled out."""
    serving = rollout.serving.revision if rollout.serving else None
    revision = serving or rollout.applied
    if revision is None:
        return None
    promise = promise_of(facts.revisions, revision) or Promise()
    mine = [pod for pod in serving_pods(facts.pods, revision) if not pod.leaving]
    relevant = [pod for pod in mine if pod.ready or _was_admitted(facts.verdicts, pod)] or mine
    found = _verdicts(facts.verdicts, relevant)
    proven = proofs(found, promise)
    silent = [pod for pod in relevant if pod.name in facts.silent]
    if silent and not (proven and proven.any_failed):
        return _unknown(facts.model.status, len(silent), len(relevant))
    before = facts.model.status
    known = before.serving.revision if before.serving else before.revision
    reported = _from_status(facts.model.status) if mine and known == revision else None
    if proven is None or reported is None:
        return proven or reported
    # Until all pods were polled, as after a restart, only failures are reported.
    if len(found) < len(relevant):
        return _worse(reported, proven) if proven.any_failed else reported
    # A reported failure stays while the pod that it came from may not have been polled yet.
    if (
        reported.any_failed
        and not proven.any_failed
        and any(_is_pending(facts.verdicts, facts.silent, pod) for pod in mine)
    ):
        return reported
    return proven


def _worse(reported: Proofs, found: Proofs) -> Proofs:
    """Return the failures of some pods if they change a status; measurements wait for all pods, else they change twice."""
    if _statuses(reported) == _statuses(found):
        return reported
    return replace(found, placement_summary=reported.placement_summary, p99=reported.p99)


def _statuses(proven: Proofs) -> tuple[str | None, ...]:
    statements = (proven.parity, proven.placement, proven.fallback, proven.broken)
    return tuple(each.status if each else None for each in statements)


def _is_pending(verdicts: Mapping[str, Verdict], silent: Collection[str], pod: PodView) -> bool:
    """Return whether the pod's sidecar runs but has not responded yet."""
    sidecar = pod.container(SIDECAR)
    return (
        pod.name not in verdicts
        and pod.name not in silent
        and sidecar is not None
        and sidecar.running
    )


def _was_admitted(verdicts: Mapping[str, Verdict], pod: PodView) -> bool:
    """Return whether the pod was admitted before: a check that failed since is reported."""
    verdict = verdicts.get(pod.name)
    return verdict is not None and verdict.admitted


def _verdicts(verdicts: Mapping[str, Verdict], pods: Iterable[PodView]) -> tuple[Verdict, ...]:
    names = [pod.name for pod in pods]
    return tuple(verdicts[name] for name in names if name in verdicts)


def _from_status(status: InferenceModelStatus) -> Proofs | None:
    """Return the proofs in the status: an operator that has just started knows nothing newer."""
    reported = {each.type: each for each in status.conditions}
    kinds = (
        ConditionType.PARITY_VERIFIED,
        ConditionType.PLACEMENT_VERIFIED,
        ConditionType.FALLBACK_ACTIVE,
    )
    if not all(kind in reported for kind in kinds):
        return None
    parity, placement, fallback = (_statement(reported[kind]) for kind in kinds)
    ready = reported.get(ConditionType.READY)
    broken = next(
        (
            each
            for each in (parity, placement)
            if ready
            and ready.status == "False"
            and each.status == "False"
            and ready.reason == each.reason
        ),
        None,
    )
    summary = status.summary
    return Proofs(parity, placement, fallback, broken, summary.placement, summary.p99)


def _unknown(status: InferenceModelStatus, silent: int, pods: int) -> Proofs:
    """Return that the state is unknown: the last verdicts of the pods are too old."""
    message = (
        f"the sidecars of {silent} of {pods} pods have not responded to the operator for five minutes: check that"
        " they run and that no NetworkPolicy blocks the operator's access to port 8081"
    )
    unknown = Statement("Unknown", StatusReason.SIDECAR_UNREACHABLE, message)
    summary = status.summary
    return Proofs(unknown, unknown, unknown, None, summary.placement, summary.p99)


def _statement(condition: Condition) -> Statement:
    return Statement(condition.status, condition.reason, condition.message)
