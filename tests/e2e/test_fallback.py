"""The incident itself, on real nodes: a session that falls back to the CPU without a word."""

import pytest

from hack.samples.magika import features, label
from tests.e2e.harness import Namespace, eventually, http_json, inference_model
from tests.e2e.test_engines import CLASS, l4

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
__all__ = ["l4"]  # a fixture

SHAPES = [{"input": "x", "min": [1, 3, 32, 32], "opt": [4, 3, 32, 32], "max": [8, 3, 32, 32]}]
MAKEFILE = (
    b"all: main.o\n\tcc -o main main.o\n\nclean:\n\trm -f main main.o\n.PHONY: all clean\n" * 3
)


def metrics(namespace: Namespace, model: str) -> str:
    pod = namespace.items(
        "pods", f"enginewright.dev/model={model},enginewright.dev/component=serve"
    )
    name = pod[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}:8081/proxy/metrics"
    return namespace.kubectl("get", "--raw", path)


def value(exposition: str, metric: str, *labels: str) -> float:
    for line in exposition.splitlines():
        if line.startswith(f"{metric}{{") and all(each in line for each in labels):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {metric} with {labels} in\n{exposition}")


def test_under_forbid_a_whole_fallback_gets_no_traffic(l4: Namespace) -> None:
    l4.apply(inference_model("forbidden", "magika.onnx", on=CLASS, backends=["cuda"]))

    def told() -> dict[str, object]:
        found = l4.condition("forbidden", "PlacementVerified")
        return found if found.get("status") == "False" else {}

    found = eventually(told, 240, "PlacementVerified=False")
    assert found["reason"] in ("ProviderMissing", "DriverMissing")
    assert "lib" in str(found["message"]), "it names the library that is not there"
    assert l4.condition("forbidden", "Available")["status"] == "False"
    assert l4.condition("forbidden", "Ready")["reason"] == found["reason"]
    l4.kubectl("delete", "im", "forbidden")


def test_under_allow_it_serves_and_everybody_is_told(l4: Namespace) -> None:
    allow = {"policy": "Allow"}
    l4.apply(inference_model("allowed", "magika.onnx", on=CLASS, backends=["cuda"], fallback=allow))
    l4.wait_ready("allowed", 300)
    found = l4.wait_condition("allowed", "FallbackActive", "True", "NodeFallback", 60)
    assert "CPUExecutionProvider" in found["message"]
    row = l4.kubectl("get", "im", "allowed").strip().splitlines()[1]
    assert "0% cuda" in row
    exposition = metrics(l4, "allowed")
    assert value(exposition, "enginewright_fallback_active", 'kind="NodeFallback"') == 1
    assert value(exposition, "enginewright_fallback_ratio") == 1
    assert value(exposition, "enginewright_fallback_nodes") > 50
    with l4.forward("service/allowed", 80) as url:
        answer = http_json(
            f"{url}/v2/models/allowed/infer",
            {
                "inputs": [
                    {
                        "name": "bytes",
                        "shape": [1, 2048],
                        "datatype": "INT32",
                        "data": features(MAKEFILE),
                    }
                ]
            },
        )
    assert label(answer["outputs"][0]["data"]) == "makefile"
    l4.kubectl("delete", "im", "allowed")


def test_under_allow_the_next_backend_serves_and_is_a_fallback(l4: Namespace) -> None:
    l4.apply(
        inference_model(
            "second-choice",
            "magika.onnx",
            on=CLASS,
            backends=["tensorrt-rtx", "cuda"],
            fallback={"policy": "Allow"},
        )
    )
    l4.wait_ready("second-choice", 400)
    l4.wait_condition("second-choice", "FallbackActive", "True", "BackendFallback", 60)
    status = l4.get("inferencemodel", "second-choice")["status"]
    (rejected,) = status["rejectedBackends"]
    assert (rejected["backend"], rejected["reason"]) == ("tensorrt-rtx", "DriverMissing")
    assert status["serving"]["backend"] == "cuda"
    l4.kubectl("delete", "im", "second-choice")


def test_a_part_elsewhere_is_named_forbidden_and_within_a_budget_allowed(
    namespace: Namespace,
) -> None:
    def model(**fallback: str) -> dict[str, object]:
        made = inference_model(
            "partly-here", "partly-supported.onnx", backends=["openvino"], shapes=SHAPES
        )
        return made | {"spec": made["spec"] | ({"fallback": fallback} if fallback else {})}

    namespace.apply(model())
    found = namespace.wait_condition("partly-here", "Ready", "False", "NodeFallback", 240)
    assert "volume (Det)" in found["message"]
    namespace.apply(model(policy="Budget", maxNodeShare="60%"))
    namespace.wait_ready("partly-here", 240)
    namespace.wait_condition("partly-here", "FallbackActive", "False", "WithinBudget", 60)
    exposition = metrics(namespace, "partly-here")
    assert value(exposition, "enginewright_fallback_active", 'kind="NodeFallback"') == 0
    assert value(exposition, "enginewright_fallback_nodes") >= 1
    namespace.kubectl("delete", "im", "partly-here")
