"""The objects, facts and reports that tests of decisions begin with."""

from collections.abc import Mapping
from typing import Any, Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.kube import resources
from enginewright.kube.resources import Resource
from enginewright_contract.collection import Collected
from enginewright_contract.execution import Baseline
from enginewright_contract.images import ImageFacts
from enginewright_contract.keys import engine_key
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published, PublishedEngine
from enginewright_contract.task import EngineRecipe
from enginewright_contract.verdict import Check, CheckVerdict, FallbackVerdict, Verdict

Json = dict[str, Any]

NAMESPACE: Final = "shop"
MODEL: Final = "resnet"
CPU_IMAGE: Final = "registry.example/cpu:1"
OPENVINO_IMAGE: Final = "registry.example/openvino:1"
GPU_IMAGE: Final = "registry.example/gpu:1"
RTX_IMAGE: Final = "registry.example/rtx:1"
DIGEST: Final = "d" * 64
KINDS: Final = {
    variable.kind: variable
    for variable in vars(resources).values()
    if isinstance(variable, Resource)
}


def image_facts(variant: str, ort_version: str = "1.31.1", max_opset: int = 26) -> ImageFacts:
    return ImageFacts(
        variant=variant,
        ort_distribution="onnxruntime",
        ort_version=ort_version,
        max_opset=max_opset,
        max_ir_version=13,
        providers=("CPUExecutionProvider",),
        backends={variant: ort_version},
        onnx_version="1.22.0",
        runtime_version="0.1.0",
    )


def accelerator_class(name: str, *backends: str, **spec: Any) -> AcceleratorClass:
    return AcceleratorClass.model_validate(
        {
            "metadata": {"name": name, "uid": f"class-{name}"},
            "spec": {
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "backends": list(backends or ("cpu",)),
                **spec,
            },
        }
    )


COLLECTED = Collected(
    artifacts=9,
    bytes=9000,
    needed_artifacts=4,
    needed_bytes=4000,
    removed_artifacts=5,
    removed_bytes=5000,
    bytes_after=4000,
)


def make_object(
    kind: str,
    name: str,
    namespace: str | None = None,
    owner: Json | None = None,
    labels: Mapping[str, str] | None = None,
    **rest: Any,
) -> Json:
    """Return an object of a kind that the operator knows; its apiVersion is that of the kind."""
    metadata: Json = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    if namespace:
        metadata["namespace"] = namespace
    if owner:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **rest}


def owner_reference(owner: Json) -> Json:
    identity = {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], **identity}


def node(name: str, **spec: Any) -> Json:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return make_object("Node", name, labels={"kubernetes.io/os": "linux"}, spec=spec, status=status)


def gpu_node(name: str, product: str = "NVIDIA-L4", **labels: str) -> Json:
    made = node(name)
    made["metadata"]["labels"] |= {"nvidia.com/gpu.product": product, **labels}
    return made


def l4(**spec: Any) -> AcceleratorClass:
    """Return a class of GPUs for which TensorRT-RTX builds without a device."""
    return accelerator_class(
        "l4",
        "tensorrt-rtx",
        "cuda",
        **{
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "resourceName": "nvidia.com/gpu",
            "computeCapability": "8.9",
            "aheadOfTime": True,
            **spec,
        },
    )


def verdict(
    backend: str = "cpu",
    fallback: FallbackVerdict | None = None,
    *,
    failed: Mapping[Check, Reason] | None = None,
    unproven: Mapping[Check, Reason] | None = None,
    p99: float | None = 0.012,
) -> Verdict:
    """Return a sidecar's verdict, with all checks ok except the failed ones; some may be ok with a reason."""
    wrong, reasons = failed or {}, {**(failed or {}), **(unproven or {})}
    return Verdict(
        model=MODEL,
        revision="r",
        backend=backend,
        ready=not wrong,
        admitted=not wrong,
        checks=tuple(
            CheckVerdict(
                check=check,
                state="failed" if check in wrong else "ok",
                reason=reasons.get(check),
                message=f"{check}!" if check in reasons else "",
            )
            for check in Check
        ),
        fallback=fallback or FallbackVerdict(active=False, nodes_total=105),
        baseline=None if p99 is None else Baseline(p50=p99 / 2, p90=p99 / 1.5, p99=p99, samples=20),
    )


def publish_model(key: str = "a" * 64, digest: str = DIGEST) -> Published:
    return Published(
        key=key, model_digest=digest, opset=17, ir_version=8, nodes=105, size_bytes=4096
    )


OTHER: Final = {"uri": "https://models.example/other.onnx"}
SECOND: Final = publish_model("b" * 64, "e" * 64)


ENGINE: Final = "tensorrt-l4-0123456789ab"
IMAGE: Final = "registry.example/gpu:1"
PREPARED_KEY: Final = "a" * 64
RESOURCE: Final = "nvidia.com/gpu"


def engine_spec(*, ahead_of_time: bool = False, **build: Any) -> Json:
    """Return the spec of an engine that is built on a device of its class, or without one."""
    recipe = EngineRecipe(
        backend="tensorrt-rtx" if ahead_of_time else "tensorrt",
        backend_version="10.9.0",
        ort_version="1.31.1",
        cuda_major="13",
        accelerator_class="l4",
        compute_capability="8.9",
        ahead_of_time=ahead_of_time,
    )
    return {
        "key": engine_key(PREPARED_KEY, recipe),
        "preparedKey": PREPARED_KEY,
        "class": "l4",
        "backend": recipe.backend,
        "recipe": {
            "backendVersion": recipe.backend_version,
            "ortVersion": recipe.ort_version,
            "cudaMajor": recipe.cuda_major,
            "computeCapability": recipe.compute_capability,
            "aheadOfTime": ahead_of_time,
        },
        "build": {
            "image": IMAGE,
            "timeoutSeconds": 3600,
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            **({} if ahead_of_time else {"resourceName": RESOURCE}),
            **build,
        },
    }


def publish_engine(key: str, **changes: Any) -> PublishedEngine:
    """Return a Job's report of the engine that it built."""
    values: Json = {
        "key": key,
        "sha256": "e" * 64,
        "size_bytes": 3_450_000,
        "build_seconds": 0.512,
        "compute_capabilities": ("8.9",),
        "nodes_total": 415,
        "nodes_accelerated": 412,
        "compute_share_elsewhere": 0.0021,
        "latency_p99": 0.001234,
        "elsewhere": ("volume (Det)",),
    }
    return PublishedEngine(**{**values, **changes})
