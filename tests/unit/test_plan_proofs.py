"""What verdicts prove, in words: the worst pod speaks for the model."""

import pytest
from enginewright.plan.pods import Failure
from enginewright.plan.rollout.proofs import Proofs, proofs, refusal
from enginewright_contract.execution import Baseline
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Promise
from enginewright_contract.verdict import Check, CheckVerdict, FallbackVerdict, Verdict

from tests.support.optional import present
from tests.support.plan_objects import verdict

FORBID = Promise()
ALLOW = Promise(policy="Allow")
BUDGET = Promise(policy="Budget")


def elsewhere(
    nodes: int, share: float | None, *, total: int = 200, active: bool = True
) -> FallbackVerdict:
    return FallbackVerdict(
        active=active,
        kind="NodeFallback" if active else None,
        message=f"{nodes} elsewhere",
        nodes_total=total,
        nodes_elsewhere=nodes,
        compute_share=share,
    )


def proven(verdicts: list[Verdict], promise: Promise) -> Proofs:
    return present(proofs(verdicts, promise))


def refuse(given: Verdict, promise: Promise) -> Failure:
    return present(refusal(given, promise))


def test_no_verdict_proves_nothing() -> None:
    assert proofs([], FORBID) is None


def test_one_pod_that_has_not_looked_yet_leaves_it_unknown() -> None:
    blind = verdict().model_copy(
        update={"checks": tuple(CheckVerdict(check=check) for check in Check), "fallback": None}
    )
    proof = proven([verdict(), blind], FORBID)
    assert proof.parity.status == proof.placement.status == proof.fallback.status == "Unknown"
    assert proof.broken is None


def test_golden_inferences_that_compare_nothing_verify_nothing() -> None:
    checks = tuple(
        CheckVerdict(check=Check.GOLDEN, reason=Reason.NOTHING_COMPARED, message="no output")
        if check.check is Check.GOLDEN
        else check
        for check in verdict().checks
    )
    proof = proven([verdict(), verdict().model_copy(update={"checks": checks})], FORBID)
    assert (proof.parity.status, proof.parity.reason) == ("Unknown", "NothingCompared")
    assert "export with at least one output that is the same in every run" in proof.parity.message


def test_an_output_of_which_nothing_is_compared_is_named_beside_those_that_match() -> None:
    partly = CheckVerdict(
        check=Check.GOLDEN,
        state="ok",
        reason=Reason.NOTHING_COMPARED,
        message="2 golden samples passed; no element of output 'boxes' was compared",
    )
    checks = tuple(partly if check.check is Check.GOLDEN else check for check in verdict().checks)
    proof = proven([verdict(), verdict().model_copy(update={"checks": checks})], FORBID)
    assert (proof.parity.status, proof.parity.reason) == ("True", "GoldenMatches")
    assert "no element of output 'boxes' was compared" in proof.parity.message
    assert "set spec.parity.samples" in proof.parity.message
    assert proof.broken is None
    assert not proof.any_failed


UNJUDGED = (
    "1 golden sample passed; 2 of 84 indices of axis 1 (4, 7) of output 'dets' do not vary enough"
)


def leave_unjudged(*, accepted: str = "") -> Verdict:
    """Return the verdict on a pod whose samples do not judge parts of an output."""
    unjudged = CheckVerdict(
        check=Check.GOLDEN, state="ok", reason=Reason.PARITY_UNKNOWN, message=UNJUDGED
    )
    passed = verdict().model_copy(update={"accepted": accepted})
    if accepted:
        return passed
    checks = tuple(unjudged if check.check is Check.GOLDEN else check for check in passed.checks)
    return passed.model_copy(update={"checks": checks})


def test_parts_that_no_sample_judges_leave_parity_unknown_and_break_nothing() -> None:
    proof = proven([verdict(), leave_unjudged()], FORBID)
    assert (proof.parity.status, proof.parity.reason) == ("Unknown", "ParityUnknown")
    assert proof.parity.message == f"{UNJUDGED}; {Reason.PARITY_UNKNOWN.remedy}"
    assert proof.broken is None
    assert not proof.any_failed
    assert refusal(leave_unjudged(), FORBID) is None


def test_wrong_outputs_of_another_pod_are_reported_before_parts_that_are_not_judged() -> None:
    wrong = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    proof = proven([leave_unjudged(), wrong], FORBID)
    assert (proof.parity.status, proof.parity.reason) == ("False", "ParityFailed")


def test_parts_that_are_accepted_are_named_beside_those_that_match() -> None:
    proof = proven([verdict(), leave_unjudged(accepted="spec accepts two parts")], FORBID)
    assert (proof.parity.status, proof.parity.reason) == ("True", "GoldenMatches")
    assert proof.parity.message.endswith("; spec accepts two parts")


def test_the_worst_pod_speaks() -> None:
    proof = proven(
        [verdict(), verdict(fallback=elsewhere(8, 0.25), p99=0.034), verdict(p99=0.02)], ALLOW
    )
    assert proof.placement_summary == "75% cpu"
    assert proof.p99 == "34ms"
    assert (proof.fallback.status, proof.fallback.message) == ("True", "8 elsewhere")


@pytest.mark.parametrize(
    ("nodes", "share", "shown"),
    [
        (0, 0.0, "100% cpu"),
        (1, 0.0001, "99% cpu"),
        (199, 0.9999, "1% cpu"),
        (200, 1.0, "0% cpu"),
        (50, None, "75% cpu"),
        (0, None, "100% cpu"),
    ],
)
def test_share_is_never_rounded_to_all_or_none(nodes: int, share: float | None, shown: str) -> None:
    proof = proven([verdict(fallback=elsewhere(nodes, share))], ALLOW)
    assert proof.placement_summary == shown


@pytest.mark.parametrize(
    ("asked", "summary", "start"),
    [
        ("openvino", "0% openvino", "105 nodes run on openvino; "),
        (None, "", "105 nodes run on the requested backend; "),
    ],
    ids=["known", "lost"],
)
def test_lower_backend_has_no_share(asked: str | None, summary: str, start: str) -> None:
    lower = FallbackVerdict(
        active=True,
        kind="BackendFallback",
        reason=Reason.BACKEND_FALLBACK,
        message="backend openvino was requested",
        nodes_total=105,
        nodes_elsewhere=105,
        compute_share=1.0,
    )
    proof = proven([verdict("cpu", lower)], Promise(policy="Allow", asked_backend=asked))
    assert proof.placement_summary == summary
    assert proof.placement.message.startswith(f"0 of {start}")


FEW = verdict(p99=None).model_copy(update={"baseline": Baseline(p50=1.0, samples=5)})


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        ([verdict(p99=2.34)], "2.3s"),
        ([verdict(p99=12.2)], "12s"),
        ([verdict(p99=0.0124)], "12ms"),
        ([verdict(p99=0.0012)], "1.2ms"),
        ([verdict(p99=0.000243)], "240us"),
        ([verdict(p99=0.000001)], "1us"),
        ([verdict(p99=None)], ""),
        ([FEW], ""),  # too few runs for a percentile
        ([FEW, verdict(p99=0.012)], "12ms"),
    ],
)
def test_the_baseline_is_shown_in_two_digits(verdicts: list[Verdict], shown: str) -> None:
    assert proven(verdicts, FORBID).p99 == shown


@pytest.mark.parametrize("check", [Check.PROVIDER, Check.PLACEMENT, Check.VERSIONS])
def test_a_broken_promise_counts_unless_it_is_allowed(check: Check) -> None:
    wrong = [verdict(failed={check: Reason.SESSION_REPLACED})]
    forbidden, allowed = proofs(wrong, FORBID), proofs(wrong, ALLOW)
    assert forbidden is not None
    assert allowed is not None
    assert forbidden.broken is not None
    assert forbidden.broken.reason == "SessionReplaced"
    assert forbidden.broken.message.endswith(Reason.SESSION_REPLACED.remedy)
    assert allowed.broken is None


@pytest.mark.parametrize("promise", [FORBID, ALLOW])
def test_wrong_answers_are_never_allowed(promise: Promise) -> None:
    proof = proven([verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})], promise)
    assert proof.broken is not None
    assert proof.parity.status == "False"


@pytest.mark.parametrize("check", [Check.PROBE_LATENCY, Check.LIVE_LATENCY, Check.ERRORS])
def test_slowness_and_errors_alert_and_take_nothing_away(check: Check) -> None:
    proof = proven([verdict(failed={check: Reason.SLOWER_THAN_BASELINE})], FORBID)
    assert proof.broken is None
    assert refusal(verdict(failed={check: Reason.SLOWER_THAN_BASELINE}), FORBID) is None


def test_the_cause_is_reported_before_its_consequence() -> None:
    said = verdict(
        failed={
            Check.GOLDEN: Reason.PARITY_FAILED,
            Check.PLACEMENT: Reason.NODE_FALLBACK,
            Check.PROVIDER: Reason.DRIVER_MISSING,
        }
    )
    failure = refuse(said, FORBID)
    assert failure.reason is Reason.DRIVER_MISSING


def test_within_a_budget_nothing_is_active() -> None:
    proof = proven([verdict(fallback=elsewhere(3, 0.01, active=False))], FORBID)
    assert (proof.fallback.status, proof.fallback.reason) == ("False", "WithinBudget")
    assert "197 of 200 nodes" in proof.placement.message


def test_a_refusal_is_the_checks_finding_with_the_reasons_remedy() -> None:
    check = CheckVerdict(
        check=Check.PROVIDER, state="failed", reason=Reason.DRIVER_MISSING, message="no libcuda"
    )
    said: Verdict = verdict().model_copy(
        update={"checks": (check,), "baseline": Baseline(p50=1, p90=1, p99=1, samples=1)}
    )
    failure = refuse(said, FORBID)
    assert failure.finding.cause == "no libcuda"
    assert failure.finding.advice == Reason.DRIVER_MISSING.remedy


def lose_provider(check: Check, reason: Reason) -> Verdict:
    changed = CheckVerdict(check=check, state="failed", reason=reason, message="CUDA failure 700")
    given = verdict()
    checks = tuple(
        changed if check_verdict.check is check else check_verdict for check_verdict in given.checks
    )
    return given.model_copy(update={"checks": checks})


@pytest.mark.parametrize("check", [Check.SERVER, Check.GOLDEN])
@pytest.mark.parametrize("promise", [FORBID, ALLOW])
def test_idle_server_is_broken_and_not_wrong(check: Check, promise: Promise) -> None:
    given = lose_provider(check, Reason.DEVICE_LOST)
    proof = proven([verdict(), given], promise)
    assert proof.broken is not None
    assert (proof.broken.status, proof.broken.reason) == ("False", Reason.DEVICE_LOST)
    assert proof.broken.message == f"CUDA failure 700; {Reason.DEVICE_LOST.remedy}"
    assert proof.any_failed
    assert proof.parity.status != "False"
    failure = refuse(given, FORBID)
    assert failure.reason is Reason.DEVICE_LOST


@pytest.mark.parametrize("promise", [ALLOW, BUDGET])
def test_revision_that_lost_its_provider_is_refused(promise: Promise) -> None:
    without, replaced = (
        verdict(failed={Check.PROVIDER: reason})
        for reason in (Reason.PROVIDER_MISSING, Reason.SESSION_REPLACED)
    )
    assert refusal(without, promise) is None
    failure = refuse(replaced, promise)
    assert failure.reason is Reason.SESSION_REPLACED
    proof = proven([replaced], promise)
    assert proof.broken is None, "what serves keeps the policy"


def test_a_reason_of_a_later_version_hides_no_known_one() -> None:
    of_later = CheckVerdict(check=Check.DISTRIBUTION, state="failed", message="of a later version")
    wrong = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    others = tuple(check for check in wrong.checks if check.check is not Check.DISTRIBUTION)
    failure = refuse(wrong.model_copy(update={"checks": (of_later, *others)}), FORBID)
    assert failure.reason is Reason.PARITY_FAILED
    assert refusal(wrong.model_copy(update={"checks": (of_later,)}), FORBID) is None


# of a pod of an earlier release, which ran such requests on the CPU
OUT_OF_PROFILE = FallbackVerdict(
    active=True,
    reason=Reason.OUT_OF_PROFILE,
    message="requests run on CPUExecutionProvider",
    policy="Allow",
    nodes_total=200,
)


def test_requests_that_earlier_releases_run_on_the_cpu_are_a_fallback_that_breaks_nothing() -> None:
    proof = proven([verdict(), verdict(fallback=OUT_OF_PROFILE)], ALLOW)
    assert (proof.fallback.status, proof.fallback.reason) == ("True", "OutOfProfile")
    assert proof.fallback.message == OUT_OF_PROFILE.message
    assert (proof.placement.status, proof.placement.reason) == ("True", "PromiseKept")
    assert proof.placement_summary.startswith("100%")
    assert proof.broken is None
    assert refusal(verdict(fallback=OUT_OF_PROFILE), ALLOW) is None


def test_nodes_of_one_pod_are_reported_before_requests_of_another() -> None:
    nodes = elsewhere(8, 0.25).model_copy(update={"reason": Reason.NODE_FALLBACK})
    proof = proven([verdict(fallback=OUT_OF_PROFILE), verdict(fallback=nodes)], ALLOW)
    assert (proof.fallback.reason, proof.fallback.message) == ("NodeFallback", "8 elsewhere")


def test_a_server_that_is_down_speaks_through_its_pod() -> None:
    given = lose_provider(Check.SERVER, Reason.SERVER_DOWN)
    assert refusal(given, FORBID) is None
    proof = proven([given], FORBID)
    assert proof.broken is None
