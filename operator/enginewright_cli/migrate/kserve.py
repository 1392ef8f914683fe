"""An InferenceModel out of an InferenceService of KServe, and what is left to decide. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from enginewright.api.base import API_VERSION
from enginewright.api.inference_model import InferenceModel
from enginewright_contract.schemes import AZ, PVC

KIND: Final = "InferenceService"
_FORMAT: Final = "onnx"
_GROUP: Final = "kserve.io/"
# of the predictor's pod and of its container, which the podTemplate has under the same names
_OF_POD: Final = (
    "nodeSelector", "tolerations", "affinity", "serviceAccountName", "imagePullSecrets",
    "runtimeClassName", "priorityClassName", "topologySpreadConstraints",
)  # fmt: skip
_SCALING: Final = frozenset({"minReplicas", "maxReplicas"})
_MAPPED: Final = frozenset(
    {*_OF_POD, *_SCALING, "model", _FORMAT, "timeout", "containerConcurrency"}
)
_OF_MODEL: Final = frozenset(
    {"modelFormat", "storageUri", "storage", "protocolVersion", "resources", "env", "name"}
)
_ADVICE: Final[Mapping[str, str]] = {
    "canaryTrafficPercent": "every update has a canary: spec.rollout.canary",
    "scaleTarget": "write spec.serving.autoscaling.metrics",
    "scaleMetric": "write spec.serving.autoscaling.metrics",
    "logger": "spec.serving.accessLog",
    "batcher": "spec.serving.batching",
    "runtime": "spec.backends, by the class if absent",
    "transformer": "ONNX models as steps: spec.processing, or a service of your own before it",
    "explainer": "a service of your own",
}
_DEVICE: Final = re.compile(r"[\w.-]+/(?:gpu|mig-[\w.-]+)")
_AZURE: Final = re.compile(r"https://(?=[\w-]+\.blob\.)")


class NotMigratableError(ValueError):
    """It is no ONNX model, or names none."""


@dataclass
class Migrated:
    """The manifest, and notes on what it leaves open, each as "field: what to do"."""

    manifest: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def migrate(service: Mapping[str, Any]) -> Migrated:
    """Return the InferenceModel of an InferenceService. Raises NotMigratableError."""
    spec = _mapping(service, "spec")
    predictor = _mapping(spec, "predictor")
    model = _find_model(predictor)
    notes: list[str] = []
    pod = {name: predictor[name] for name in _OF_POD if predictor.get(name)}
    pod |= _container(model, notes)
    serving = _serving(predictor, notes)
    replicas = serving.pop("replicas", None)
    fields = {
        "source": {"uri": _uri(model, notes)},
        "replicas": replicas,
        "serving": serving,
        "podTemplate": pod,
    }
    if "serviceAccountName" in pod:
        notes.append(
            "predictor.serviceAccountName: keys of its Secrets are not taken; name one in spec.source.secretRef"
        )
    if model.get("protocolVersion", "v1") == "v1":
        notes.append("protocolVersion: clients of v1 have to send /v2/models/NAME/infer")
    notes += _find_left_out("", spec, {"predictor"})
    notes += _find_left_out("predictor.", predictor, _MAPPED)
    notes += _find_left_out("predictor.model.", model, _OF_MODEL)
    metadata = _mapping(service, "metadata")
    named = {name: metadata[name] for name in ("name", "namespace") if metadata.get(name)}
    labels = _mapping(metadata, "labels")
    own = {name: text for name, text in labels.items() if _GROUP not in str(name)}
    return Migrated(
        {
            "apiVersion": API_VERSION,
            "kind": InferenceModel.kind,
            "metadata": {**named, **({"labels": own} if own else {})},
            "spec": {name: value for name, value in fields.items() if value},
        },
        notes,
    )


def _find_model(predictor: Mapping[str, Any]) -> Mapping[str, Any]:
    model = _mapping(predictor, "model") or _mapping(predictor, _FORMAT)
    if not model:
        others = ", ".join(predictor) or "nothing"
        raise NotMigratableError(f"spec.predictor has no ONNX model, but {others}")
    name = _mapping(model, "modelFormat").get("name", _FORMAT)
    if name != _FORMAT:
        raise NotMigratableError(f"modelFormat is {name}: export the model to ONNX")
    return model


def _uri(model: Mapping[str, Any], notes: list[str]) -> str:
    storage = _mapping(model, "storage")
    uri = str(model.get("storageUri") or "")
    if not uri and storage.get("path"):
        bucket = _mapping(storage, "parameters").get("bucket", "BUCKET")
        uri = f"s3://{bucket}/{storage['path']}"
        notes.append("storage: check the address, and name the Secret in spec.source.secretRef")
    if not uri:
        raise NotMigratableError("the model has neither storageUri nor storage.path")
    uri = _AZURE.sub(AZ.prefix, uri)
    if uri.startswith(PVC.prefix) and "/" not in uri.removeprefix(PVC.prefix):
        uri += "/model.onnx"
    if not uri.endswith(".onnx"):
        notes.append(
            "storageUri: it is a folder, or a file of another name; if it holds more than one .onnx file, name the"
            " model's"
        )
    return uri


def _container(model: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    kept: dict[str, dict[str, Any]] = {}
    for kind, amounts in _mapping(model, "resources").items():
        if not isinstance(amounts, Mapping):
            continue
        for name, amount in amounts.items():
            if not _DEVICE.fullmatch(str(name)):
                kept.setdefault(kind, {})[name] = amount
            elif kind == "limits":
                notes.append(
                    f"resources: {name} is requested by the class; name it in spec.accelerators"
                )
    fields = {"resources": kept, "env": model.get("env")}
    return {name: value for name, value in fields.items() if value}


def _serving(predictor: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return fields of spec.serving, and `replicas` of the spec unless it scales."""
    least, most = (_number(predictor, name, 1) for name in ("minReplicas", "maxReplicas"))
    serving: dict[str, Any] = {}
    if least == 0:
        notes.append("minReplicas: 0 needs an autoscaler of your own (docs/autoscaling.md)")
        least = 1
    if most > least:
        serving["autoscaling"] = {"minReplicas": least, "maxReplicas": most}
    elif least > 1:
        serving["replicas"] = least
    if seconds := _number(predictor, "timeout", 0):
        serving["requestTimeout"] = f"{seconds}s"
    if requests := _number(predictor, "containerConcurrency", 0):
        serving["maxQueue"] = requests
    return serving


def _find_left_out(
    path: str, fields: Mapping[str, Any], mapped: frozenset[str] | set[str]
) -> Iterator[str]:
    for name in fields:
        if name not in mapped:
            yield f"{path}{name}: not taken over; {_ADVICE.get(name, 'see whether it is needed')}"


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else default


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, Mapping) else {}
