"""What the sidecars' verdicts prove about a model: parity, placement, fallback, for its conditions.

A missing verdict, as after a restart of the operator, changes nothing: what was reported before stays
until a newer verdict is known, or a sidecar has not responded for a long time (`current_proofs`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from enginewright_contract import causes
from enginewright_contract.reasons import NOTHING_RUNS, ExitCode, Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import SIDECAR, Promise
from enginewright_contract.verdict import Check, CheckVerdict, Verdict, runs_as_allowed

from enginewright.api.conditions import Condition, ConditionStatus, ConditionType, StatusReason
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.observed.pods import PodView
from enginewright.plan.history.outcomes import promise_of
from enginewright.plan.pods import Failure, explain_silence, serving_pods
from enginewright.plan.types import Facts

# Checks that keep a pod from being admitted, the most specific one first.
_GATES: Final = (
    Check.DISTRIBUTION,
    Check.PROVIDER,
    Check.PLACEMENT,
    Check.VERSIONS,
    Check.SERVER,  # only if it cannot run the model: one that is down shows in its pod's status
    Check.GOLDEN,
)
# Both fail for the same cause, and the first one also names the nodes.
_PLACEMENT: Final = (Check.PLACEMENT, Check.PROVIDER)


@dataclass(frozen=True)
class Statement:
    """Status, reason and message of one condition."""

    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True)
class Proofs:
    """What is proven about the serving pods."""

    parity: Statement
    placement: Statement
    fallback: Statement
    broken: Statement | None  # why the model is not ready although it has all its pods
    placement_summary: str  # "97% openvino", if known
    p99: str  # "12ms", if known

    @property
    def any_failed(self) -> bool:
        """Return whether any check failed, for which one pod is enough."""
        return (
            "False" in (self.parity.status, self.placement.status)
            or self.fallback.status == "True"
            or self.broken is not None
        )


def refusal(verdict: Verdict, promise: Promise) -> Failure | None:
    """Return why a sidecar does not admit its pod, if a check has failed for a known reason."""
    failed = _list_failed(verdict, _require_checks(verdict, promise, serves=False))
    # one that failed for a reason that only later versions know has no finding
    check = _most_specific(check_verdict for check_verdict in failed if check_verdict.finding)
    if check is None or check.finding is None:
        return None
    return Failure(SIDECAR, check.finding, finished_at="", exit_code=ExitCode.PERMANENT)


def proofs(verdicts: Sequence[Verdict], promise: Promise) -> Proofs | None:
    """Return what the verdicts of the serving pods prove, if there are any."""
    if not verdicts:
        return None
    return Proofs(
        parity=_parity(verdicts),
        placement=_placement(verdicts, promise),
        fallback=_fallback(verdicts),
        broken=_find_broken(verdicts, promise),
        placement_summary=_placement_summary(verdicts, promise),
        p99=_p99(verdicts),
    )


def _checks(verdicts: Iterable[Verdict], check: Check) -> list[CheckVerdict]:
    return [
        check_verdict
        for verdict in verdicts
        for check_verdict in verdict.checks
        if check_verdict.check is check
    ]


def _require_checks(verdict: Verdict, promise: Promise, *, serves: bool) -> set[Check]:
    """Return the checks that must pass: not that of a provider without which the pod may run.

    If its revision `serves`, the pod may also have lost that provider since it was admitted.
    """
    placed = _checks([verdict], Check.PLACEMENT)
    reasons = (check.reason for check in _checks([verdict], Check.PROVIDER))
    lost = None if serves else next(reasons, None)
    allowed = any(
        runs_as_allowed(promise.policy, check_verdict.state, lost) for check_verdict in placed
    )
    return set(_GATES) - ({Check.PROVIDER} if allowed else set())


def _list_failed(verdict: Verdict, checks: Collection[Check]) -> list[CheckVerdict]:
    return [
        check
        for check in verdict.checks
        if check.check in checks
        and check.state == "failed"
        and (check.check is not Check.SERVER or check.reason in NOTHING_RUNS)
    ]


def _most_specific(failed: Iterable[CheckVerdict]) -> CheckVerdict | None:
    """Return the most specific failed check: causes before their consequences.

    A replaced session lacks its provider too, but its replacement is the cause.
    """
    return min(
        failed,
        key=lambda verdict: (
            verdict.reason is not Reason.SESSION_REPLACED,
            _GATES.index(verdict.check),
        ),
        default=None,
    )


def _parity(verdicts: Sequence[Verdict]) -> Statement:
    checks = _checks(verdicts, Check.GOLDEN)
    failed = next((check for check in checks if check.state == "failed"), None)
    if failed and failed.reason in NOTHING_RUNS:
        return Statement("Unknown", failed.reason, _text_of(failed))  # no outputs to compare
    if failed:
        return Statement("False", failed.reason or Reason.PARITY_FAILED, _text_of(failed))
    if lasting := next(
        (check for check in checks if check.state == "unknown" and check.reason), None
    ):
        return Statement("Unknown", str(lasting.reason), _text_of(lasting))
    if checks and all(check.state == "ok" for check in checks):
        unjudged = (check for check in checks if check.reason is Reason.PARITY_UNKNOWN)
        if unproven := next(unjudged, None):
            return Statement("Unknown", Reason.PARITY_UNKNOWN, _text_of(unproven))
        message = "the golden outputs of every pod match those of the source model"
        if limited := next((check for check in checks if check.reason), None):
            message += f"; {_text_of(limited)}"
        if accepted := next((verdict.accepted for verdict in verdicts if verdict.accepted), ""):
            message += f"; {accepted}"
        return Statement("True", StatusReason.GOLDEN_MATCHES, message)
    return Statement("Unknown", StatusReason.VERIFYING, "not all golden inferences have run yet")


def _placement(verdicts: Sequence[Verdict], promise: Promise) -> Statement:
    checks = _checks(verdicts, Check.PROVIDER) + _checks(verdicts, Check.PLACEMENT)
    if any(check.state == "failed" for check in checks) and (cause := _cause(verdicts)):
        return Statement("False", cause.reason, cause.message)
    worst = max(
        (verdict.fallback for verdict in verdicts if verdict.fallback),
        key=lambda fallback: fallback.nodes_elsewhere,
        default=None,
    )
    if worst is None or any(check.state != "ok" for check in checks):
        message = "the placement of nodes is not known yet for every pod"
        return Statement("Unknown", StatusReason.VERIFYING, message)
    on = worst.nodes_total - worst.nodes_elsewhere
    backend = "the chosen backend"
    if worst.kind == "BackendFallback":
        backend = promise.asked_backend or "the requested backend"
    message = f"{on} of {worst.nodes_total} nodes run on {backend}"
    if worst.nodes_elsewhere:
        message += f"; {worst.message}"
    return Statement("True", StatusReason.PROMISE_KEPT, message)


def _fallback(verdicts: Sequence[Verdict]) -> Statement:
    fallbacks = [verdict.fallback for verdict in verdicts if verdict.fallback]
    active = [fallback for fallback in fallbacks if fallback.active]
    if active and (cause := _cause(verdicts)):
        reported = min(active, key=lambda verdict: verdict.reason is not cause.reason)
        return Statement("True", cause.reason, reported.message)
    if len(fallbacks) < len(verdicts):
        message = "whether nodes fall back is not known yet for every pod"
        return Statement("Unknown", StatusReason.VERIFYING, message)
    if any(fallback.nodes_elsewhere for fallback in fallbacks):
        message = "the fallback is within the budget of spec.fallback"
        return Statement("False", StatusReason.WITHIN_BUDGET, message)
    return Statement("False", StatusReason.NO_FALLBACK, "")


def _cause(verdicts: Sequence[Verdict]) -> Finding | None:
    """Return why nodes run elsewhere: the cause, of all pods, that conditions report."""
    checks = (verdict for check in _PLACEMENT for verdict in _checks(verdicts, check))
    reported = [
        (verdict.reason, verdict.message) for verdict in checks if verdict.state == "failed"
    ]
    fallbacks = (verdict.fallback for verdict in verdicts if verdict.fallback)
    reported += [(fallback.reason, fallback.message) for fallback in fallbacks if fallback.active]
    return causes.first(
        [Finding(reason=reason or Reason.NODE_FALLBACK, cause=cause) for reason, cause in reported]
    )


def _find_broken(verdicts: Sequence[Verdict], promise: Promise) -> Statement | None:
    anywhere = {Check.SERVER, Check.GOLDEN} if promise.policy == "Allow" else None
    failed = _most_specific(
        check
        for verdict in verdicts
        for check in _list_failed(
            verdict, anywhere or _require_checks(verdict, promise, serves=True)
        )
    )
    if failed is None:
        return None
    if failed.check in _PLACEMENT and (cause := _cause(verdicts)):
        return Statement("False", cause.reason, cause.message)
    return Statement("False", failed.reason or StatusReason.PROMISE_BROKEN, _text_of(failed))


def _placement_summary(verdicts: Sequence[Verdict], promise: Promise) -> str:
    parts = []
    for verdict in verdicts:
        fallback = verdict.fallback
        if fallback is None:
            continue
        # a lower-ranked one serves: none of its nodes count as running where they were promised
        is_lower = fallback.kind == "BackendFallback"
        backend = promise.asked_backend if is_lower else verdict.backend
        if backend is None:  # the record of what was promised is lost
            continue
        share = fallback.compute_share
        if share is None:
            total = fallback.nodes_total
            share = fallback.nodes_elsewhere / total if total else 0.0
        parts.append((1 - share, backend))
    if not parts:
        return ""
    on, backend = min(parts)
    # 99.6% must not be shown as 100%, nor 0.4% as 0%.
    percent = round(on * 100)
    percent = min(percent, 99) if on < 1 else percent
    percent = max(percent, 1) if on > 0 else percent
    return f"{percent}% {backend}"


def _p99(verdicts: Sequence[Verdict]) -> str:
    """Return the slowest pod's baseline with two digits, since it varies slightly between starts."""
    measured = (verdict.baseline.p99 for verdict in verdicts if verdict.baseline)
    seconds = max((item for item in measured if item is not None), default=None)
    if seconds is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            value = seconds * factor
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return f"{max(1, round(seconds * 1e6, -1)):.0f}us"


def _text_of(check: CheckVerdict) -> str:
    return check.finding.message if check.finding else check.message


def current_proofs(facts: Facts, revision: str) -> Proofs | None:
    """Return the proofs for a revision, as reported before until the verdicts of its pods are known."""
    promise = promise_of(facts, revision) or Promise()
    mine = [pod for pod in serving_pods(facts.pods, revision) if not pod.leaving]
    relevant = [pod for pod in mine if pod.ready or _was_admitted(facts.verdicts, pod)] or mine
    verdicts = [facts.verdicts[pod.name] for pod in relevant if pod.name in facts.verdicts]
    proven = proofs(verdicts, promise)
    silent = [pod for pod in relevant if pod.name in facts.silent]
    status = facts.model.status
    if silent and not (proven and proven.any_failed):
        return _report_unknown(status, silent, len(relevant))
    before = status.serving.revision if status.serving else status.revision
    reported = _from_status(status) if mine and before == revision else None
    if proven is None or reported is None:
        return proven or reported
    # Until all pods were polled, as after a restart, only failures are reported.
    if len(verdicts) < len(relevant):
        return _worse(reported, proven) if proven.any_failed else reported
    # A reported failure stays while the pod that it came from may not have been polled yet.
    is_pending = any(_is_pending(facts.verdicts, facts.silent, pod) for pod in mine)
    return reported if reported.any_failed and not proven.any_failed and is_pending else proven


def _worse(reported: Proofs, proven: Proofs) -> Proofs:
    """Return the failures of some pods if they change a status; measurements wait for all pods, else they change twice."""
    if _statuses(reported) == _statuses(proven):
        return reported
    return replace(proven, placement_summary=reported.placement_summary, p99=reported.p99)


def _statuses(proven: Proofs) -> tuple[str | None, ...]:
    statements = (proven.parity, proven.placement, proven.fallback, proven.broken)
    return tuple(statement.status if statement else None for statement in statements)


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


def _from_status(status: InferenceModelStatus) -> Proofs | None:
    """Return the proofs in the status, the newest that an operator has which has just started."""
    reported = {condition.type: condition for condition in status.conditions}
    kinds = (
        ConditionType.PARITY_VERIFIED,
        ConditionType.PLACEMENT_VERIFIED,
        ConditionType.FALLBACK_ACTIVE,
    )
    if not all(kind in reported for kind in kinds):
        return None
    parity, placement, fallback = (_statement(reported[kind]) for kind in kinds)
    ready = reported.get(ConditionType.READY)
    reason = ready.reason if ready and ready.status == "False" else None
    failed = (one for one in (parity, placement) if one.status == "False" and one.reason == reason)
    summary = status.summary
    return Proofs(parity, placement, fallback, next(failed, None), summary.placement, summary.p99)


def _report_unknown(status: InferenceModelStatus, silent: Sequence[PodView], pods: int) -> Proofs:
    """Return that the state is unknown, because the last verdicts of the pods are too old."""
    message = (
        f"the sidecars of {len(silent)} of {pods} pods have not responded to the operator for five minutes:"
        f" {explain_silence(silent)}"
    )
    unknown = Statement("Unknown", StatusReason.SIDECAR_UNREACHABLE, message)
    summary = status.summary
    return Proofs(unknown, unknown, unknown, None, summary.placement, summary.p99)


def _statement(condition: Condition) -> Statement:
    return Statement(condition.status, condition.reason, condition.message)
