"""Preparation of a model: converted, expanded, quantised and extended, with each change reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.files import Files
from tests.e2e.harness import CommandError, Namespace, http_json, inference_model
from tests.support.processing import picture

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DETECT = [{"input": "x", "min": [1, 3, 320, 320], "opt": [1, 3, 320, 320], "max": [1, 3, 640, 640]}]


@pytest.fixture(scope="module", autouse=True)
def side_by_side(namespace: Namespace, model_files: Path, file_server: Files) -> None:
    """All models at once: tests do not wait for each other's models."""
    (library,) = model_files.glob("*.so")
    extension = {"uri": f"pvc://models/{library.name}", "type": "CustomOperators"}
    known = extension | {"sha256": library.stem}
    other = extension | {"sha256": "0" * 64}
    calibration = {"calibration": {"uri": "pvc://models/calibration.npz"}}
    patch = {"spec": {"aheadOfTime": True, "backends": ["tensorrt-rtx", "cuda"]}}
    namespace.kubectl(
        *("patch", "acceleratorclass", "l4", "--type", "merge", "--patch", json.dumps(patch))
    )
    namespace.apply(
        inference_model(
            "detect",
            "detect.onnx",
            on="l4",
            precision="FP16",
            shapes=DETECT,
            parity={"samples": {"uri": "pvc://models/detect-samples.npz"}},
        ),
        inference_model("attention", "attention.onnx", backends=["openvino"]),
        inference_model(
            "image", "image.onnx", backends=["cpu"], precision="INT8", quantization=calibration
        ),
        inference_model("cube", "cube.onnx", backends=["cpu"], extensions=[known]),
        inference_model("other-cube", "cube.onnx", backends=["cpu"], extensions=[other]),
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


def prepared(namespace: Namespace, model: str) -> dict[str, Any]:
    found: dict[str, Any] = namespace.get("inferencemodel", model)["status"]["prepared"]
    return found


def test_what_the_backend_does_not_know_is_expanded_and_runs_there_whole(
    namespace: Namespace,
) -> None:
    """Attention as one operator would silently run on the CPU."""
    namespace.wait_ready("attention")
    assert "Attention" in prepared(namespace, "attention")["changes"]
    assert "Attention" in namespace.condition("attention", "Validated")["message"]
    namespace.wait_condition("attention", "PlacementVerified", "True", "PromiseKept", 60)
    row = namespace.kubectl("get", "im", "attention").splitlines()[1]
    assert "100% openvino" in row
    namespace.kubectl("delete", "im", "attention")


def test_a_quantised_model_serves_and_says_so(namespace: Namespace) -> None:
    namespace.wait_ready("image")
    assert prepared(namespace, "image")["precision"] == "INT8"
    with namespace.forward("service/image", 80) as url:
        request = {
            "inputs": [
                {"name": "x", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.5] * 3072}
            ]
        }
        answer = http_json(f"{url}/v2/models/image/infer", request)
        execution = http_json(f"{url}/v2/models/image/execution")
    assert len(answer["outputs"][0]["data"]) == 10
    # of the nodes nothing is known, so the weights are those that no processor saturates on
    manifest = execution["details"]["manifest"]
    assert (manifest["recipe"]["int8_products"], manifest["saturable"]) == ("any", False)
    assert manifest["processor"]["architecture"] == execution["processor"]["architecture"]
    namespace.kubectl("delete", "im", "image")


def test_half_precision_is_folded_first_and_becomes_an_engine(namespace: Namespace) -> None:
    """Cast as it is, the model's batch normalisation overflows: a variance of 97,903,600."""
    namespace.wait_condition("detect", "EnginesReady", "True", "Built", 300)
    assert prepared(namespace, "detect")["precision"] == "FP16"
    assert "atch norm" in prepared(namespace, "detect")["changes"]
    namespace.kubectl("delete", "im", "detect")


def test_a_precision_that_the_backend_has_not_is_refused_at_once(namespace: Namespace) -> None:
    half = inference_model("half", "image.onnx", backends=["cpu"], precision="FP16")
    with pytest.raises(CommandError, match="backend cpu does not run FP16"):
        namespace.apply(half)


def test_an_operator_of_the_users_own_serves(namespace: Namespace) -> None:
    namespace.wait_ready("cube")
    with namespace.forward("service/cube", 80) as url:
        request = {
            "inputs": [
                {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1.0, 0.0, 2.0, 3.0]}
            ]
        }
        answer = http_json(f"{url}/v2/models/cube/infer", request)
    assert answer["outputs"][0]["data"] == [0.0, 0.0, 8.0, 27.0]
    namespace.kubectl("delete", "im", "cube")


def test_a_library_of_another_digest_is_not_loaded(namespace: Namespace) -> None:
    found = namespace.wait_condition("other-cube", "Validated", "False", "DigestMismatch", 120)
    assert "0" * 64 in found["message"]
    namespace.kubectl("delete", "im", "other-cube")


def test_clients_send_an_image_and_receive_its_label(namespace: Namespace) -> None:
    """Its steps come from the claim and from a web server; the library is the image's own."""
    namespace.wait_ready("colors")
    status = namespace.get("inferencemodel", "colors")["status"]
    assert [each["name"] for each in status["source"]["pins"]] == ["model", "before-0", "after-0"]
    with namespace.forward("service/colors", 80) as url:
        for color, label in (((200, 9, 9), "red"), ((9, 9, 200), "blue")):
            data = list(picture(color))
            image = {"name": "image", "datatype": "UINT8", "shape": [len(data)], "data": data}
            answer = http_json(f"{url}/v2/models/colors/infer", {"inputs": [image]})
            found = {each["name"]: each["data"] for each in answer["outputs"]}
            assert found["label"] == [label]
            assert found["brightness"][0] == pytest.approx(218 / 3 / 255, abs=0.02)
