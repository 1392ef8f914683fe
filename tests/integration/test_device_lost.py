"""A server that is there and runs nothing: it loses readiness, then liveness, and says why.

The fault is a real one: the kernel of a custom operator, compiled here, throws from some moment on.
"""

import ctypes
import importlib.util
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check
from enginewright_runtime.core.nvml import XidEvents
from enginewright_runtime.session.device_errors import LOST, find_lost_device
from enginewright_serving.server.observe.health import RunHealth

from tests.support.broken_models import parse_text
from tests.support.extensions import compile_c, compile_failing, cube
from tests.support.optional import present
from tests.support.serving import Feeds, Server, json_inputs, read_report
from tests.support.sidecar import Sidecar, artifact, change_manifest, value
from tests.support.waiting import until

SAMPLE: Feeds = {"x": np.array([[1, 2, 3, -4]], np.float32)}
GOOD = json_inputs(**SAMPLE)
# as ONNX Runtime's CUDA provider writes it: its format is in libonnxruntime_providers_cuda.so
LOST_DEVICE = (
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=pod-x ; "
    "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc ; line=1 ; expr=memcpy();"
)


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    """Return where a file makes every run throw its text."""
    return tmp_path / "fails"


@pytest.fixture
def task(tmp_path: Path, switch: Path) -> ServeTask:
    """Return the task to serve relu(x ** 3) through an operator that throws while `switch` is there."""
    text = '(float["n", 4] x) => (float["n", 4] y) { square = Mul(x, x) h = Mul(square, x) y = Relu(h) }'
    task = artifact(tmp_path, parse_text(text), [SAMPLE])
    (tmp_path / "artifact/model").mkdir()
    onnx.save(cube(), tmp_path / "artifact/model/model.onnx")
    change_manifest(tmp_path, model="model/model.onnx")
    compile_failing(tmp_path / "artifact/extensions", str(switch))
    return task


def quick(root: Path, task: ServeTask, *, lost: float = 0.5, fails: float = 1.5) -> Server:
    """Return the server with thresholds that a test can wait for."""
    return Server(root, task, retest_seconds=0.1, device_lost_seconds=lost, runs_fail_seconds=fails)


def health(server: Server, what: str) -> tuple[int, dict[str, object]]:
    answer = server.get(f"/v2/health/{what}")
    return answer.status, answer.json()


# fault: Devices | every run fails with a lost device (CUDA 700, 719 and others) | golden sample
#   run by the server; check `golden`; alert EnginewrightRunsFail | not ready 1 s after three
#   failed requests, else with the second golden inference (1 s to 60 s apart); not live 5 s
#   later, restarted 60 s after that
@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (LOST_DEVICE, Reason.DEVICE_LOST, "CUDA failure 700: an illegal memory access"),
        ("the pump is dry", Reason.RUNS_FAIL, "the pump is dry"),
    ],
)
def test_a_server_with_failing_runs_is_restarted_with_a_reason(
    tmp_path: Path, task: ServeTask, switch: Path, error: str, reason: Reason, said: str
) -> None:
    with quick(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until_ready()
        assert value(sidecar.metrics(), "enginewright_runs_failing") == 0
        switch.write_text(error)
        sidecar.until(lambda: not sidecar.is_ready(), "not ready")
        golden = sidecar.until_state(Check.GOLDEN, "failed")
        assert golden.reason is reason
        sidecar.until(lambda: health(server, "ready")[0] == 503, "the server is not ready")
        status, ready = health(server, "ready")
        assert (status, ready["reason"]) == (503, reason)
        assert said in str(ready["error"])
        sidecar.until(lambda: sidecar.check(Check.SERVER).reason is reason, "the server says why")
        assert value(sidecar.metrics(), "enginewright_runs_failing") == 1
        assert value(sidecar.metrics(), "enginewright_runs_failing_reason", reason=reason) == 1
        sidecar.until(lambda: health(server, "live")[0] == 503, "not live")
        assert health(server, "live")[1]["reason"] == reason
        assert sidecar.check(Check.GOLDEN).state == "failed", "it goes on to be asked"
        server.terminate()  # as the kubelet does
        assert server.wait() == ExitCode.TRANSIENT
        termination_message = read_report(tmp_path)
        assert (termination_message.reason, said in termination_message.outcome) == (reason, True)


# fault: Devices | every run fails without a known cause or a sidecar | golden sample run by the
#   server | not ready 1 s after three failures, not live after 30 s
def test_without_a_sidecar_and_without_further_requests_it_is_found_too(
    tmp_path: Path, task: ServeTask, switch: Path
) -> None:
    with quick(tmp_path, task) as server:
        switch.write_text("the pump is dry")
        assert [server.post(GOOD).status for _ in range(3)] == [500] * 3
        until(lambda: health(server, "ready")[0] == 503)
        until(lambda: health(server, "live")[0] == 503)


def test_a_passing_failure_restarts_nothing(tmp_path: Path, task: ServeTask, switch: Path) -> None:
    with (
        quick(tmp_path, task, fails=3600) as server,
        Sidecar(tmp_path, task, server.port) as sidecar,
    ):
        sidecar.until_ready()
        switch.write_text("the pump is dry")
        sidecar.until(lambda: not sidecar.is_ready(), "not ready")
        sidecar.until(lambda: health(server, "ready")[0] == 503, "the server is not ready")
        switch.unlink()
        sidecar.until_ready()
        assert health(server, "ready")[0] == 200
        assert sidecar.check(Check.SERVER).state == "ok"
        assert server.post(GOOD).status == 200


# fault: Devices | false alarm: hundreds of a client's inputs fail | golden sample run by the
#   server | no alarm
def test_a_client_s_poison_takes_nothing_away(tmp_path: Path) -> None:
    """Runs of requests fail by the hundred; those of the golden sample do not."""
    looking_up = parse_text(
        "(float[4] x, int64[2] sizes) => (float[?, ?] y) { y = Reshape(x, sizes) }"
    )
    sample: Feeds = {"x": np.ones(4, np.float32), "sizes": np.array([2, 2])}
    task = artifact(tmp_path, looking_up, [sample])
    poison = json_inputs(x=np.array([1, 2, 3, 4], np.float32), sizes=np.array([3, 3]))
    with (
        quick(tmp_path, task, lost=0, fails=0) as server,
        Sidecar(tmp_path, task, server.port) as sidecar,
    ):
        sidecar.until_ready()
        for _ in range(200):
            assert server.post(poison).status in (400, 500)
            assert health(server, "live")[0] == 200
            assert health(server, "ready")[0] == 200
        assert sidecar.is_ready()
        assert sidecar.check(Check.GOLDEN).state == "ok"


# fault: Devices | the device was lost before the start | first golden sample; exit code 75,
#   DeviceLost | at start
def test_a_device_lost_before_the_start_is_named_too(
    tmp_path: Path, task: ServeTask, switch: Path
) -> None:
    switch.write_text(LOST_DEVICE)
    server = Server(tmp_path, task)
    try:
        assert server.wait() == ExitCode.TRANSIENT
    finally:
        server.stop()
    termination_message = read_report(tmp_path)
    assert termination_message.reason is Reason.DEVICE_LOST
    assert (
        "CUDA failure 700: an illegal memory access was encountered" in termination_message.outcome
    )
    assert "pod-x" not in termination_message.outcome, "the same on every pod"


def cudart() -> ctypes.CDLL:
    """Return the CUDA runtime that comes with the TensorRT-RTX provider; it needs no driver for this."""
    spec = present(importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx"))
    assert spec.origin is not None
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("libcudart.so*"))))
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def test_errors_match_the_cuda_runtime() -> None:
    library = cudart()
    for code, wording in LOST.items():
        text = library.cudaGetErrorString(code).decode()
        assert text == wording
        assert find_lost_device(f"CUDA failure {code}: {text} ; GPU=0 ; hostname=h ;") is not None
        assert find_lost_device(f"something failed: {text}") is not None
    for code in (1, 2, 701, 720, 801):  # this launch, this size, this memory: the device is there
        text = library.cudaGetErrorString(code).decode()
        assert find_lost_device(f"CUDA failure {code}: {text} ; GPU=0 ; hostname=h ;") is None


def test_the_provider_writes_errors_in_the_form_that_is_read(gpu_python: Path) -> None:
    program = "import onnxruntime, pathlib; print(pathlib.Path(onnxruntime.__file__).parent)"
    shown = subprocess.run([gpu_python, "-c", program], capture_output=True, text=True, check=True)
    library = Path(shown.stdout.strip()) / "capi/libonnxruntime_providers_cuda.so"
    assert b"%s failure %d: %s ; GPU=%d ; hostname=%s" in library.read_bytes()
    written = "CUDA failure 719: x ; GPU=0 ; hostname=h"
    assert find_lost_device(written) == "CUDA failure 719: unspecified launch failure"


@pytest.mark.parametrize(
    "text",
    [
        "TensorRT EP execution context enqueue failed.",
        "Non-zero status code returned while running MatMul node: CUDA failure 2: out of memory ;",
        "CUBLAS failure 7: CUBLAS_STATUS_INVALID_VALUE ; GPU=0",
        "the model has 700 inputs",
    ],
)
def test_an_error_without_a_device_is_no_lost_device(text: str) -> None:
    assert find_lost_device(text) is None


# The health of runs, by the clock.


def test_only_a_golden_sample_decides() -> None:
    health = RunHealth()
    for _ in range(2):
        health.on_failure()
    assert health.next_test(0.0) is None
    health.on_failure()
    assert health.next_test(0.0) == 0.0
    assert health.why_not_ready() is None
    health.on_test(None, 0.0)
    assert health.next_test(100.0) is None, "counted again"
    for _ in range(3):
        health.on_failure()
    assert health.next_test(0.25) == 0.75, "a flood of failures costs one run a second"
    health.on_test("it is dry", 1.0)
    trouble = present(health.why_not_ready())
    assert trouble.reason is Reason.RUNS_FAIL
    assert health.why_not_live(30.9) is None
    assert health.why_not_live(31.0) == trouble
    health.on_success()
    assert health.why_not_ready() is None


def test_the_device_s_own_word_comes_first_and_stays() -> None:
    health = RunHealth()
    for at, error in enumerate(["it is dry", LOST_DEVICE, "CUDA failure 719: x"]):
        health.on_test(error, float(at))
    trouble = present(health.why_not_ready())
    assert trouble.reason is Reason.DEVICE_LOST
    assert trouble.message.endswith("CUDA failure 700: an illegal memory access was encountered")
    assert health.why_not_live(4.9) is None
    assert health.why_not_live(5.0) == trouble


def test_an_xid_asks_for_a_trial_and_names_the_device() -> None:
    health = RunHealth()
    health.on_xid(43)
    assert health.next_test(0.0) == 0.0
    health.on_test(None, 0.0)
    assert health.why_not_ready() is None, "it was another process's"
    health.on_xid(79)
    health.on_test("TensorRT EP execution context enqueue failed.", 2.0)
    trouble = present(health.why_not_ready())
    assert trouble.reason is Reason.DEVICE_LOST
    assert trouble.message.endswith("TensorRT EP execution context enqueue failed. (Xid 79)")
    assert health.describe_stuck(60).reason is Reason.DEVICE_LOST
    assert RunHealth().describe_stuck(60).reason is Reason.RUNS_FAIL


# NVML: what it says with the ABI of nvml.h, by a library compiled here; and nothing without one.

NVML = """
typedef unsigned long long word;
typedef struct { void *device; word type, data; unsigned gpu, compute; } Event;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlEventSetCreate(void **set) { *set = (void *)0x5e7; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(0xd0L + index); return 0; }
int nvmlDeviceRegisterEvents(void *device, word types, void *set) {
    if (types != 8 || set != (void *)0x5e7) return 2;
    return device == (void *)0xd0 ? 3 : REGISTERED;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout) {
    static int turn;
    event->type = turn ? 8 : 2; event->data = 79;
    switch (turn++) { case 2: return 10; case 3: return 15; case 4: return 999; default: return 0; }
}
"""


def nvml(folder: Path, registered: int) -> str:
    return compile_c(folder / f"nvml{registered}.so", NVML, f"-DREGISTERED={registered}")


def test_xids_are_read_as_nvml_h_lays_them_out(tmp_path: Path) -> None:
    events = present(XidEvents.open(nvml(tmp_path, 0)))
    assert [events.wait(1) for _ in range(4)] == [None, 79, None, 79]
    with pytest.raises(OSError, match="fails with 999"):
        events.wait(1)


def test_where_no_xid_is_reported_there_is_none(tmp_path: Path) -> None:
    assert XidEvents.open(nvml(tmp_path, 3)) is None
    assert XidEvents.open("libnvidia-ml-that-is-nowhere.so.1") is None
    assert XidEvents.open("libc.so.6") is None
