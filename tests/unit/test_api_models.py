"""The models read what the API server sends and write what it takes."""

from typing import Any

import pytest
from enginewright.api.accelerator_class import AcceleratorClass, Backend
from enginewright.api.inference_model import InferenceModel
from pydantic import ValidationError

RAW: dict[str, Any] = {
    "apiVersion": "enginewright.dev/v1alpha1",
    "kind": "InferenceModel",
    "metadata": {
        "name": "resnet50",
        "namespace": "vision",
        "uid": "0b1c",
        "generation": 3,
        "resourceVersion": "17",
        "labels": {"team": "vision"},
        "deletionTimestamp": "2026-11-21T04:44:30Z",
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "source": {"uri": "pvc://models/model.onnx", "secretRef": {"name": "reader"}},
        "backends": ["openvino", "cpu"],
        "accelerators": [{"class": "cpu", "replicas": 2}],
        "shapes": [{"input": "x", "min": [1], "opt": [8], "max": [32]}],
        "podTemplate": {
            "resources": {"limits": {"cpu": 2, "memory": "4Gi"}},
            "affinity": {"nodeAffinity": {"anything": ["goes"]}},
        },
        "fieldOfANewerSchema": True,
    },
}


def test_reads_an_object_of_the_api_server() -> None:
    model = InferenceModel.model_validate(RAW)
    assert (model.metadata.name, model.metadata.generation) == ("resnet50", 3)
    assert model.metadata.deletion_timestamp is not None
    assert model.spec.source.secret_ref is not None
    assert model.spec.source.secret_ref.name == "reader"
    assert model.spec.backends == (Backend.OPENVINO, Backend.CPU)
    assert model.spec.accelerators[0].class_name == "cpu"
    assert model.spec.pod_template.resources.limits == {"cpu": 2, "memory": "4Gi"}
    assert model.status.conditions == ()


def test_writes_only_set_fields_by_the_apis_names() -> None:
    model = InferenceModel.model_validate(RAW)
    written = model.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert written == {
        name: value for name, value in RAW["spec"].items() if name != "fieldOfANewerSchema"
    }


def test_cannot_be_changed() -> None:
    model = InferenceModel.model_validate(RAW)
    with pytest.raises(ValidationError, match="frozen"):
        model.spec.replicas = 7  # type: ignore[misc]  # that is the point


def test_reads_a_class() -> None:
    accelerator = AcceleratorClass.model_validate(
        {
            "metadata": {"name": "l4"},
            "spec": {
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
                "resourceName": "nvidia.com/gpu",
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "computeCapability": "8.9",
                "backends": ["tensorrt", "cuda"],
            },
        }
    )
    assert accelerator.spec.node_selector == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert accelerator.spec.tolerations[0].effect is None
    assert accelerator.spec.ahead_of_time is False
