"""The real sidecar beside the real server: what it proves, and that nothing gets past it."""

import http.client
import json
import os
import signal
import sys
import threading
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
from onnx import TensorProto, helper

from tests.support.adversary import change_each_output
from tests.support.broken_models import initializer, parse_text
from tests.support.optional import present
from tests.support.pods import Pod, run_pod
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.serving import (
    Feeds,
    Server,
    json_inputs,
    linear_model,
    model,
    read_report,
    slow_model,
    tensor,
)
from tests.support.shared import share_server
from tests.support.sidecar import (
    Proxy,
    Sidecar,
    artifact,
    change_manifest,
    prepare_served,
    promising,
    share_token,
    value,
)
from tests.support.turns import slow_request

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
        metrics = sidecar.metrics()
        assert value(metrics, "enginewright_placement_nodes") == verdict.fallback.nodes_total
        assert value(metrics, "enginewright_fallback_active", kind="NodeFallback") == 0
        assert "enginewright_fallback_reason" not in metrics


def test_every_type_of_tensor_is_asked_and_compared(tmp_path: Path) -> None:
    kinds: dict[str, tuple[int, Any]] = {
        "f": (TensorProto.FLOAT, np.array([1.5, np.inf], np.float32)),
        "d": (TensorProto.DOUBLE, np.array([2.5, np.nan], np.float64)),
        "h": (TensorProto.FLOAT16, np.array([0.5, -1], np.float16)),
        "i": (TensorProto.INT64, np.array([2**62, -3], np.int64)),
        "u": (TensorProto.UINT8, np.array([0, 255], np.uint8)),
        "b": (TensorProto.BOOL, np.array([True, False])),
        "s": (TensorProto.STRING, np.array(["grüß", ""], dtype=object)),
    }
    identity = model(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds],
        [tensor(name, kind, 2) for name, (kind, _) in kinds.items()],
        [tensor(f"{name}_out", kind, 2) for name, (kind, _) in kinds.items()],
    )
    task = artifact(tmp_path, identity, [{name: array for name, (_, array) in kinds.items()}])
    with Server(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until_state(Check.GOLDEN, "ok")


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


# fault: Outputs | a check compared nothing | check `golden` unknown, NothingCompared: never
#   admitted | first golden inference
def test_where_nothing_is_compared_golden_is_unknown(noisy: Server, tmp_path: Path) -> None:
    only = dice()
    del only.graph.output[1], only.graph.node[2]
    task = artifact(tmp_path, only, [DICE])
    # how it is distributed is not known
    change_manifest(tmp_path, varying=(VaryingOutput(name="y"),))
    with Sidecar(tmp_path, task, noisy.port) as sidecar:
        sidecar.until(
            lambda: sidecar.check(Check.GOLDEN).reason is Reason.NOTHING_COMPARED, "asked"
        )
        assert sidecar.check(Check.GOLDEN).state == "unknown"
        assert not sidecar.is_ready()


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
        sidecar.until(
            lambda: sidecar.check(Check.GOLDEN).reason is Reason.NOTHING_COMPARED, "asked"
        )
        golden = sidecar.check(Check.GOLDEN)
        assert golden.state == "unknown"
        assert golden.message.startswith("no element of output 'boxes' was compared")
        assert not sidecar.is_ready()


# fault: Outputs | golden outputs are NaN throughout, as those of any model of that fault | check `golden` unknown,
#   NothingCompared: never admitted | first golden inference
def test_outputs_that_are_all_nan_admit_no_pod(tmp_path: Path) -> None:
    logarithm = parse_text("(float[1, 8] x) => (float[1, 8] y) { y = Log(x) }")
    task = artifact(tmp_path, logarithm, [{"x": np.full((1, 8), -1.0, np.float32)}])
    with Server(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until(
            lambda: sidecar.check(Check.GOLDEN).reason is Reason.NOTHING_COMPARED, "asked"
        )
        golden = sidecar.check(Check.GOLDEN)
        assert golden.state == "unknown"
        assert golden.message.startswith("no element of output 'y' was compared")
        assert not sidecar.is_ready()


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


@pytest.mark.timeout(300)
def test_golden_inferences_of_a_slow_model_leave_it_alone(tmp_path: Path) -> None:
    task = artifact(tmp_path, slow_model(), [{"turns": np.array([400], np.int64)}])
    with (
        Server(tmp_path, task) as server,
        Sidecar(tmp_path, task, server.port, pace=QUICK, baseline_probes=4) as sidecar,
    ):
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 200)
        baseline = present(sidecar.verdict().baseline)
        before = value(sidecar.metrics(), "enginewright_probe_duration_seconds_count") or 0.0
        time_left = 20 * baseline.p50
        assert time_left > 0.5, "the model is too quick for this test"
        began = time.monotonic()
        time.sleep(time_left)  # the absence of probes shows in time only
        after = value(sidecar.metrics(), "enginewright_probe_duration_seconds_count") or 0.0
        # one in each such time, which is longer on a busy machine, and the one that was under way
        assert after - before <= 1 + (time.monotonic() - began) / time_left
        assert sidecar.check(Check.GOLDEN).state == "ok"


# For `Server(before=...)`: from SIGUSR1 to SIGUSR2 every run of the model is done thirty times, so that
# other load on the machine, which may spoil the baseline, is no matter.
GROWS = """
import signal
from enginewright_runtime.session.runner import Runner
once, times = Runner.run, [1]
def grown(self, *arguments, **options):
    for _ in range(times[0] - 1):
        once(self, *arguments, **options)
    return once(self, *arguments, **options)
Runner.run = grown
for number, count in ((signal.SIGUSR1, 30), (signal.SIGUSR2, 1)):
    signal.signal(number, lambda *_, count=count: times.__setitem__(0, count))
"""


# with a queue of four, and a model that can grow
slow = share_server(slow_model, {"turns": np.array([1])}, options={"max_queue": 4}, before=GROWS)


def slow_pod(server: Server, root: Path, *turns: int) -> ServeTask:
    """Write, for another sidecar of the slow model's server, golden samples of so many turns."""
    share_token(server, root)
    return artifact(root, slow_model(), [{"turns": np.array([count])} for count in turns])


# fault: Latency | a golden inference of a large sample delays requests | samples in service cost
#   no more than requests do | prevented
def test_in_service_no_sample_is_asked_that_costs_more_than_requests_do(
    slow: Server, tmp_path: Path
) -> None:
    large, small = (np.array([count]).tobytes() for count in (300, 1))
    task = slow_pod(slow, tmp_path, 300, 1)
    with (
        Proxy(slow.port) as proxy,
        Sidecar(tmp_path, task, proxy.port, pace=QUICK) as sidecar,
        slow.wire() as wire,
    ):
        sidecar.until_ready()
        assert set(proxy.asked) == {large, small}, "to be admitted"
        asked = len(proxy.asked)

        def in_service() -> bool:
            wire.send(slow_request(slow, 1))  # else no request would be delayed
            assert wire.receive().status == 200
            return len(proxy.asked) > asked + 20

        sidecar.until(in_service, "golden inferences in service", 200)
        assert set(proxy.asked[asked + 1 :]) == {small}
        assert sidecar.check(Check.GOLDEN).state == "ok"


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


# fault: Latency | the model becomes much slower, without requests | check `probe-latency` | 11 s
#   to 1 min
@pytest.mark.timeout(300)
def test_a_model_that_takes_much_longer_is_found_without_traffic(
    slow: Server, tmp_path: Path
) -> None:
    task = slow_pod(slow, tmp_path, 20)
    with Sidecar(tmp_path, task, slow.port, pace=QUICK, slowest_interval=1.0) as sidecar:
        sidecar.until_ready()
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 90)
        slow.process.send_signal(signal.SIGUSR1)
        try:
            latency = sidecar.until_state(Check.PROBE_LATENCY, "failed", 90)
        finally:
            slow.process.send_signal(signal.SIGUSR2)
        assert latency.reason is Reason.SLOWER_THAN_BASELINE
        assert sidecar.is_ready()


def test_overload_is_neither_wrong_nor_unready(slow: Server, tmp_path: Path) -> None:
    task = slow_pod(slow, tmp_path, 20)
    stop = threading.Event()
    statuses: set[int] = set()

    def press() -> None:
        while not stop.is_set():
            statuses.add(slow.send(slow_request(slow, 20)).status)

    with Sidecar(tmp_path, task, slow.port, pace=QUICK, probe_share=1.0) as sidecar:
        sidecar.until_ready()
        clients = [threading.Thread(target=press) for _ in range(16)]
        for client in clients:
            client.start()
        try:
            sidecar.until(lambda: 503 in statuses, "overload")
            probes = value(sidecar.metrics(), "enginewright_probe_duration_seconds_count") or 0

            def has_probed() -> bool:
                assert sidecar.is_ready()
                assert sidecar.check(Check.GOLDEN).state != "failed"
                count = value(sidecar.metrics(), "enginewright_probe_duration_seconds_count")
                return (count or 0) >= probes + 3

            sidecar.until(has_probed, "golden inferences in their own lane")
        finally:
            stop.set()
            for client in clients:
                client.join()
    assert statuses == {200, 503}


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
