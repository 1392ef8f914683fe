"""The incident itself, on real nodes: a session that silently falls back to the CPU."""

import time

import pytest
from enginewright_contract.verdict import RELEASE_ANNOTATION

from hack.samples.magika import label, tensor
from tests.e2e.devices import CLASS, SHAPES
from tests.e2e.harness import Namespace, eventually, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MAKEFILE = (
    b"all: main.o\n\tcc -o main main.o\n\nclean:\n\trm -f main main.o\n.PHONY: all clean\n" * 3
)


@pytest.fixture(scope="module", autouse=True)
def side_by_side(l4: Namespace) -> None:
    """Apply all models at once: no test waits for another one's models."""
    allow, backends = {"policy": "Allow"}, ["tensorrt-rtx", "cuda"]
    l4.apply(
        inference_model(
            "second-choice", "magika.onnx", on=CLASS, backends=backends, fallback=allow
        ),
        inference_model("forbidden", "magika.onnx", on=CLASS, backends=["cuda"]),
        inference_model("allowed", "magika.onnx", on=CLASS, backends=["cuda"], fallback=allow),
        partly_here(),
        inference_model("sudden", "magika.onnx"),
    )


def partly_here(**fallback: str) -> dict[str, object]:
    """Return a model of which OpenVINO does not run every node."""
    model = inference_model(
        "partly-here", "partly-supported.onnx", backends=["openvino"], shapes=SHAPES
    )
    return model | {"spec": model["spec"] | ({"fallback": fallback} if fallback else {})}


def metrics(namespace: Namespace, model: str) -> str:
    """Return the metrics of the sidecar of a pod of the serving revision."""
    revision = namespace.get("inferencemodel", model)["status"]["serving"]["revision"]
    selector = f"enginewright.dev/model={model},enginewright.dev/revision={revision}"
    pods = namespace.items("pods", f"{selector},enginewright.dev/component=serve")
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pods[0]['metadata']['name']}:8081/proxy"
    return namespace.kubectl("get", "--raw", f"{path}/metrics")


def value(exposition: str, metric: str, *labels: str) -> float:
    for line in exposition.splitlines():
        if line.startswith(f"{metric}{{") and all(item in line for item in labels):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {metric} with {labels} in\n{exposition}")


def test_under_forbid_a_whole_fallback_gets_no_traffic(l4: Namespace) -> None:
    def failure() -> dict[str, object]:
        condition = l4.condition("forbidden", "PlacementVerified")
        return condition if condition.get("status") == "False" else {}

    placement = eventually(failure, 240, "PlacementVerified=False")
    assert placement["reason"] in ("ProviderMissing", "DriverMissing")
    assert "lib" in str(placement["message"]), "it names the missing library"
    assert l4.condition("forbidden", "Available")["status"] == "False"
    assert l4.condition("forbidden", "Ready")["reason"] == placement["reason"]
    l4.kubectl("delete", "im", "forbidden")


def test_under_allow_it_serves_and_reports_the_fallback(l4: Namespace) -> None:
    l4.wait_ready("allowed", 300)
    active = l4.wait_condition("allowed", "FallbackActive", "True", "ProviderMissing", 60)
    assert "CPUExecutionProvider" in active["message"]
    row = l4.kubectl("get", "im", "allowed").strip().splitlines()[1]
    assert "0% cuda" in row
    assert l4.condition("allowed", "PlacementVerified")["reason"] == "ProviderMissing"
    assert "; and DriverMissing: " in l4.condition("allowed", "PlacementVerified")["message"]
    exposition = metrics(l4, "allowed")
    labels = 'kind="NodeFallback",reason="ProviderMissing"'
    assert value(exposition, "enginewright_fallback_reason", labels) == 1
    assert value(exposition, "enginewright_fallback_active", 'kind="NodeFallback"') == 1
    assert value(exposition, "enginewright_fallback_ratio") == 1
    assert value(exposition, "enginewright_fallback_nodes") > 50
    answer = l4.infer("allowed", tensor(MAKEFILE))
    assert label(answer["outputs"][0]["data"]) == "makefile"
    l4.kubectl("delete", "im", "allowed")


def test_under_allow_the_next_backend_serves_and_is_a_fallback(l4: Namespace) -> None:
    l4.wait_ready("second-choice", 400)
    l4.wait_condition("second-choice", "FallbackActive", "True", "ProviderMissing", 60)
    status = l4.get("inferencemodel", "second-choice")["status"]
    (rejected,) = status["rejectedBackends"]
    assert (rejected["backend"], rejected["reason"]) == ("tensorrt-rtx", "DriverMissing")
    assert status["serving"]["backend"] == "cuda"
    l4.kubectl("delete", "im", "second-choice")


def test_nodes_on_another_provider_are_named_and_a_budget_allows_them(
    namespace: Namespace,
) -> None:
    ready = namespace.wait_condition("partly-here", "Ready", "False", "NodeFallback", 240)
    assert namespace.condition("partly-here", "Stalled")["status"] == "True"
    assert "volume (Det)" in ready["message"]
    namespace.apply(partly_here(policy="Budget", maxNodeShare="60%"))
    namespace.wait_ready("partly-here", 240)
    namespace.wait_condition("partly-here", "FallbackActive", "False", "WithinBudget", 60)
    exposition = metrics(namespace, "partly-here")
    assert value(exposition, "enginewright_fallback_active", 'kind="NodeFallback"') == 0
    assert value(exposition, "enginewright_fallback_nodes") >= 1
    namespace.kubectl("delete", "im", "partly-here")


# The product's server, in which a file triggers what ONNX Runtime does when a provider fails in a run:
# it creates the session again on the CPU (InferenceSession.set_providers).
FALLS = """\
import pathlib, sys, threading, time
import onnxruntime
from enginewright_runtime.__main__ import main
made = []
create = onnxruntime.InferenceSession.__init__
def remember(self, *arguments, **options):
    create(self, *arguments, **options)
    made.append(self)
onnxruntime.InferenceSession.__init__ = remember
def fall():
    while not pathlib.Path("/tmp/fall").exists():
        time.sleep(0.05)
    made[-1].set_providers(["CPUExecutionProvider"])
threading.Thread(target=fall, daemon=True).start()
sys.exit(main(["serve"]))
"""


def test_a_session_replaced_while_serving_is_reported_within_seconds(namespace: Namespace) -> None:
    namespace.wait_ready("sudden")
    namespace.apply(twin(namespace, "sudden"))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/twin", "--timeout=120s")
    namespace.wait_condition("sudden", "FallbackActive", "False", "NoFallback", 60)

    def fallback() -> float:
        path = f"/api/v1/namespaces/{namespace.name}/pods/twin:8081/proxy/metrics"
        exposition = namespace.kubectl("get", "--raw", path)
        return value(exposition, "enginewright_fallback_active", 'kind="NodeFallback"')

    assert fallback() == 0
    namespace.kubectl("exec", "twin", "--container", "server", "--", "touch", "/tmp/fall")
    began = time.monotonic()
    eventually(lambda: fallback() == 1, 60, "the metric", interval=0.2)
    metric = time.monotonic() - began
    ready = namespace.wait_condition("sudden", "Ready", "False", "SessionReplaced", 90)
    reported = time.monotonic() - began
    assert "CPUExecutionProvider" in ready["message"]
    print(f"fallback begun to metric {metric:.1f} s, to Ready=False {reported:.1f} s")
    assert namespace.condition("sudden", "FallbackActive")["status"] == "True"
    assert namespace.condition("sudden", "Available")["status"] == "True"

    def annotations() -> dict[str, str]:
        return dict(namespace.get("pod", "twin")["metadata"].get("annotations") or {})

    # the operator's annotation, the kubelet's file of the downward API, the sidecar's next check
    eventually(lambda: RELEASE_ANNOTATION in annotations(), 60, "the release")
    annotated = time.monotonic()
    namespace.kubectl("wait", "--for=condition=Ready=False", "pod/twin", "--timeout=120s")
    print(f"released to not ready {time.monotonic() - annotated:.1f} s")
    namespace.kubectl("delete", "pod", "twin", "--grace-period=0", "--force")
    namespace.wait_ready("sudden", 120)
    namespace.kubectl("delete", "im", "sudden")


def twin(namespace: Namespace, model: str) -> dict[str, object]:
    """Return a pod like the Deployment's, whose server can be made to fall back."""
    template = namespace.get("deployment", f"{model}-cpu")["spec"]["template"]
    (server,) = template["spec"]["containers"]
    server = server | {"command": ["python3", "-c", FALLS]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "twin", "labels": template["metadata"]["labels"]},
        "spec": template["spec"] | {"containers": [server]},
    }
