"""What the sidecars' verdicts prove about a model: parity, placement, fallback, for its conditions.

A missing verdict, as after a restart of the operator, changes nothing: what was reported before stays
until a newer verdict is known, or a sidecar has not responded for a long time (`current_proofs`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from enginewright_contract import causes
from enginewright_contract.reasons import NOTHING_RUNS, ExitCode, Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import SIDECAR, Promise
from enginewright_contract.verdict import Check, CheckVerdict, Verdict, runs_as_allowed

from enginewright.api.conditions import ConditionStatus, StatusReason
from enginewright.plan.pods import Failure

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
    placement_summary: str  # "97% openvino"; empty: not known
    p99: str  # "12ms"; empty: not known

    @property
    def any_failed(self) -> bool:
        """Whether any check failed, for which one pod is enough."""
        return (
            "False" in (self.parity.status, self.placement.status)
            or self.fallback.status == "True"
            or self.broken is not None
        )


def refusal(verdict: Verdict, promise: Promise) -> Failure | None:
    """Return why a sidecar does not admit its pod; None: no check has failed for a known reason.

    Args:
        verdict: of the pod.
        promise: of its revision.
    """
    failed = _failed(verdict, _required(verdict, promise, serves=False))
    # one that failed for a reason that only later versions know has none
    found = _most_specific(each for each in failed if each.finding)
    if found is None or found.finding is None:
        return None
    return Failure(
        stage=SIDECAR,
        finding=found.finding,
        finished_at="",
        exit_code=ExitCode.PERMANENT,
    )


def proofs(verdicts: Iterable[Verdict], promise: Promise) -> Proofs | None:
    """Return what the verdicts of the serving pods prove; None without verdicts."""
    known = tuple(verdicts)
    if not known:
        return None
    return Proofs(
        parity=_parity(known),
        placement=_placement(known, promise),
        fallback=_fallback(known),
        broken=_broken(known, promise),
        placement_summary=_placement_summary(known, promise),
        p99=_p99(known),
    )


def _checks(verdicts: Iterable[Verdict], check: Check) -> list[CheckVerdict]:
    return [each for verdict in verdicts for each in verdict.checks if each.check is check]


def _required(verdict: Verdict, promise: Promise, *, serves: bool) -> set[Check]:
    """Return the checks that must pass: not that of a provider without which the pod may run.

    If its revision `serves`, the pod may also have lost that provider since it was admitted.
    """
    placed = _checks([verdict], Check.PLACEMENT)
    lost = None if serves else _reason_of(verdict, Check.PROVIDER)
    allowed = any(runs_as_allowed(promise.policy, each.state, lost) for each in placed)
    return set(_GATES) - ({Check.PROVIDER} if allowed else set())


def _reason_of(verdict: Verdict, check: Check) -> Reason | None:
    return next((each.reason for each in _checks([verdict], check)), None)


def _failed(verdict: Verdict, checks: Collection[Check]) -> list[CheckVerdict]:
    return [
        each
        for each in verdict.checks
        if each.check in checks
        and each.state == "failed"
        and (each.check is not Check.SERVER or each.reason in NOTHING_RUNS)
    ]


def _most_specific(failed: Iterable[CheckVerdict]) -> CheckVerdict | None:
    """Return the most specific failed check: causes before their consequences.

    A replaced session lacks its provider too, but its replacement is the cause.
    """
    return min(
        failed,
        key=lambda each: (each.reason is not Reason.SESSION_REPLACED, _GATES.index(each.check)),
        default=None,
    )


def _parity(verdicts: tuple[Verdict, ...]) -> Statement:
    checks = _checks(verdicts, Check.GOLDEN)
    failed = next((each for each in checks if each.state == "failed"), None)
    if failed and failed.reason in NOTHING_RUNS:
        return Statement("Unknown", failed.reason, _text_of(failed))  # no outputs to compare
    if failed:
        return Statement("False", failed.reason or Reason.PARITY_FAILED, _text_of(failed))
    if lasting := next((each for each in checks if each.state == "unknown" and each.reason), None):
        return Statement("Unknown", str(lasting.reason), _text_of(lasting))
    if checks and all(each.state == "ok" for each in checks):
        return Statement(
            "True",
            StatusReason.GOLDEN_MATCHES,
            "the golden outputs of every pod match those of the source model",
        )
    return Statement("Unknown", StatusReason.VERIFYING, "not all golden inferences have run yet")


def _placement(verdicts: tuple[Verdict, ...], promise: Promise) -> Statement:
    checks = _checks(verdicts, Check.PROVIDER) + _checks(verdicts, Check.PLACEMENT)
    if any(each.state == "failed" for each in checks) and (found := _cause(verdicts)):
        return Statement("False", found.reason, found.message)
    worst = max(
        (each.fallback for each in verdicts if each.fallback),
        key=lambda each: each.nodes_elsewhere,
        default=None,
    )
    if worst is None or any(each.state != "ok" for each in checks):
        return Statement(
            "Unknown",
            StatusReason.VERIFYING,
            "the placement of nodes is not known yet for every pod",
        )
    on = worst.nodes_total - worst.nodes_elsewhere
    backend = "the chosen backend"
    if worst.kind == "BackendFallback":
        backend = promise.asked_backend or "the requested backend"
    message = f"{on} of {worst.nodes_total} nodes run on {backend}"
    if worst.nodes_elsewhere:
        message += f"; {worst.message}"
    return Statement("True", StatusReason.PROMISE_KEPT, message)


def _fallback(verdicts: tuple[Verdict, ...]) -> Statement:
    known = [each.fallback for each in verdicts if each.fallback]
    active = [each for each in known if each.active]
    if active and (found := _cause(verdicts)):
        reported = min(active, key=lambda each: each.reason is not found.reason)
        return Statement("True", found.reason, reported.message)
    if len(known) < len(verdicts):
        return Statement(
            "Unknown",
            StatusReason.VERIFYING,
            "whether nodes fall back is not known yet for every pod",
        )
    if any(each.nodes_elsewhere for each in known):
        return Statement(
            "False",
            StatusReason.WITHIN_BUDGET,
            "the fallback is within the budget of spec.fallback",
        )
    return Statement("False", StatusReason.NO_FALLBACK, "")


def _cause(verdicts: Iterable[Verdict]) -> Finding | None:
    """Return why nodes run elsewhere: the cause, of all pods, that conditions report."""
    known = tuple(verdicts)
    found = [
        Finding(reason=each.reason or Reason.NODE_FALLBACK, cause=each.message)
        for check in _PLACEMENT
        for each in _checks(known, check)
        if each.state == "failed"
    ]
    for verdict in known:
        if verdict.fallback and verdict.fallback.active:
            reason = verdict.fallback.reason or Reason.NODE_FALLBACK
            found.append(Finding(reason=reason, cause=verdict.fallback.message))
    return causes.first(found)


def _broken(verdicts: tuple[Verdict, ...], promise: Promise) -> Statement | None:
    """Return why a model is not ready although it has all its pods; None if it is ready."""
    anywhere = {Check.SERVER, Check.GOLDEN} if promise.policy == "Allow" else None
    failed = _most_specific(
        found
        for each in verdicts
        for found in _failed(each, anywhere or _required(each, promise, serves=True))
    )
    if failed is None:
        return None
    if failed.check in _PLACEMENT and (found := _cause(verdicts)):
        return Statement("False", found.reason, found.message)
    return Statement("False", failed.reason or StatusReason.PROMISE_BROKEN, _text_of(failed))


def _placement_summary(verdicts: tuple[Verdict, ...], promise: Promise) -> str:
    parts = []
    for verdict in verdicts:
        found = verdict.fallback
        if found is None:
            continue
        # a lower-ranked one serves: none of its nodes count as running where they were promised
        backend = promise.asked_backend if found.kind == "BackendFallback" else verdict.backend
        if backend is None:  # the record of what was promised is lost
            continue
        share = found.compute_share
        if share is None:
            share = found.nodes_elsewhere / found.nodes_total if found.nodes_total else 0.0
        parts.append((1 - share, backend))
    if not parts:
        return ""
    on, backend = min(parts)
    # 99.6% must not be shown as 100%, nor 0.4% as 0%.
    percent = round(on * 100)
    percent = min(percent, 99) if on < 1 else percent
    percent = max(percent, 1) if on > 0 else percent
    return f"{percent}% {backend}"


def _p99(verdicts: tuple[Verdict, ...]) -> str:
    """Return the slowest pod's baseline with two digits, since it varies slightly between starts."""
    known = (each.baseline.p99 for each in verdicts if each.baseline)
    seconds = max((each for each in known if each is not None), default=None)
    if seconds is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            value = seconds * factor
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return f"{max(1, round(seconds * 1e6, -1)):.0f}us"


def _text_of(found: CheckVerdict) -> str:
    return found.finding.message if found.finding else found.message
