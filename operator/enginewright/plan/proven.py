"""Which pods' verdicts speak for a model, and what stands while none is known."""

from collections.abc import Iterable
from dataclasses import replace

from enginewright.api.conditions import Condition, ConditionType, StatusReason
from enginewright.contract.task import SIDECAR, Promise
from enginewright.contract.verdict import Verdict
from enginewright.manifests.labels import COMPONENT, REVISION
from enginewright.observed.pods import PodView
from enginewright.plan.proofs import Proofs, Statement, proofs
from enginewright.plan.rollout import Rollout
from enginewright.plan.types import Facts


def what_is_proven(facts: Facts, rollout: Rollout) -> Proofs | None:
    """Return what is proven of what serves or, while nothing does, of what is brought up."""
    serving = rollout.serving.revision if rollout.serving else None
    revision = serving or rollout.applied
    if revision is None:
        return None
    promise = _promise(facts, revision)
    mine = _pods(facts, revision)
    speaking = [pod for pod in mine if pod.ready or _was_let_in(facts, pod)] or mine
    found = _verdicts(facts, speaking)
    proven = proofs(found, promise)
    unheard = [pod for pod in speaking if pod.name in facts.silent]
    if unheard and not (proven and proven.bad_news):
        return _too_old(facts, len(unheard), len(speaking))
    before = facts.model.status
    known = before.serving.revision if before.serving else before.revision
    told = _as_told(facts) if mine and known == revision else None
    if proven is None or told is None:
        return proven or told
    # Some pods were not asked yet, as after a restart: good news waits for the last of them.
    if len(found) < len(speaking):
        return _worse(told, proven) if proven.bad_news else told
    # One that was let in and is not ready may be the one that the bad news was about.
    if told.bad_news and not proven.bad_news and any(_is_awaited(facts, pod) for pod in mine):
        return told
    return proven


def _worse(told: Proofs, found: Proofs) -> Proofs:
    """Return the bad news of some pods where it is news; figures wait for all pods, else they flip twice."""
    if _statuses(told) == _statuses(found):
        return told
    return replace(found, placement_summary=told.placement_summary, p99=told.p99)


def _statuses(proven: Proofs) -> tuple[str | None, ...]:
    statements = (proven.parity, proven.placement, proven.fallback, proven.broken)
    return tuple(each.status if each else None for each in statements)


def _is_awaited(facts: Facts, pod: PodView) -> bool:
    """Tell whether the pod's sidecar runs, and has not been heard of."""
    sidecar = pod.container(SIDECAR)
    return (
        pod.name not in facts.verdicts
        and pod.name not in facts.silent
        and sidecar is not None
        and sidecar.running
    )


def _pods(facts: Facts, revision: str) -> list[PodView]:
    return [
        pod
        for pod in facts.pods
        if pod.label(COMPONENT) == "serve" and pod.label(REVISION) == revision and not pod.leaving
    ]


def _was_let_in(facts: Facts, pod: PodView) -> bool:
    """Tell whether the pod served until its proofs failed: what broke is told, not only avoided."""
    verdict = facts.verdicts.get(pod.name)
    return verdict is not None and verdict.admitted


def _verdicts(facts: Facts, pods: Iterable[PodView]) -> tuple[Verdict, ...]:
    names = [pod.name for pod in pods]
    return tuple(facts.verdicts[name] for name in names if name in facts.verdicts)


def _promise(facts: Facts, revision: str) -> Promise:
    for each in facts.revisions:
        if each.revision == revision and each.kept:
            return each.kept.snapshot.promise
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


def _too_old(facts: Facts, unheard: int, pods: int) -> Proofs:
    """Return that nothing is proven any more: what pods said once is not what they do now."""
    message = (
        f"{unheard} of {pods} pods have not answered the operator for five minutes: see that the sidecars run and that no"
        " NetworkPolicy keeps the operator from port 8081"
    )
    unknown = Statement("Unknown", StatusReason.SIDECAR_UNREACHABLE, message)
    summary = facts.model.status.summary
    return Proofs(unknown, unknown, unknown, None, summary.placement, summary.p99)


def _statement(condition: Condition) -> Statement:
    return Statement(condition.status, condition.reason, condition.message)
