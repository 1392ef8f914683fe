"""Which pods' verdicts speak for a model, and what stands while none is known."""

from collections.abc import Iterable

from enginewright.api.conditions import Condition, ConditionType
from enginewright.contract.task import Promise
from enginewright.contract.verdict import Verdict
from enginewright.manifests.labels import COMPONENT, REVISION
from enginewright.plan.job_state import label
from enginewright.plan.pods import is_ready, leaving
from enginewright.plan.proofs import Proofs, Statement, proofs
from enginewright.plan.rollout import Rollout
from enginewright.plan.types import Facts, Object


def what_is_proven(facts: Facts, rollout: Rollout) -> Proofs | None:
    """Return what is proven of what serves or, while nothing does, of what is brought up."""
    serving = rollout.serving.revision if rollout.serving else None
    revision = serving or rollout.applied
    if revision is None:
        return None
    promise = _promise(facts, revision)
    mine = _pods(facts, revision)
    speaking = [pod for pod in mine if is_ready(pod) or _was_let_in(facts, pod)] or mine
    found = _verdicts(facts, speaking)
    proven = proofs(found, promise)
    if proven and (len(found) == len(speaking) or proven.bad_news):
        return proven
    # Some pods were not asked yet, as after a restart: good news waits for the last of them.
    before = facts.model.status
    told = before.serving.revision if before.serving else before.revision
    return (_as_told(facts) if mine and told == revision else None) or proven


def _pods(facts: Facts, revision: str) -> list[Object]:
    return [
        pod
        for pod in facts.pods
        if label(pod, COMPONENT) == "serve"
        and label(pod, REVISION) == revision
        and not leaving(pod)
    ]


def _was_let_in(facts: Facts, pod: Object) -> bool:
    """Tell whether the pod served until its proofs failed: what broke is told, not only avoided."""
    verdict = facts.verdicts.get(pod["metadata"]["name"])
    return verdict is not None and verdict.admitted


def _verdicts(facts: Facts, pods: Iterable[Object]) -> tuple[Verdict, ...]:
    names = [pod["metadata"]["name"] for pod in pods]
    return tuple(facts.verdicts[name] for name in names if name in facts.verdicts)


def _promise(facts: Facts, revision: str) -> Promise:
    for each in facts.revisions:
        if label(each, REVISION) == revision:
            return Promise.model_validate((each.get("data") or {}).get("promise") or {})
    return Promise()


def _as_told(facts: Facts) -> Proofs | None:
    """Return what the status says: an operator that has just started knows no better."""
    told = {each.type: each for each in facts.model.status.conditions}
    kinds = (
        ConditionType.PARITY_VERIFIED,
        ConditionType.PLACEMENT_VERIFIED,
        ConditionType.FALLBACK_ACTIVE,
    )
    if not all(kind in told for kind in kinds):
        return None
    parity, placement, fallback = (_statement(told[kind]) for kind in kinds)
    ready = told.get(ConditionType.READY)
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
    summary = facts.model.status.summary
    return Proofs(parity, placement, fallback, broken, summary.placement, summary.p99)


def _statement(condition: Condition) -> Statement:
    return Statement(condition.status, condition.reason, condition.message)
