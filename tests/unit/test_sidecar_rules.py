"""The sidecar's decisions: what counts for how long, who is admitted, what is slow. No IO."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright_contract.execution import Driver, Execution, PlacementFacts
from enginewright_contract.manifest import (
    OutputParity,
    Partition,
    TensorSpec,
    UnjudgedParts,
    VaryingOutput,
)
from enginewright_contract.measurements import PROBING_SECONDS
from enginewright_contract.processors import Feature, Processor
from enginewright_contract.reasons import Reason
from enginewright_contract.status_codes import LOAD
from enginewright_contract.task import OutputTolerance, Policy, Promise, ServeTask
from enginewright_contract.verdict import RELEASE_SECONDS, Check, CheckState, CheckVerdict
from enginewright_serving.sidecar import execution_checks
from enginewright_serving.sidecar.checks import CheckBoard, CheckResult
from enginewright_serving.sidecar.errors import ErrorShare, response_counts
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.golden_results import GoldenResults
from enginewright_serving.sidecar.pod_state import OF_EXECUTION, PodState
from enginewright_serving.sidecar.readiness import Gate, seconds_left
from enginewright_serving.sidecar.settings import INTERVALS
from enginewright_serving.sidecar.trend import BASELINE_PROBES, LOWERING_LEAST

from tests.support import manifests
from tests.support.optional import present

CPU = "CPUExecutionProvider"
GPU = "CUDAExecutionProvider"
TASK = ServeTask(model="m", revision="r", prepared_key="a" * 64, backend="cuda")
MANIFEST = manifests.manifest(
    recipe=manifests.CPU_RECIPE.model_copy(update={"backend": "cuda"}),
    nodes=4,
    inputs=(TensorSpec(name="x", dtype="float32", shape=(1,)),),
)
ENGINE = manifests.engine_info(
    partitions=(Partition(context_node="e0", nodes=("a (Conv)", "b (Relu)", "c (Conv)")),),
    nodes_accelerated=3,
)


def execution(**changes: Any) -> Execution:
    """Return what a server says that runs all four nodes where it should."""
    fields: dict[str, Any] = {
        "model": "m",
        "revision": "r",
        "backend": "cuda",
        "provider": GPU,
        "providers": (GPU, CPU),
        "session": 1,
        "placement": PlacementFacts(nodes={GPU: 4}),
        "driver": Driver(needed=True, present=True, version="580.1"),
        "model_digest": "d" * 64,
        "prepared_key": "a" * 64,
        "opset": 17,
        "ort_distributions": ("onnxruntime-gpu",),
        "ort_version": "1.31.1",
        "backend_version": "13.0",
        "runtime_version": "0.1.0",
    }
    return Execution.model_validate({**fields, **changes})


MIXED = PlacementFacts(nodes={GPU: 3, CPU: 1}, elsewhere=("det (Det)",))


# For how long a finding counts.


def test_every_check_is_unknown_until_it_has_run() -> None:
    assert {check.state for check in CheckBoard().verdicts(0.0)} == {"unknown"}
    assert [check.check for check in CheckBoard().verdicts(0.0)] == list(Check)


@pytest.mark.parametrize(
    "outcome", [CheckResult.as_ok(), CheckResult.as_failed(Reason.PARITY_FAILED, "wrong")]
)
def test_a_finding_is_unknown_again_when_it_is_old(outcome: CheckResult) -> None:
    board = CheckBoard()
    board.record(Check.GOLDEN, outcome, 10.0)
    assert board.verdict(Check.GOLDEN, 10.0).state == outcome.state
    assert board.verdict(Check.GOLDEN, 10.1) == CheckVerdict(
        check=Check.GOLDEN, message="not checked recently"
    )


def test_a_run_that_finds_nothing_leaves_the_last_finding_for_its_time() -> None:
    board = CheckBoard()
    board.record(Check.GOLDEN, CheckResult.as_ok("right"), 10.0)
    board.miss(Check.GOLDEN, "too busy")
    assert board.verdict(Check.GOLDEN, 9.0).message == "right"
    assert board.verdict(Check.GOLDEN, 11.0).message == "too busy"


def test_failures_are_counted_by_check() -> None:
    board = CheckBoard()
    board.record(Check.GOLDEN, CheckResult.as_failed(Reason.PARITY_FAILED, ""), 1.0)
    board.record(Check.GOLDEN, CheckResult.as_ok(), 1.0)
    board.record(Check.GOLDEN, CheckResult.as_ok(), 1.0)
    assert board.failures[Check.GOLDEN] == 1
    assert set(board.failures) == set(Check)


def test_the_table_of_intervals_is_whole() -> None:
    assert set(INTERVALS) == set(Check)


# Admission and what ends it.


def checks(default: CheckState = "ok", /, **states: str) -> Mapping[Check, CheckVerdict]:
    return {
        check: CheckVerdict.model_validate(
            {"check": check, "state": states.get(check.name.lower(), default)}
        )
        for check in Check
    }


def ready(policy: Policy, seen: Mapping[Check, CheckVerdict], *, foreign: bool = False) -> bool:
    return Gate(policy).decide(seen, foreign=foreign, released=False)


NOT_OK: tuple[CheckState, ...] = ("unknown", "failed")
GATES = ("server", "provider", "placement", "distribution", "versions", "golden")


@pytest.mark.parametrize("policy", ["Forbid", "Budget", "Allow"])
def test_a_pod_is_admitted_when_all_is_proven(policy: Policy) -> None:
    without_traffic = checks(live_latency="unknown", errors="unknown", probe_latency="unknown")
    assert ready(policy, without_traffic)
    slow = checks(live_latency="failed", errors="failed", probe_latency="failed")
    assert ready(policy, slow)


@pytest.mark.parametrize("state", NOT_OK)
@pytest.mark.parametrize("gate", GATES)
def test_under_forbid_every_proof_must_be_ok(gate: str, state: CheckState) -> None:
    for foreign in (False, True):
        assert not ready("Forbid", checks(**{gate: state}), foreign=foreign)


@pytest.mark.parametrize("policy", ["Budget", "Allow"])
@pytest.mark.parametrize("gate", GATES)
def test_only_checks_of_our_server_may_be_unknown(policy: Policy, gate: str) -> None:
    assert not ready(policy, checks(**{gate: "unknown"}))
    told_by_ours = gate not in ("server", "golden")
    assert ready(policy, checks(**{gate: "unknown"}), foreign=True) is told_by_ours


@pytest.mark.parametrize("policy", ["Budget", "Allow"])
def test_failed_provider_is_allowed_with_its_placement(policy: Policy) -> None:
    assert ready(policy, checks(provider="failed"))
    for state in ("failed", "unknown"):
        assert not ready(policy, checks(provider="failed", placement=state))
        assert not ready(policy, checks(provider="failed", placement=state), foreign=True)


@pytest.mark.parametrize("policy", ["Budget", "Allow"])
def test_replaced_session_only_keeps_its_admission(policy: Policy) -> None:
    replaced = CheckVerdict(
        check=Check.PROVIDER, state="failed", reason=Reason.SESSION_REPLACED, message="moved"
    )
    seen = {**checks(), Check.PROVIDER: replaced}
    assert not ready(policy, seen)
    assert admit(policy).decide(seen, foreign=False, released=True)


def admit(policy: Policy = "Forbid") -> Gate:
    gate = Gate(policy)
    assert gate.decide(checks(), foreign=False, released=False)
    return gate


@pytest.mark.parametrize("policy", ["Forbid", "Budget", "Allow"])
def test_wrong_answer_ends_admission_until_a_right_one(policy: Policy) -> None:
    gate = admit(policy)
    assert not gate.decide(checks(golden="failed"), foreign=False, released=False)
    assert not gate.decide(checks(golden="unknown"), foreign=False, released=False)
    assert gate.decide(checks(golden="ok"), foreign=False, released=False)
    assert gate.admitted


@pytest.mark.parametrize("check", [check for check in Check if check is not Check.GOLDEN])
@pytest.mark.parametrize("state", ["failed", "unknown"])
def test_after_admission_nothing_else_does(check: Check, state: CheckState) -> None:
    seen = checks(**{check.name.lower(): state})
    assert admit().decide(seen, foreign=False, released=False)


def test_after_admission_everything_may_become_unknown() -> None:
    assert admit().decide(checks("unknown"), foreign=False, released=True)


@pytest.mark.parametrize("gate_check", ["placement", "provider"])
def test_a_broken_promise_ends_it_while_the_operator_lets_the_pod_go(gate_check: str) -> None:
    gate = admit()
    broken = checks(**{gate_check: "failed"})
    assert gate.decide(broken, foreign=False, released=False)
    assert not gate.decide(broken, foreign=False, released=True)
    unknown = checks(**{gate_check: "unknown"})
    assert not gate.decide(unknown, foreign=False, released=True)
    assert gate.decide(unknown, foreign=False, released=False)
    assert gate.decide(checks(), foreign=False, released=True)


@pytest.mark.parametrize("policy", ["Budget", "Allow"])
def test_only_forbid_lets_a_pod_go(policy: Policy) -> None:
    assert admit(policy).decide(checks(placement="failed"), foreign=False, released=True)


def test_a_new_process_needs_a_new_admission() -> None:
    gate = admit()
    gate.restart()
    assert not gate.decide(checks("unknown"), foreign=False, released=False)
    assert gate.decide(checks(), foreign=False, released=False)


# Errors.

EXPOSITION = b"""# TYPE enginewright_requests_total counter
enginewright_requests_total{code="200",model="m",revision="r"} 1.2e+06
enginewright_requests_total{code="500",model="m",revision="r"} 3.0
enginewright_requests_created{code="500",model="m",revision="r"} 9.0
"""


def test_answers_are_read_from_the_servers_metrics() -> None:
    assert response_counts(EXPOSITION) == {200: 1.2e6, 500: 3.0}
    assert response_counts(b"nv_inference_count 5\n") is None


@pytest.mark.parametrize(
    ("good", "bad", "state"), [(10, 9, "unknown"), (19, 1, "ok"), (18, 2, "failed")]
)
def test_the_share_of_errors(good: int, bad: int, state: CheckState) -> None:
    share = ErrorShare()
    share.add({200: 1000.0, 500: 500.0}, 0.0)
    share.add({200: 1000.0 + good, 500: 500.0 + bad, 400: 0.0}, 5.0)
    assert share.outcome().state == state
    if state == "failed":
        assert "fail with 500" in share.outcome().message


def test_old_errors_expire_and_a_reset_counter_starts_over() -> None:
    share = ErrorShare()
    share.add({200: 0.0, 500: 0.0}, 0.0)
    share.add({200: 0.0, 500: 100.0}, 5.0)
    share.add({200: 100.0, 500: 100.0}, 65.0)
    share.add({200: 200.0, 500: 100.0}, 70.0)
    assert share.outcome().state == "ok"
    share.add({200: 5.0, 500: 0.0}, 75.0)
    assert share.outcome().state == "unknown"


# fault: Reports | every answer is a 400 and all checks are ok | message of check `errors`; alert
#   EnginewrightRequestsRefused | 1 min; alert 10 min
def test_service_that_refuses_most_requests_says_so() -> None:
    share = ErrorShare()
    share.add({200: 0.0, 400: 0.0, 499: 0.0}, 0.0)
    share.add({200: 40.0, 400: 39.0, 499: 100.0}, 5.0)
    assert (share.outcome().state, "refused" in share.outcome().message) == ("ok", False)
    share.add({200: 40.0, 400: 339.0, 499: 100.0}, 10.0)
    assert share.outcome().state == "ok", "it is no error of the server's"
    assert "more than half are refused as invalid" in share.outcome().message


# fault: Reports | one client's short timeout, or a full queue, makes a pod look broken | check `errors` leaves 503
#   and 504 out and says so; alert EnginewrightOverloaded | 5 min
@pytest.mark.parametrize("code", sorted(LOAD))
def test_load_is_no_error_and_is_reported(code: int) -> None:
    share = ErrorShare()
    share.add({200: 0.0, code: 0.0}, 0.0)
    share.add({200: 96.0, code: 4.0}, 5.0)
    assert (share.outcome().state, "load" in share.outcome().message) == ("ok", False)
    share.add({200: 100.0, code: 50.0}, 10.0)
    assert share.outcome().state == "ok"
    assert "more than 5% are not run, for load (503, 504)" in share.outcome().message


def test_errors_are_a_share_of_the_requests_that_were_run() -> None:
    share = ErrorShare()
    share.add({200: 0.0, 500: 0.0, 503: 0.0}, 0.0)
    share.add({200: 18.0, 500: 2.0, 503: 1000.0}, 5.0)
    assert share.outcome().state == "failed"
    assert "fail with 500; more than 5% are not run" in share.outcome().message


def test_load_alone_says_nothing_about_errors() -> None:
    share = ErrorShare()
    share.add({200: 0.0, 504: 0.0}, 0.0)
    share.add({200: 0.0, 504: 100.0}, 5.0)
    assert share.outcome().state == "unknown"
    assert "not run, for load" in share.outcome().message


# What the server tells of itself.


def check_provider(seen: Execution, backend: str = TASK.backend) -> CheckResult:
    return execution_checks.provider(seen, execution_checks.cause(seen, backend, None))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"providers": (CPU,), "placement": PlacementFacts(nodes={CPU: 4})}, "ProviderMissing"),
        ({"provider_reason": "ProviderRefused", "providers": (CPU,)}, "ProviderRefused"),
        ({"placement": PlacementFacts(nodes={CPU: 4})}, "UnsupportedOperator"),
        ({"driver": Driver(needed=True, present=False)}, "DriverMissing"),
        (
            {"driver": Driver(needed=True, present=False, reason=Reason.DRIVER_TOO_OLD)},
            "DriverTooOld",
        ),
    ],
)
def test_a_provider_that_is_not_there_has_its_reason(changes: Any, reason: str) -> None:
    result = check_provider(execution(**changes))
    assert (result.state, result.reason) == ("failed", reason)
    assert result.message


def test_the_server_does_not_choose_which_provider_is_the_backends() -> None:
    result = check_provider(
        execution(provider=CPU, providers=(CPU,), placement=PlacementFacts(nodes={CPU: 4})), "cuda"
    )
    assert (result.state, result.reason) == ("failed", "ProviderMissing")
    assert CPU in result.message
    assert "CUDAExecutionProvider" in result.message


def test_a_provider_with_nodes_is_there_and_needs_no_driver_unless_it_does() -> None:
    assert check_provider(execution()).state == "ok"
    assert check_provider(execution(driver=Driver(needed=False, present=False))).state == "ok"
    assert check_provider(execution(placement=PlacementFacts(nodes={}))).state == "ok"


@pytest.mark.parametrize(
    ("owners", "state"),
    [
        (("onnxruntime",), "ok"),
        ((), "unknown"),
        (("onnxruntime", "onnxruntime-gpu"), "failed"),
    ],
)
def test_one_distribution_owns_onnx_runtime(owners: tuple[str, ...], state: CheckState) -> None:
    assert execution_checks.distribution(execution(ort_distributions=owners)).state == state


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "other"),
        ("revision", "r0"),
        ("backend", "cpu"),
        ("prepared_key", "b" * 64),
        ("engine_key", "b" * 64),
        ("model_digest", "b" * 64),
        ("opset", 18),
        ("ort_version", "1.24.1"),
    ],
)
def test_running_model_must_be_the_proven_one(field: str, value: object) -> None:
    result = execution_checks.versions(execution(**{field: value}), MANIFEST, TASK)
    assert (result.state, result.reason) == ("failed", Reason.VERSION_MISMATCH)
    assert str(value)[:12] in result.message
    assert execution_checks.versions(execution(), MANIFEST, TASK).state == "ok"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"engine_sha256": "f" * 64}, Reason.ENGINE_CORRUPT),
        ({"backend_version": "10.2"}, Reason.ENGINE_VERSION_MISMATCH),
        ({"engine_key": None}, Reason.VERSION_MISMATCH),
    ],
)
def test_engine_must_be_the_built_one(changes: dict[str, Any], reason: Reason | None) -> None:
    task = TASK.model_copy(update={"backend": "tensorrt", "engine_key": "b" * 64})
    manifest = MANIFEST.model_copy(update={"engine": ENGINE, "key": "b" * 64})
    fields = {
        "backend": "tensorrt",
        "engine_key": "b" * 64,
        "engine_sha256": "e" * 64,
        "backend_version": "10.1",
    }
    result = execution_checks.versions(execution(**{**fields, **changes}), manifest, task)
    assert result.reason is reason
    assert result.state == ("ok" if reason is None else "failed")


# fault: Processors | a server reports another processor than the verification's | check
#   `versions` | 10 s
def test_another_kind_of_processor_is_reported_where_outputs_differ() -> None:
    exact = Processor(architecture="x86_64", features=(Feature.VNNI,), exact_products=True)
    saturating = Processor(architecture="x86_64", features=(Feature.AVX2,), exact_products=False)
    recipe = MANIFEST.recipe.model_copy(update={"int8_products": "exact"})
    proved = MANIFEST.model_copy(update={"processor": exact, "saturable": True, "recipe": recipe})
    result = execution_checks.versions(execution(processor=saturating), proved, TASK)
    assert (result.state, result.reason) == ("failed", Reason.PROCESSOR_MISMATCH)
    assert "x86_64: AVX2" in result.message
    assert execution_checks.versions(execution(processor=exact), proved, TASK).state == "ok"
    harmless = proved.model_copy(update={"saturable": False})
    assert execution_checks.versions(execution(processor=saturating), harmless, TASK).state == "ok"
    assert execution_checks.versions(execution(), proved, TASK).state == "ok"  # a server of before
    came = proved.model_copy(update={"recipe": MANIFEST.recipe})  # quantized: golden decides
    assert execution_checks.versions(execution(processor=saturating), came, TASK).state == "ok"


@pytest.mark.parametrize(
    ("changes", "supported"),
    [({"opset": 26}, True), ({"opset": 27}, False), ({"ort_version": "1.32.0"}, False)],
)
def test_opsets_are_supported_as_the_image_said(changes: Any, supported: bool) -> None:
    assert execution_checks.opset_supported(execution(**changes), MANIFEST) is supported


def test_an_engine_without_a_digest_is_unknown() -> None:
    task = TASK.model_copy(update={"engine_key": "b" * 64})
    manifest = MANIFEST.model_copy(update={"engine": ENGINE})
    result = execution_checks.versions(execution(engine_key="b" * 64), manifest, task)
    assert result.state == "unknown"


def test_nodes_are_counted_with_engines_opened() -> None:
    manifest = MANIFEST.model_copy(update={"engine": ENGINE})
    facts = PlacementFacts(nodes={GPU: 1, CPU: 1}, elsewhere=("det (Det)",), context_nodes=("e0",))
    seen = execution(placement=facts)
    elsewhere = execution_checks.fallback(seen, manifest, TASK, None)
    assert execution_checks.original_nodes(facts, GPU, elsewhere) == {GPU: 3, CPU: 1}


# All of it together, in given time.


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Pod:
    """Findings with a clock, and what a healthy server would say each second."""

    def __init__(self, **promise: Any) -> None:
        self.clock = Clock()
        task = TASK.model_copy(update={"promise": Promise.model_validate(promise)})
        self.pod_state = PodState(task, MANIFEST, 1, self.clock)

    def turn(
        self,
        told_now: Execution | None = None,
        *,
        wrong: str | None = None,
        not_run: str | None = None,
    ) -> None:
        self.clock.now += 1.0
        self.pod_state.server(live=True, ready=True)
        self.pod_state.execution(told_now or execution(), OF_EXECUTION)
        self.pod_state.golden(
            ProbeResult("s0", 0.01, 0.001, wrong=wrong, not_run=not_run, error=0.0, compared=1),
            1.0,
        )

    def state(self, check: Check) -> CheckVerdict:
        return next(
            verdict for verdict in self.pod_state.verdict().checks if verdict.check is check
        )


REPLACED = execution(session=2, placement=PlacementFacts(nodes={CPU: 4}), providers=(CPU,))


def test_a_replaced_session_is_reported_and_held_until_the_operator_releases_the_pod() -> None:
    pod = Pod()
    pod.turn()
    pod.turn(REPLACED)
    placement = pod.state(Check.PLACEMENT)
    assert (placement.state, placement.reason) == ("failed", Reason.SESSION_REPLACED)
    verdict = pod.pod_state.verdict()
    assert verdict.ready
    assert verdict.fallback is not None
    assert verdict.fallback.active
    assert verdict.fallback.reason is Reason.SESSION_REPLACED
    pod.pod_state.release(60)
    assert not pod.pod_state.verdict().ready
    pod.clock.now += 61
    pod.turn(REPLACED)
    assert pod.pod_state.verdict().ready  # it was not renewed: the operator may be gone
    pod.pod_state.release(60)
    assert not pod.pod_state.verdict().ready
    pod.pod_state.release(0)
    assert pod.pod_state.verdict().ready


@pytest.mark.parametrize(
    ("annotation", "left"),
    [
        ("1060", 60),
        (" 1060\n", 60),
        (str(1000 + RELEASE_SECONDS), RELEASE_SECONDS),
        ("1000", 0),
        ("999", 0),
        ("", 0),
        ("true", 0),
        ("1060.5", 0),
        ("-5", 0),
        ("١٠٦٠", 0),
        ("9" * 400, 0),
        (str(1000 + RELEASE_SECONDS + 61), 0),  # no annotation takes a pod away for good
    ],
)
def test_an_annotation_holds_until_its_time_and_never_for_long(annotation: str, left: int) -> None:
    assert seconds_left(annotation, 1000.0) == left


@pytest.mark.parametrize(
    ("promise", "replaced", "active"),
    [
        ({}, execution(session=3), False),
        ({"policy": "Budget", "max_node_share": 0.3}, execution(session=2, placement=MIXED), False),
        ({"policy": "Allow"}, REPLACED, True),
    ],
    ids=["same placement", "within the budget", "allowed"],
)
def test_replaced_session_that_keeps_the_promise_is_no_failure(
    promise: dict[str, Any], replaced: Execution, active: bool
) -> None:
    pod = Pod(**promise)
    pod.turn()
    pod.turn(replaced)
    assert pod.state(Check.PLACEMENT).state == "ok"
    fallback = pod.pod_state.verdict().fallback
    assert fallback is not None
    assert (fallback.active, fallback.reason) == (
        (True, Reason.SESSION_REPLACED) if active else (False, None)
    )
    pod.pod_state.release(60)
    assert pod.pod_state.ready


@pytest.mark.parametrize(
    ("promise", "is_ready", "active"),
    [
        ({"policy": "Forbid"}, False, True),
        ({"policy": "Budget", "max_node_share": 0.3}, True, False),
        ({"policy": "Budget", "max_node_share": 0.2}, False, True),
        ({"policy": "Allow"}, True, True),
    ],
)
def test_policies(promise: dict[str, Any], is_ready: bool, active: bool) -> None:
    pod = Pod(**promise)
    pod.turn(execution(placement=MIXED))
    verdict = pod.pod_state.verdict()
    assert verdict.ready is is_ready
    assert verdict.fallback is not None
    assert verdict.fallback.active is active
    assert "det (Det)" in verdict.fallback.message


def test_backpressure_makes_golden_unknown_and_not_failed_and_keeps_the_pod() -> None:
    pod = Pod()
    pod.turn()
    states = []
    for _ in range(10):
        pod.turn(not_run="too busy")
        states.append(pod.state(Check.GOLDEN).state)
        assert pod.pod_state.ready
    assert states[0] == "ok"
    assert states[-1] == "unknown"
    assert "failed" not in states


def test_wrong_answers_take_readiness_until_a_right_one_however_long_no_probe_runs() -> None:
    pod = Pod()
    pod.turn()
    pod.turn(wrong="wrong")
    assert not pod.pod_state.ready
    for _ in range(20):
        pod.turn(not_run="too busy")
    assert pod.state(Check.GOLDEN).state == "unknown"
    assert not pod.pod_state.ready
    pod.turn()
    assert pod.pod_state.ready


def test_each_sample_must_be_right_whichever_was_asked_last() -> None:
    pod_state = PodState(TASK, MANIFEST, 2, Clock())

    def golden() -> tuple[str, str]:
        verdicts = pod_state.verdict().checks
        return next(
            (verdict.state, verdict.message)
            for verdict in verdicts
            if verdict.check is Check.GOLDEN
        )

    pod_state.golden(ProbeResult("s1", 0.01, 0.0, compared=1), 1.0)
    assert golden()[0] == "unknown", "not all samples have been asked"
    pod_state.golden(ProbeResult("s0", 0.01, 0.0, wrong="s0 is wrong"), 1.0)
    pod_state.golden(ProbeResult("s1", 0.01, 0.0, compared=1), 1.0)
    assert golden() == ("failed", "s0 is wrong")


def test_a_sample_that_is_wrong_in_a_batch_is_wrong_until_it_is_right_in_one() -> None:
    pod = Pod()
    pod.turn()
    assert pod.state(Check.GOLDEN).state == "ok"
    paired = ProbeResult("s0", 9.0, 0.0, compute=9.0, compared=1, paired=True)
    durations = pod.pod_state.latency.durations.count
    pod.pod_state.golden(replace(paired, wrong="s0, in a batch, is wrong"), 1.0)
    assert pod.pod_state.golden_results.proven == {"s0"}, "alone it is right"
    pod.turn()
    golden = pod.state(Check.GOLDEN)
    assert (golden.state, golden.reason) == ("failed", Reason.PARITY_FAILED)
    assert golden.message == "s0, in a batch, is wrong"
    pod.pod_state.golden(replace(paired, not_run="the server is too busy"), 1.0)
    assert pod.state(Check.GOLDEN).state == "failed"
    pod.pod_state.golden(paired, 1.0)
    assert pod.state(Check.GOLDEN).state == "ok"
    assert pod.pod_state.latency.durations.count == durations + 1, "its time is no sample's"


# fault: Outputs | an output without elements in all golden samples, so that any model's would pass |
#   check `golden` says which; NothingCompared if it is all outputs | first golden inference
@pytest.mark.parametrize(
    ("empty", "compared", "state", "reason"),
    [
        (({"boxes"}, {"boxes"}), 1, "ok", Reason.NOTHING_COMPARED),
        (({"boxes"}, set()), 1, "ok", None),
        (({"boxes", "scores"}, {"boxes", "scores"}), 0, "unknown", Reason.NOTHING_COMPARED),
    ],
    ids=["one output", "in one sample", "all outputs"],
)
def test_outputs_without_elements_are_named(
    empty: tuple[set[str], set[str]], compared: int, state: str, reason: Reason | None
) -> None:
    pod_state = PodState(TASK, MANIFEST, 2, Clock())
    for index, names in enumerate(empty):
        result = ProbeResult(f"s{index}", 0.01, 0.0, compared=compared, empty=frozenset(names))
        pod_state.golden(result, 1.0)
    golden = next(item for item in pod_state.verdict().checks if item.check is Check.GOLDEN)
    assert (golden.state, golden.reason) == (state, reason)
    if reason is not None:
        assert "'boxes'" in golden.message
        assert "was compared" in golden.message


# fault: Outputs | an output without elements in all golden samples, which the spec accepts by name |
#   the pod serves; check `golden` and ParityVerified (Unknown) name it | first golden inference
@pytest.mark.parametrize(
    ("accepted", "compared", "precision", "state", "reason"),
    [
        ({"boxes"}, 0, None, "ok", Reason.PARITY_UNKNOWN),
        ({"scores"}, 0, None, "unknown", Reason.NOTHING_COMPARED),
        ({"boxes"}, 1, "FP16", "ok", Reason.PARITY_UNKNOWN),
        ({"boxes"}, 1, None, "ok", Reason.NOTHING_COMPARED),
    ],
    ids=["all outputs", "another output", "one, in a lower precision", "one"],
)
def test_outputs_without_elements_may_be_accepted_by_name(
    accepted: set[str], compared: int, precision: str | None, state: str, reason: Reason
) -> None:
    outputs = tuple(OutputTolerance(name=name, accept_unjudged=True) for name in accepted)
    recipe = MANIFEST.recipe.model_copy(update={"outputs": outputs})
    made = MANIFEST.model_copy(update={"recipe": recipe, "precision": precision})
    results = GoldenResults(made, 1)
    empty = frozenset({"boxes"})
    outcome = present(results.add(ProbeResult("s0", 0.01, 0.0, compared=compared, empty=empty)))
    assert (outcome.state, outcome.reason) == (state, reason)
    assert "no element of output 'boxes' was compared" in outcome.message
    said = "spec.parity.outputs accepts that of 'boxes'" in outcome.message
    assert said is (accepted == {"boxes"})


def test_outputs_that_vary_are_not_accepted_as_ones_without_elements() -> None:
    outputs = (OutputTolerance(name="boxes", accept_unjudged=True),)
    recipe = MANIFEST.recipe.model_copy(update={"outputs": outputs})
    varying = (VaryingOutput(name="noise"),)
    results = GoldenResults(MANIFEST.model_copy(update={"recipe": recipe, "varying": varying}), 1)
    empty = frozenset({"boxes"})
    outcome = present(results.add(ProbeResult("s0", 0.01, 0.0, compared=0, empty=empty)))
    assert (outcome.state, outcome.reason) == ("unknown", Reason.NOTHING_COMPARED)


UNJUDGED: Final = OutputParity(
    name="dets",
    compared_with="source",
    unjudged=(UnjudgedParts(axis=1, indices=(4, 7), count=2, of=84),),
)


# fault: Outputs | a column, channel or class of an output that no golden sample moves, so that nothing shows whether
#   it is right | check `golden` and ParityVerified name it, until samples show it or the spec accepts it | as it is made
@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("of_engine", [False, True])
def test_parts_that_the_samples_do_not_judge_are_named_and_the_pod_serves(
    accepted: bool, of_engine: bool
) -> None:
    pod = Pod()
    outputs = (OutputTolerance(name="dets", accept_unjudged=accepted),)
    made = MANIFEST.model_copy(
        update={
            "recipe": MANIFEST.recipe.model_copy(update={"outputs": outputs}),
            "precision": "INT8",
            "parity": () if of_engine else (UNJUDGED,),
            "engine": ENGINE.model_copy(update={"parity": (UNJUDGED,)}) if of_engine else None,
        }
    )
    pod.pod_state.golden_results = GoldenResults(made, 1)
    pod.turn()
    golden, verdict = pod.state(Check.GOLDEN), pod.pod_state.verdict()
    assert (golden.state, verdict.ready) == ("ok", True)
    assert golden.reason is (None if accepted else Reason.PARITY_UNKNOWN)
    said = "2 of 84 indices of axis 1 (4, 7) of output 'dets' do not vary enough"
    assert said in (verdict.accepted if accepted else golden.message)
    assert bool(verdict.accepted) is accepted


def test_wrong_answers_are_named_before_parts_that_are_not_judged() -> None:
    results = GoldenResults(MANIFEST.model_copy(update={"parity": (UNJUDGED,)}), 1)
    outcome = present(results.add(ProbeResult("s0", 0.01, 0.0, wrong="output 'dets' differs")))
    assert (outcome.state, outcome.reason) == ("failed", Reason.PARITY_FAILED)


def test_probes_that_are_never_answered_in_time_are_slow() -> None:
    pod = Pod()
    for _ in range(BASELINE_PROBES):
        pod.turn()
    for _ in range(6):
        pod.clock.now += 30
        pod.pod_state.golden(
            ProbeResult("s0", 30.0, 0.0, not_run="has not answered", late=True), 30.0
        )
    assert pod.state(Check.PROBE_LATENCY).reason is Reason.SLOWER_THAN_BASELINE


def test_a_server_that_goes_is_forgotten_and_admitted_again() -> None:
    pod = Pod()
    pod.pod_state.server_missed("the server does not listen", unreachable=True)
    assert pod.state(Check.SERVER).state == "unknown"  # it has not been there yet
    for _ in range(BASELINE_PROBES):
        pod.turn()
    pod.turn()  # the first run is left out
    baseline = pod.pod_state.latency.baseline
    pod.pod_state.server_missed("the server does not listen", unreachable=True)
    verdict = pod.pod_state.verdict()
    assert (verdict.ready, verdict.admitted, verdict.fallback) == (False, False, None)
    states = {check.check: check.state for check in verdict.checks}
    assert states.pop(Check.SERVER) == "failed"
    assert set(states.values()) == {"unknown"}
    assert verdict.baseline == baseline is not None
    pod.turn()
    assert pod.pod_state.ready


def test_a_server_that_only_hangs_stays_admitted() -> None:
    pod = Pod()
    pod.turn()
    pod.pod_state.server_missed("the server has not answered within 2 s", unreachable=False)
    assert pod.state(Check.SERVER).reason is Reason.SERVER_DOWN
    assert pod.pod_state.ready


# A higher rate on request.


def test_a_higher_rate_ends_by_itself_unless_it_is_asked_for_again() -> None:
    pod = Pod()
    rates = [pod.pod_state.probe_facts.probing]
    for asked, seconds in ((True, 0.0), (True, PROBING_SECONDS - 1.0), (False, 1.0)):
        pod.clock.now += seconds
        if asked:
            pod.pod_state.probe()
        rates.append(pod.pod_state.probe_facts.probing)
    pod.clock.now += PROBING_SECONDS - 1.0
    rates.append(pod.pod_state.probe_facts.probing)
    assert rates == [False, True, True, True, False]


def test_a_second_of_a_higher_rate_does_not_lower_the_baseline() -> None:
    """Many runs in a row find warm caches and high clocks; the usual ones do not."""

    def run(seconds: float) -> None:
        pod.pod_state.golden(ProbeResult("s0", seconds, 0.0, compute=seconds, compared=1), 1.0)

    pod = Pod()
    for _ in range(2 * BASELINE_PROBES):
        pod.turn()
        run(0.1)
    baseline = pod.pod_state.latency.probes.baseline
    assert baseline is not None
    pod.pod_state.probe()
    for _ in range(4 * LOWERING_LEAST):
        pod.clock.now += 0.05
        run(baseline / 2)
    assert pod.pod_state.latency.probes.baseline == baseline
    # measurements as often as usual count as usual
    for _ in range(4 * LOWERING_LEAST):
        pod.pod_state.probe()
        pod.clock.now += 1.0
        run(baseline / 2)
    assert pod.pod_state.latency.probes.baseline == pytest.approx(baseline / 2)
