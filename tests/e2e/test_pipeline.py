"""Preparation of a model: converted, expanded, quantized and extended, with each change reported."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.devices import CLASS, set_class
from tests.e2e.files import Files
from tests.e2e.harness import Namespace, http_json, inference_model
from tests.support.processing import picture

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DETECT = [{"input": "x", "min": [1, 3, 320, 320], "opt": [1, 3, 320, 320], "max": [1, 3, 640, 640]}]


@pytest.fixture(scope="module", autouse=True)
def side_by_side(namespace: Namespace, model_files: Path, file_server: Files) -> None:
    """Apply all models at once: no test waits for another one's models."""
    (library,) = model_files.glob("*.so")
    cube = {"uri": f"pvc://models/{library.name}", "sha256": library.stem}
    cube["type"] = "CustomOperators"
    calibration = {"calibration": {"uri": "pvc://models/calibration.npz"}}
    set_class(namespace, CLASS, aheadOfTime=True, backends=["tensorrt-rtx", "cuda"])
    namespace.apply(
        inference_model(
            "detect",
            "detect.onnx",
            on=CLASS,
            precision="FP16",
            shapes=DETECT,
            parity={"samples": {"uri": "pvc://models/detect-samples.npz"}},
        ),
        inference_model("attention", "attention.onnx", backends=["openvino"]),
        inference_model(
            "image",
            "image.onnx",
            backends=["cpu"],
            precision="INT8",
            quantization=calibration,
            parity={"outputs": [{"name": "y", "acceptUnjudged": True}]},
        ),
        inference_model("cube", "cube.onnx", backends=["cpu"], extensions=[cube]),
        inference_model(
            "colors",
            "colors.onnx",
            backends=["cpu"],
            extensions=[{"type": "ONNXRuntimeExtensions"}],
            processing={
                "before": [{"uri": "pvc://models/decode.onnx"}],
                "after": [{"uri": file_server.url("labels.onnx")}],
            },
        ),
    )


def preparation_of(namespace: Namespace, model: str) -> dict[str, Any]:
    return dict(namespace.get("inferencemodel", model)["status"]["prepared"])


def test_an_unsupported_operator_is_expanded_and_runs_on_the_backend(
    namespace: Namespace,
) -> None:
    """Attention as one operator would silently run on the CPU."""
    namespace.wait_ready("attention")
    assert "Attention" in preparation_of(namespace, "attention")["changes"]
    assert "Attention" in namespace.condition("attention", "Validated")["message"]
    namespace.wait_condition("attention", "PlacementVerified", "True", "PromiseKept", 60)
    row = namespace.kubectl("get", "im", "attention").splitlines()[1]
    assert "100% openvino" in row
    namespace.kubectl("delete", "im", "attention")


def test_a_quantized_model_serves_and_reports_its_precision(namespace: Namespace) -> None:
    namespace.wait_ready("image")
    assert preparation_of(namespace, "image")["precision"] == "INT8"
    # one of the ten classes is hardly moved by any sample
    proven = namespace.condition("image", "ParityVerified")
    assert proven["status"] == "True"
    assert (
        "spec.parity.outputs accepts that 1 of 10 indices of axis 1 (1) of output 'y'"
        in proven["message"]
    )
    x = {"name": "x", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.5] * 3072}
    answer = namespace.infer("image", x)
    with namespace.forward("service/image", 80) as url:
        execution = http_json(f"{url}/v2/models/image/execution")
    assert len(answer["outputs"][0]["data"]) == 10
    # the nodes' processors are unknown, so no weight may saturate on any of them
    manifest = execution["details"]["manifest"]
    assert (manifest["recipe"]["int8_products"], manifest["saturable"]) == ("any", False)
    assert manifest["processor"]["architecture"] == execution["processor"]["architecture"]
    namespace.kubectl("delete", "im", "image")


def test_half_precision_is_folded_first_and_becomes_an_engine(namespace: Namespace) -> None:
    """Cast as it is, the model's batch normalization overflows: a variance of 97,903,600."""
    namespace.wait_condition("detect", "EnginesReady", "True", "Built", 300)
    assert preparation_of(namespace, "detect")["precision"] == "FP16"
    assert "atch norm" in preparation_of(namespace, "detect")["changes"]
    namespace.kubectl("delete", "im", "detect")


def test_a_custom_operator_serves(namespace: Namespace) -> None:
    namespace.wait_ready("cube")
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1.0, 0.0, 2.0, 3.0]}
    answer = namespace.infer("cube", x)
    assert answer["outputs"][0]["data"] == [0.0, 0.0, 8.0, 27.0]
    namespace.kubectl("delete", "im", "cube")


def test_clients_send_an_image_and_receive_its_label(namespace: Namespace) -> None:
    """Its steps come from the claim and from a web server, the library from the runtime image."""
    namespace.wait_ready("colors")
    status = namespace.get("inferencemodel", "colors")["status"]
    assert [item["name"] for item in status["source"]["pins"]] == ["model", "before-0", "after-0"]
    for color, label in (((200, 9, 9), "red"), ((9, 9, 200), "blue")):
        data = list(picture(color))
        image = {"name": "image", "datatype": "UINT8", "shape": [len(data)], "data": data}
        answer = namespace.infer("colors", image)
        outputs = {item["name"]: item["data"] for item in answer["outputs"]}
        assert outputs["label"] == [label]
        assert outputs["brightness"][0] == pytest.approx(218 / 3 / 255, abs=0.02)
