"""Every ingredient of the keys, with inputs that differ in it alone; and everything that is none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from enginewright.observed.nodes import node_view

from tests.support.key_inputs import CPU, GPU, IMAGES, Inputs
from tests.support.plan_objects import Json, gpu_node

# ingredient -> pairs of inputs that differ in it
Table: TypeAlias = Mapping[str, tuple[tuple[Inputs, Inputs], ...]]

CALIBRATION: Final[Json] = {"uri": "s3://models/calibration.npz", "samples": 100}
IMAGE: Final[Json] = {"width": 224, "height": 224}
X: Final[Json] = {"input": "x", "min": [1, 3], "opt": [8, 3], "max": [32, 3]}
Y: Final[Json] = {"name": "y", "rtol": "0.1", "atol": "0.1"}
GPU_MODEL: Final = Inputs()
AUTOMATIC: Final = Inputs().on(computeCapability="8.0")
CPU_MODEL: Final = Inputs(accelerator=CPU, class_name="cpu")
OPENVINO: Final = CPU_MODEL.on(backends=["openvino"])
RTX: Final = Inputs().on(backends=["tensorrt-rtx"])
QUANTIZED: Final = CPU_MODEL.spec_of(
    precision="INT8", quantization={"calibration": CALIBRATION | {"preprocessing": IMAGE}}
)
INT8: Final[Json] = {"calibration": CALIBRATION}
MIXED: Final[Json] = INT8 | {"rest": "FP16"}
INT8_ENGINE: Final = GPU_MODEL.spec_of(precision="INT8", quantization=INT8)
SAMPLED: Final = GPU_MODEL.spec_of(parity={"samples": {"uri": "s3://models/samples.npz"}})
STEPS: Final = GPU_MODEL.spec_of(
    processing={"before": [{"uri": "s3://models/resize.onnx"}], "after": []}
)
LIBRARY: Final[Json] = {
    "uri": "s3://models/operators.so",
    "sha256": "a" * 64,
    "type": "CustomOperators",
}
EXTENDED: Final = GPU_MODEL.spec_of(extensions=[LIBRARY])
BUNDLED: Final = GPU_MODEL.spec_of(extensions=[{"type": "ONNXRuntimeExtensions"}])
WHOLE: Final[Json] = {"deviceClassName": "gpu.nvidia.com"}
CLAIMING: Final = Inputs().on(resourceName=None, device=WHOLE)
OWN_LABELS: Final = Inputs().on(nodeSelector={"gpu": "big"})
OWN_PRODUCT: Final = replace(OWN_LABELS, product_labels=("gpu",))


def change_calibration(**changes: Any) -> Inputs:
    """Return a quantized model with other fields of its calibration."""
    calibration = QUANTIZED.spec["quantization"]["calibration"] | changes
    return QUANTIZED.spec_of(quantization={"calibration": calibration})


def change_preprocessing(**changes: Any) -> Inputs:
    """Return a quantized model whose images are converted in another way."""
    return change_calibration(preprocessing=IMAGE | changes)


def change_quantization(**changes: Any) -> Inputs:
    """Return a quantized model with other settings."""
    return QUANTIZED.spec_of(quantization=QUANTIZED.spec["quantization"] | changes)


def change_shapes(**changes: Any) -> Inputs:
    """Return a model with sizes of its input."""
    return GPU_MODEL.spec_of(shapes=[X | changes])


def change_tolerances(**changes: Any) -> Inputs:
    """Return a model with tolerances."""
    return GPU_MODEL.spec_of(parity=changes)


PREPARED: Final[Table] = {
    "weights": ((GPU_MODEL, replace(GPU_MODEL, content={"weights": "others"})),),
    "external data": ((GPU_MODEL, replace(GPU_MODEL, content={"external data": "others"})),),
    "processing steps": (
        (GPU_MODEL, STEPS),
        (STEPS, replace(STEPS, content={"before-0": "others"})),
        (STEPS, STEPS.spec_of(processing={"after": [{"uri": "s3://models/resize.onnx"}]})),
    ),
    "extensions": (
        (GPU_MODEL, EXTENDED),
        (EXTENDED, EXTENDED.spec_of(extensions=[LIBRARY | {"sha256": "b" * 64}])),
        (EXTENDED, EXTENDED.spec_of(extensions=[LIBRARY | {"type": "TensorRTPlugin"}])),
        (GPU_MODEL, BUNDLED),
    ),
    "operators of the image": ((BUNDLED, replace(BUNDLED, operators="0.16.0")),),
    "opset": ((GPU_MODEL, GPU_MODEL.spec_of(targetOpset=17)),),
    "opset and IR limits": (
        (GPU_MODEL, replace(GPU_MODEL, facts={"max_opset": 27})),
        (GPU_MODEL, replace(GPU_MODEL, facts={"max_ir_version": 14})),
    ),
    "precision": (
        (GPU_MODEL, GPU_MODEL.spec_of(precision="FP16")),
        (GPU_MODEL.spec_of(precision="FP16"), GPU_MODEL.spec_of(precision="BF16")),
    ),
    "available precisions": ((AUTOMATIC, AUTOMATIC.on(computeCapability="7.5")),),
    "quantization": (
        (QUANTIZED, change_quantization(perChannel=False)),
        (QUANTIZED, change_quantization(maxExcludedShare="0.5")),
        (INT8_ENGINE, INT8_ENGINE.spec_of(quantization=MIXED)),
        (QUANTIZED, change_calibration(samples=200)),
        (QUANTIZED, change_calibration(method="Entropy")),
        (QUANTIZED, change_calibration(preprocessing=None)),
        (QUANTIZED, change_preprocessing(width=256)),
        (QUANTIZED, change_preprocessing(height=256)),
        (QUANTIZED, change_preprocessing(layout="NHWC")),
        (QUANTIZED, change_preprocessing(color="BGR")),
        (QUANTIZED, change_preprocessing(scale="1")),
        (QUANTIZED, change_preprocessing(mean=["0.5"])),
        (QUANTIZED, change_preprocessing(std=["0.5"])),
    ),
    "calibration data": ((QUANTIZED, replace(QUANTIZED, content={"calibration": "others"})),),
    "samples": (
        (GPU_MODEL, SAMPLED),
        (SAMPLED, replace(SAMPLED, content={"samples": "others"})),
    ),
    "tolerances": (
        (GPU_MODEL, change_tolerances(rtol="0.1")),
        (GPU_MODEL, change_tolerances(atol="0.1")),
        (GPU_MODEL, change_tolerances(outputs=[Y])),
        (change_tolerances(outputs=[Y]), change_tolerances(outputs=[Y | {"name": "z"}])),
        (change_tolerances(outputs=[Y]), change_tolerances(outputs=[Y | {"rtol": "0.2"}])),
        (change_tolerances(outputs=[Y]), change_tolerances(outputs=[Y | {"atol": "0.2"}])),
        (
            change_tolerances(outputs=[Y]),
            change_tolerances(outputs=[Y | {"acceptUnjudged": True}]),
        ),
    ),
    "shapes": (
        (GPU_MODEL, change_shapes()),
        (change_shapes(), change_shapes(input="y")),
        (change_shapes(), change_shapes(min=[2, 3])),
        (change_shapes(), change_shapes(opt=[9, 3])),
        (change_shapes(), change_shapes(max=[33, 3])),
        (
            change_shapes(range={"low": "0", "high": "1"}),
            change_shapes(range={"low": "-1", "high": "1"}),
        ),
        (
            change_shapes(range={"low": "0", "high": "1"}),
            change_shapes(range={"low": "0", "high": "2"}),
        ),
    ),
    "OpenVINO": ((OPENVINO, replace(OPENVINO, versions={"openvino": "2026.1.0"})),),
    "CPU features": (
        (QUANTIZED, QUANTIZED.on(cpuFeatures=["VNNI"])),
        (
            QUANTIZED,
            QUANTIZED.on(nodeSelector={"feature.node.kubernetes.io/cpu-cpuid.AVX512VNNI": "true"}),
        ),
    ),
}
ENGINE: Final[Table] = {
    "TensorRT": (
        (GPU_MODEL, replace(GPU_MODEL, versions={"tensorrt": "10.14.0"})),
        (RTX, replace(RTX, versions={"tensorrt-rtx": "1.8.0"})),
    ),
    "CUDA": ((GPU_MODEL, replace(GPU_MODEL, facts={"cuda_major": "14"})),),
    "GPU product": (
        (GPU_MODEL, GPU_MODEL.select({"nvidia.com/gpu.product": "NVIDIA-L40S"})),
        (OWN_PRODUCT, OWN_PRODUCT.on(nodeSelector={"gpu": "bigger"})),
        (OWN_LABELS, OWN_PRODUCT),
    ),
    "GPU memory": (
        (GPU_MODEL, GPU_MODEL.select({"nvidia.com/gpu.memory": "23034"})),
        (
            GPU_MODEL.select({"nvidia.com/gpu.memory": "23034"}),
            GPU_MODEL.select({"nvidia.com/gpu.memory": "46068"}),
        ),
    ),
    "MIG profile": (
        (
            GPU_MODEL,
            GPU_MODEL.on(
                nodeSelector={"nvidia.com/mig-1g.10gb.product": "NVIDIA-L4-MIG-1g.10gb"},
                resourceName="nvidia.com/mig-1g.10gb",
            ),
        ),
        (GPU_MODEL, GPU_MODEL.select({"nvidia.com/gpu.product": "NVIDIA-L4-MIG-1g.10gb"})),
    ),
    "time slicing": ((GPU_MODEL, GPU_MODEL.on(resourceName="nvidia.com/gpu.shared")),),
    "claimed device": (
        (GPU_MODEL, CLAIMING),
        (CLAIMING, CLAIMING.on(device={"deviceClassName": "mig.nvidia.com"})),
        (CLAIMING, CLAIMING.on(device=WHOLE | {"selectors": [{"cel": {"expression": "true"}}]})),
    ),
    "compute capability": ((GPU_MODEL, GPU_MODEL.on(computeCapability="12.0")),),
    "processor architecture": ((GPU_MODEL, GPU_MODEL.select({"kubernetes.io/arch": "arm64"})),),
    "ahead of time": ((RTX, RTX.on(aheadOfTime=True)),),
    "workspace": (
        (GPU_MODEL, GPU_MODEL.spec_of(build={"workspace": "4Gi"})),
        (
            GPU_MODEL.spec_of(build={"workspace": "4Gi"}),
            GPU_MODEL.spec_of(build={"workspace": "2Gi"}),
        ),
    ),
    "optimization level": ((GPU_MODEL, GPU_MODEL.spec_of(build={"optimizationLevel": 5})),),
    "class name": ((OWN_LABELS, replace(OWN_LABELS, class_name="other")),),
}
BOTH: Final[Table] = {
    "backend": ((GPU_MODEL, RTX), (CPU_MODEL, OPENVINO)),
    "ONNX Runtime": ((GPU_MODEL, replace(GPU_MODEL, facts={"ort_version": "1.32.0"})),),
}
ELSEWHERE: Final[Json] = {"uri": "s3://another/place", "secretRef": {"name": "key"}}
FULL: Final = QUANTIZED.on(
    backends=["tensorrt"], **{name: GPU[name] for name in ("nodeSelector", "resourceName")}
).spec_of(
    parity={"samples": {"uri": "s3://models/samples.npz"}},
    processing=STEPS.spec["processing"],
    extensions=[LIBRARY],
)
NOWHERE: Final[Table] = {
    "name": (
        (GPU_MODEL, replace(GPU_MODEL, name="another", metadata={"labels": {"team": "shop"}})),
        (GPU_MODEL, replace(GPU_MODEL, namespace="elsewhere")),
        (GPU_MODEL, replace(GPU_MODEL, class_name="other")),
        (OWN_PRODUCT, replace(OWN_PRODUCT, class_name="other")),
        (GPU_MODEL, replace(GPU_MODEL, product_labels=("gpu",))),
        (OWN_PRODUCT, replace(OWN_PRODUCT, product_labels=("gpu", "another"))),
    ),
    "address": (
        (
            FULL,
            FULL.spec_of(
                source={"uri": "pvc://claim/other.onnx"},
                quantization={
                    "calibration": QUANTIZED.spec["quantization"]["calibration"]
                    | {"uri": "pvc://claim/c.npz"}
                },
                parity={"samples": {"uri": "pvc://claim/s.npz"}},
                processing={"before": [{"uri": "pvc://claim/r.onnx"}]},
                extensions=[LIBRARY | {"uri": "pvc://claim/o.so"}],
            ),
        ),
    ),
    "credentials": (
        (GPU_MODEL, GPU_MODEL.spec_of(source=ELSEWHERE)),
        (GPU_MODEL, GPU_MODEL.spec_of(podTemplate={"serviceAccountName": "reader"})),
    ),
    "place of Jobs": (
        (GPU_MODEL, GPU_MODEL.spec_of(build={"timeout": "2h"})),
        (GPU_MODEL, GPU_MODEL.spec_of(build={"resources": {"limits": {"memory": "8Gi"}}})),
        (
            GPU_MODEL,
            GPU_MODEL.spec_of(build={"podTemplate": {"nodeSelector": {"disk": "fast"}}}),
        ),
        (GPU_MODEL, GPU_MODEL.on(tolerations=[{"key": "gpu", "operator": "Exists"}])),
    ),
    "pods": (
        (GPU_MODEL, GPU_MODEL.spec_of(replicas=3)),
        (GPU_MODEL, GPU_MODEL.spec_of(podTemplate={"labels": {"team": "shop"}})),
        (GPU_MODEL, GPU_MODEL.spec_of(serving={"maxQueue": 7})),
    ),
    "policies": (
        (GPU_MODEL, GPU_MODEL.spec_of(rollout={"strategy": "Recreate"})),
        (GPU_MODEL, GPU_MODEL.spec_of(fallback={"policy": "Allow"})),
    ),
    "nodes": (
        (GPU_MODEL, replace(GPU_MODEL, nodes=())),
        (GPU_MODEL, replace(GPU_MODEL, nodes=(node_view(gpu_node("new", zone="b")),))),
    ),
    "image": (
        (GPU_MODEL, replace(GPU_MODEL, operators="0.16.0")),
        (GPU_MODEL, replace(GPU_MODEL, images={**IMAGES, "gpu": "mirror.example/gpu:1"})),
        (GPU_MODEL, replace(GPU_MODEL, facts={"pipeline": "p" * 64})),
    ),
    "driver": (),  # no fact of the operator has it
}

# in no key, since the digest of what is there is; a change of them is among the cases of "address"
ADDRESSES: Final = {
    ".samples_uri",
    ".quantization.calibration.uri",
    ".processing.before",
    ".processing.after",
    ".extensions.uri",
}
