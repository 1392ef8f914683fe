"""The real sidecar beside the real server: what it proves, and that nothing gets past it."""

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import VaryingOutput
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import ServeTask, ShapeProfile
from enginewright_contract.verdict import Check
from enginewright_runtime.core.paths import Paths
from enginewright_serving.sidecar.main import run

from tests.support.adversary import change_each_output
from tests.support.broken_models import initializer, parse_text
from tests.support.pods import Pod, run_pod
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.serving import (
    Feeds,
    Server,
    json_inputs,
    linear_model,
    read_report,
)
from tests.support.shared import share_server
from tests.support.sidecar import (
    Proxy,
    Sidecar,
    artifact,
    change_manifest,
    prepare_served,
    promising,
    value,
)

PROOFS = {
    Check.SERVER,
    Check.PROVIDER,
    Check.PLACEMENT,
    Check.DISTRIBUTION,
    Check.VERSIONS,
    Check.GOLDEN,
}
QUICK = 0.1  # of the intervals, where a test would only wait for them
SAMPLE: Feeds = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)}


@pytest.fixture
def task(tmp_path: Path) -> ServeTask:
    return artifact(tmp_path, linear_model(), [SAMPLE])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    root = tmp_path_factory.mktemp("pod")
    task = artifact(root, linear_model(), [SAMPLE])
    with run_pod(root, task, pace=QUICK, window_seconds=2.0) as pod:
        yield pod


@pytest.fixture
def pod(served: Pod) -> Pod:
    return served.mend()


# prepared for an engine: as an interim serves it until that is built
@pytest.mark.parametrize("prepared_for", ["cpu", "tensorrt-rtx"])
def test_a_real_model_is_proven_whole(tmp_path: Path, models: Path, prepared_for: str) -> None:
    onnx_file = next(models.rglob("ch_ppocr_mobile_v2.0_cls_infer.onnx"))
    shape = ShapeProfile(input="x", min=(1, 3, 48, 48), opt=(1, 3, 48, 192), max=(2, 3, 48, 192))
    task = prepare_served(tmp_path, onnx_file, backend=prepared_for, shapes=[shape])
    task = task.model_copy(update={"backend": "cpu"})
    with Server(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until_ready()
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 60)
        verdict = sidecar.verdict()
        states = {check_verdict.check: check_verdict.state for check_verdict in verdict.checks}
        assert all(states[check] == "ok" for check in PROOFS), verdict
        assert (verdict.ready, verdict.admitted) == (True, True)
        assert verdict.provider == "CPUExecutionProvider"
        assert verdict.fallback is not None
        assert not verdict.fallback.active
        assert verdict.fallback.nodes_total > 50
        assert verdict.baseline is not None
        assert verdict.baseline.shapes == "opt"
        assert 0 < verdict.baseline.p50 <= (verdict.baseline.p99 or verdict.baseline.p50)
        assert verdict.times is not None
        assert verdict.times.batches
        metrics = sidecar.metrics()
        assert value(metrics, "enginewright_placement_nodes") == verdict.fallback.nodes_total
        assert value(metrics, "enginewright_fallback_active", kind="NodeFallback") == 0
        assert "enginewright_fallback_reason" not in metrics


def dice() -> onnx.ModelProto:
    """Return y = x + noise, z = -x."""
    return parse_text("""(float[64] x) => (float[64] y, float[64] z) {
        r = RandomNormal <shape = [64]> () y = Add(x, r) z = Neg(x) }""")


DICE: Feeds = {"x": np.ones(64, np.float32)}


noisy = share_server(dice, DICE)


def test_a_model_that_throws_dice_is_admitted(noisy: Server) -> None:
    with Sidecar(noisy.root, noisy.task, noisy.port) as sidecar:
        sidecar.until_ready()
        assert sidecar.verdict().parity_max_abs_error == 0.0  # of z
        assert sidecar.check(Check.GOLDEN).message.endswith("; compared in distribution: y")


def wait_nothing_compared(sidecar: Sidecar) -> str:
    """Wait until nothing was compared, which admits no pod; return what check `golden` says."""
    sidecar.until(lambda: sidecar.check(Check.GOLDEN).reason is Reason.NOTHING_COMPARED, "asked")
    golden = sidecar.check(Check.GOLDEN)
    assert golden.state == "unknown"
    assert not sidecar.is_ready()
    return golden.message


# fault: Outputs | a check compared nothing | check `golden` unknown, NothingCompared: never
#   admitted | first golden inference
def test_where_nothing_is_compared_golden_is_unknown(noisy: Server, tmp_path: Path) -> None:
    only = dice()
    del only.graph.output[1], only.graph.node[2]
    task = artifact(tmp_path, only, [DICE])
    # how it is distributed is not known
    change_manifest(tmp_path, varying=(VaryingOutput(name="y"),))
    with Sidecar(tmp_path, task, noisy.port) as sidecar:
        assert wait_nothing_compared(sidecar)


def detector(seed: int, *, scored: bool = False) -> onnx.ModelProto:
    """Return x [batch, 8] -> boxes [n, 4], of rows with a large enough value, and their scores if `scored`."""
    weights = np.random.default_rng(seed).standard_normal((8, 4)) * 3
    scores = ", float[batch] score" if scored else ""
    score = "score = Identity(top)" if scored else ""
    return parse_text(
        f"""(float[batch, 8] x) => (float[n, 4] boxes{scores}) {{
        all = MatMul(x, w) top = ReduceMax <axes = [1], keepdims = 0> (all)
        kept = Greater(top, least) boxes = Compress <axis = 0> (all, kept) {score} }}""",
        initializer("w", weights),
        initializer("least", 60.0),
    )


finding = share_server(lambda: detector(0, scored=True), {"x": np.full((1, 8), 0.5, np.float32)})


# fault: Outputs | golden outputs without elements pass for any model's | check `golden` unknown,
#   NothingCompared: never admitted | first golden inference
def test_another_detector_is_not_admitted_for_boxes_that_golden_samples_lack(
    finding: Server, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    samples: list[Feeds] = [{"x": rng.random((rows, 8), np.float32)} for rows in (1, 4)]
    with Sidecar(tmp_path, artifact(tmp_path, detector(99), samples), finding.port) as sidecar:
        said = wait_nothing_compared(sidecar)
        assert said.startswith("no element of output 'boxes' was compared")


# fault: Outputs | golden outputs are NaN throughout, as those of any model of that fault | check `golden` unknown,
#   NothingCompared: never admitted | first golden inference
def test_outputs_that_are_all_nan_admit_no_pod(tmp_path: Path) -> None:
    logarithm = parse_text("(float[1, 8] x) => (float[1, 8] y) { y = Log(x) }")
    task = artifact(tmp_path, logarithm, [{"x": np.full((1, 8), -1.0, np.float32)}])
    with Server(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        said = wait_nothing_compared(sidecar)
        assert said.startswith("no element of output 'y' was compared")


def test_an_output_without_elements_is_named_and_the_others_admit_the_pod(finding: Server) -> None:
    with Sidecar(finding.root, finding.task, finding.port) as sidecar:
        sidecar.until_ready()
        golden = sidecar.check(Check.GOLDEN)
        assert (golden.state, golden.reason) == ("ok", Reason.NOTHING_COMPARED)
        assert "1 golden sample passed; no element of output 'boxes' was compared" in golden.message


def test_a_server_that_is_not_there_yet_or_not_any_more(tmp_path: Path, task: ServeTask) -> None:
    with Proxy(1) as proxy:  # no server listens on port 1
        port = proxy.port
    with Sidecar(tmp_path, task, port, pace=QUICK) as sidecar:
        sidecar.until(
            lambda: "does not listen" in sidecar.check(Check.SERVER).message, "server looked for"
        )
        verdict = sidecar.verdict()
        assert {check.state for check in verdict.checks} == {"unknown"}
        assert (verdict.ready, verdict.admitted, verdict.fallback) == (False, False, None)
        metrics = sidecar.metrics()
        assert "enginewright_fallback_active" not in metrics
        assert "enginewright_info" not in metrics
        with Server(tmp_path, task, port=port) as server:
            sidecar.until_ready()
            assert "enginewright_requests_total" in sidecar.metrics()
            server.process.kill()
            unreachable = sidecar.until_state(Check.SERVER, "failed")
            assert unreachable.reason is Reason.SERVER_DOWN
            sidecar.until(lambda: not sidecar.verdict().admitted, "admission withdrawn")
            assert not sidecar.is_ready()
            assert "enginewright_requests_total" not in sidecar.metrics()
            assert sidecar.get("/healthz").status == 200
        with Server(tmp_path, task, port=port):
            sidecar.until_ready()


def test_no_interval_of_a_check_delays_admission(tmp_path: Path, task: ServeTask) -> None:
    with Proxy(1) as proxy:  # as above
        port = proxy.port
    with Sidecar(tmp_path, task, port, pace=1000) as sidecar:
        sidecar.until(
            lambda: "does not listen" in sidecar.check(Check.SERVER).message, "server looked for"
        )
        with Server(tmp_path, task, port=port):
            sidecar.until_ready()


def test_a_server_that_hangs_delays_neither_answers_nor_scrapes(pod: Pod) -> None:
    sidecar = pod.sidecar
    pod.server.process.send_signal(signal.SIGSTOP)
    try:
        hung = sidecar.until_state(Check.SERVER, "failed")
        assert hung.message == "the server did not respond within 2 s"
        began = time.monotonic()
        assert "enginewright_requests_total" not in sidecar.metrics()
        assert time.monotonic() - began < 10  # when Prometheus gives up
        assert sidecar.is_ready()  # the server's own probes act on that; wrong it is not
        sidecar.until_state(Check.PLACEMENT, "unknown")
        assert "enginewright_fallback_active" not in sidecar.metrics()
    finally:
        pod.server.process.send_signal(signal.SIGCONT)
    sidecar.until_state(Check.PLACEMENT, "ok")


def test_wrong_answers_make_an_admitted_pod_unready_at_once(pod: Pod) -> None:
    sidecar = pod.sidecar
    # and /execution says what it always said
    change_each_output(lambda array: array * np.float32(2))(pod.proxy)
    sidecar.until(lambda: not sidecar.is_ready(), "unready")
    golden = sidecar.check(Check.GOLDEN)
    assert (golden.state, golden.reason) == ("failed", Reason.PARITY_FAILED)
    assert "output 'y' of golden sample 's0' is outside the tolerance" in golden.message
    verdict = sidecar.verdict()
    assert verdict.admitted
    assert verdict.parity_max_abs_error
    assert value(sidecar.metrics(), "enginewright_check", check="golden", state="failed") == 1
    assert value(sidecar.metrics(), "enginewright_probe_failures_total", check="golden")


# fault: Latency | the server under-reports its time | `probe-latency` measures the answer on an
#   idle server | 11 s
def test_a_slow_model_is_reported_against_its_own_report(pod: Pod) -> None:
    proxy, sidecar = pod.proxy, pod.sidecar
    asked = "enginewright_probe_duration_seconds_count"
    sidecar.until(lambda: (value(sidecar.metrics(), asked) or 0) > 40, "baselines", 60)
    sidecar.until_state(Check.PROBE_LATENCY, "ok", 60)
    proxy.delay = 1.0  # far above what other load on the machine makes of the way
    slow = sidecar.until_state(Check.PROBE_LATENCY, "failed", 60)
    ratio = value(sidecar.metrics(), "enginewright_latency_ratio", check="probe-latency")
    assert slow.reason is Reason.SLOWER_THAN_BASELINE
    assert ratio is not None
    assert ratio > 2.2
    assert sidecar.is_ready()
    proxy.delay = 0.0
    sidecar.until_state(Check.PROBE_LATENCY, "ok", 60)


def test_a_busy_server_is_no_failure(pod: Pod) -> None:
    sidecar, failures = pod.sidecar, "enginewright_probe_failures_total"
    before = value(sidecar.metrics(), failures, check="golden")
    pod.proxy.refusing = {"/infer": 503}
    golden = sidecar.until_state(Check.GOLDEN, "unknown")
    assert golden.message == "the server is too busy for golden samples (503)"
    assert sidecar.is_ready()
    assert value(sidecar.metrics(), failures, check="golden") == before


def many(server: Server, count: int) -> None:
    """Ask the linear model `count` times, with the golden sample's size."""
    request = server.infer_request(json_inputs(x=np.ones((2, 8), np.float32)))
    with server.wire() as wire:
        for _ in range(count):
            wire.send(request)
            assert wire.receive().status == 200


def test_live_requests_are_compared_with_earlier_ones(pod: Pod) -> None:
    def slow_down(reported: dict[str, Any]) -> dict[str, Any]:
        buckets = [
            item | {"seconds": item["seconds"] + 0.01 * item["count"]}
            for item in reported["buckets"]
        ]
        return reported | {"buckets": buckets}

    sidecar = pod.sidecar

    def is_in_state(state: str) -> bool:
        many(pod.server, 20)
        return sidecar.check(Check.LIVE_LATENCY).state == state

    sidecar.until(lambda: is_in_state("ok"), "requests are as usual")
    pod.proxy.execution = slow_down  # as if the model had taken 10 ms more each time
    sidecar.until(lambda: is_in_state("failed"), "requests are slow")
    latency = sidecar.check(Check.LIVE_LATENCY)
    assert latency.reason is Reason.SLOWER_THAN_BASELINE
    assert "requests of up to 16 elements" in latency.message
    assert value(sidecar.metrics(), "enginewright_latency_ratio", check="live-latency")
    assert sidecar.is_ready()


def test_a_clients_short_timeout_fails_no_check_and_is_reported(pod: Pod) -> None:
    sample = json_inputs(**SAMPLE)
    hurried = sample | {"parameters": {"timeout": 1}}  # a microsecond

    def is_reported() -> bool:
        for _ in range(10):
            pod.server.post(sample)
            pod.server.post(hurried)
        return "not run, for load" in pod.sidecar.check(Check.ERRORS).message

    pod.sidecar.until(is_reported, "the check has counted them")
    assert pod.sidecar.check(Check.ERRORS).state == "ok"
    assert pod.server.metric('enginewright_requests_total{code="504"') > 20


@pytest.mark.parametrize("nonsense", [b"null", b"{" * 10_000], ids=["null", "braces"])
def test_nonsense_is_survived(pod: Pod, nonsense: bytes) -> None:
    sidecar = pod.sidecar
    pod.proxy.saying = nonsense
    sidecar.until_state(Check.GOLDEN, "failed")  # 200 and no answer is a wrong answer
    invalid = "execution report is invalid"
    sidecar.until(lambda: invalid in sidecar.check(Check.PLACEMENT).message, invalid)
    assert sidecar.check(Check.PLACEMENT).state == "unknown"
    sidecar.until_state(Check.ERRORS, "unknown")
    assert "enginewright_check" in sidecar.metrics()
    assert sidecar.get("/healthz").status == 200


def test_without_execution_nothing_is_admitted_under_forbid_and_it_is_otherwise(
    pod: Pod, task: ServeTask, tmp_path: Path
) -> None:
    with Proxy(pod.server.port) as proxy:
        proxy.refusing = {"/execution": 404}
        with Sidecar(tmp_path, task, proxy.port) as sidecar:
            sidecar.until_state(Check.GOLDEN, "ok")
            assert sidecar.check(Check.PLACEMENT).state == "unknown"
            assert not sidecar.is_ready()
        proxy.refusing = {"/execution": 500}  # ours would have reported it
        with Sidecar(tmp_path, promising(task, "Allow"), proxy.port) as sidecar:
            sidecar.until_state(Check.GOLDEN, "ok")
            assert not sidecar.is_ready()
            proxy.refusing = {"/execution": 404}
            sidecar.until_ready()


def test_invalid_requests_are_refused(pod: Pod) -> None:
    assert pod.sidecar.get("/").status == 404
    connection = http.client.HTTPConnection("127.0.0.1", pod.sidecar.port, timeout=5)
    connection.request("POST", "/verdict", b"{}")
    answer = connection.getresponse()
    assert answer.status == 405
    answer.read()
    connection.request("GET", "/verdict", b"{}")
    assert connection.getresponse().status == 413
    connection.close()
    assert json.loads(pod.sidecar.get("/healthz").body) == {"healthy": True}


def test_sigterm_ends_it_without_waiting_for_its_loops(
    pod: Pod, task: ServeTask, tmp_path: Path
) -> None:
    with Sidecar(tmp_path, task, pod.server.port) as sidecar:
        sidecar.until_ready()
        began = time.monotonic()
        sidecar.process.terminate()
        assert sidecar.process.wait(60) == 0
        assert time.monotonic() - began < 20  # a loop may sleep for a minute
    assert (tmp_path / "dev/termination-log").read_text() == ""


def refusal(root: Path, task: ServeTask) -> tuple[int, Reason | None]:
    """Run a sidecar that ends before it opens its port; return exit code and reported reason."""
    code = run(task, Paths.under(root), port=free_port(), server_port=1)
    report = read_report(root)
    assert report.stage == "sidecar"
    return code, report.reason


def test_an_artefact_that_is_not_there_or_damaged_is_reported(
    tmp_path: Path, task: ServeTask
) -> None:
    (tmp_path / "artifact/golden/inputs.npz").write_bytes(b"no zip")
    assert refusal(tmp_path, task) == (ExitCode.PERMANENT, Reason.ARTIFACT_CORRUPT)
    other = task.model_copy(update={"prepared_key": "0" * 64})
    assert refusal(tmp_path, other) == (ExitCode.PERMANENT, Reason.ARTIFACT_CORRUPT)
    (tmp_path / "artifact/manifest.json").unlink()
    assert refusal(tmp_path, task) == (ExitCode.TRANSIENT, Reason.ARTIFACT_MISSING)


def test_the_command_and_its_imports(tmp_path: Path, task: ServeTask) -> None:
    (tmp_path / "artifact/manifest.json").unlink()
    program = (
        "import sys; from enginewright_runtime.__main__ import main; code = main(['sidecar']);"
        " print(*sorted({name.partition('.')[0] for name in sys.modules})); sys.exit(code)"
    )
    environment = {"ENGINEWRIGHT_ROOT": str(tmp_path), "ENGINEWRIGHT_TASK": task.to_json()}
    done = run_program(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        timeout=60,
        code=ExitCode.TRANSIENT,
    )
    termination_message = read_report(tmp_path)
    assert (termination_message.stage, termination_message.reason) == (
        "sidecar",
        Reason.ARTIFACT_MISSING,
    )
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {"onnx", "onnxruntime", "aiohttp", "prometheus_client", "uvloop"}
