"""From an InferenceModel, an AcceleratorClass, images and content to the keys, as the operator and the Jobs compute them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import Prepared
from enginewright.observed.nodes import NodeView, node_view
from enginewright.plan.engines.wanted import Engines, request_engines
from enginewright.plan.resolve.recipe import steps_of
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.types import Facts
from enginewright_contract.base import Message
from enginewright_contract.images import ImageFacts
from enginewright_contract.keys import compute_prepared_key, sha256_text
from enginewright_contract.manifest import MODEL_NAME, ArtifactFile
from enginewright_contract.task import EngineRecipe
from enginewright_runtime.core.digests import model_digest
from enginewright_runtime.session.extensions.libraries import key_data

from tests.support.plan_objects import (
    CPU_IMAGE,
    GPU_IMAGE,
    NAMESPACE,
    OPENVINO_IMAGE,
    RTX_IMAGE,
    Json,
    gpu_node,
    image_facts,
    make_object,
    node,
)
from tests.support.plan_world import CONFIG

IMAGES: Final = {"cpu": CPU_IMAGE, "openvino": OPENVINO_IMAGE, "gpu": GPU_IMAGE, "rtx": RTX_IMAGE}
GPU: Final[Json] = {
    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
    "resourceName": "nvidia.com/gpu",
    "computeCapability": "8.9",
    "backends": ["tensorrt"],
}
CPU: Final[Json] = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Keys:
    """The keys of one model on one class, and the recipes in them."""

    prepared: str
    engine: str | None
    recipes: tuple[Message, ...]


@dataclass(frozen=True)
class Inputs:
    """Everything that a model's keys could depend on."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    name: str = "resnet"
    namespace: str = NAMESPACE
    metadata: Mapping[str, Any] = field(default_factory=dict)
    class_name: str = "l4"
    accelerator: Mapping[str, Any] = field(default_factory=lambda: GPU)
    images: Mapping[str, str] = field(default_factory=lambda: IMAGES)  # references, by variant
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the images
    versions: Mapping[str, str] = field(default_factory=dict)  # of the images' backends
    content: Mapping[str, str] = field(default_factory=dict)  # what is at the addresses
    operators: str = "0.15.2"  # version of the images' onnxruntime-extensions
    product_labels: tuple[str, ...] = ()  # the setting
    nodes: tuple[NodeView, ...] = (node_view(gpu_node("gpu-1")), node_view(node("cpu-1")))

    def on(self, **accelerator: Any) -> Self:
        """Return them with other fields of the AcceleratorClass."""
        return replace(self, accelerator={**self.accelerator, **accelerator})

    def spec_of(self, **spec: Any) -> Self:
        """Return them with other fields of the model's spec."""
        return replace(self, spec={**self.spec, **spec})

    def select(self, labels: Mapping[str, str]) -> Self:
        """Return them with further labels in the class's selector."""
        return self.on(nodeSelector={**self.accelerator["nodeSelector"], **labels})

    def keys(self) -> Keys:
        """Return the keys, and the recipes in them."""
        facts = self.make_facts()
        target = resolve(facts)
        assert isinstance(target, Target), target
        prepared = self._make_prepared(target, facts)
        (engine,) = request_engines(facts, target, prepared).apply or (None,)
        if engine is None:
            return Keys(prepared.key, None, (target.recipe,))
        spec = engine["spec"]
        recipe = EngineRecipe(
            backend=spec["backend"],
            accelerator_class=spec["class"],
            **{_snake(name): value for name, value in spec["recipe"].items()},
        )
        return Keys(prepared.key, spec["key"], (target.recipe, recipe))

    def engines(self, *existing: InferenceEngine) -> Engines:
        """Return the engines that the model needs, where some exist."""
        facts = self.make_facts({engine.metadata.name: engine for engine in existing})
        target = resolve(facts)
        assert isinstance(target, Target), target
        return request_engines(facts, target, self._make_prepared(target, facts))

    def make_facts(self, engines: Mapping[str, InferenceEngine] | None = None) -> Facts:
        """Return what the operator knows."""
        source = {"uri": "https://models.example/resnet.onnx"}
        model = make_object(
            "InferenceModel", self.name, self.namespace, spec={"source": source, **self.spec}
        )
        model["metadata"] |= {**self.metadata, "uid": "model"}
        accelerator = {"metadata": {"name": self.class_name}, "spec": self.accelerator}
        return Facts(
            model=InferenceModel.model_validate(model),
            config=replace(CONFIG, images=self.images, product_labels=self.product_labels),
            now=_NOW,
            classes=(AcceleratorClass.model_validate(accelerator),),
            nodes=self.nodes,
            images={self.images[variant]: self._image(variant) for variant in self.images},
            engines=engines or {},
        )

    def _make_prepared(self, target: Target, facts: Facts) -> Prepared:
        """Return what a prepare Job reports."""
        return Prepared(
            inputs_hash=target.artifact_hash,
            key=compute_prepared_key(self._digest(), target.recipe, self._data(target, facts)),
            model_digest=self._digest(),
            opset=17,
            ir_version=8,
            nodes=1,
            size_bytes=1,
        )

    def _image(self, variant: str) -> ImageFacts:
        fields = {
            "cpu": {"cpu": "1.31.1"},
            "openvino": {"openvino": "2025.4.1", "cpu": "1.24.1"},
            "gpu": {"tensorrt": "10.13.3", "cuda": "13"},
            "rtx": {"tensorrt-rtx": "1.7.1.116"},
        }[variant]
        ort = ("1.24.1", 25) if variant == "openvino" else ("1.31.1", 26)
        backends = {name: self.versions.get(name, version) for name, version in fields.items()}
        cuda = {"cuda_major": "13"} if variant in {"gpu", "rtx"} else {}
        changes = {"backends": backends, **cuda, **self.facts}
        return image_facts(variant, *ort).model_copy(update=changes)

    def _text(self, name: str) -> str:
        return sha256_text(self.content.get(name, name))

    def _digest(self) -> str:
        """Return the digest of a model of two files, as stage `fetch` computes it."""
        files = (
            ArtifactFile(path=MODEL_NAME, sha256=self._text("weights"), size_bytes=1),
            ArtifactFile(path="weights.bin", sha256=self._text("external data"), size_bytes=1),
        )
        return model_digest(files)

    def _data(self, target: Target, facts: Facts) -> dict[str, str]:
        """Return the digests of what else is fetched, and what the image adds, as stage `publish` does."""
        spec = facts.model.spec
        names = list(steps_of(spec))
        names += ["samples"] if spec.parity.samples else []
        names += ["calibration"] if spec.quantization and spec.quantization.calibration else []
        digests = {name: self._text(name) for name in names}
        return digests | key_data(target.recipe.extensions, self.operators)


def _snake(name: str) -> str:
    return re.sub("([A-Z])", lambda match: f"_{match.group(1).lower()}", name)
