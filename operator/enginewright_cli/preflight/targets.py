"""The targets of `--target`, and what a verdict on one covers.

A target is a GPU by its product or compute capability, or a backend of this machine; it is not a class of a cluster. A
class may list several backends, of which the first that keeps the promise serves; preflight checks only
requested backends that are installed here. TensorRT builds on its device only, so its parser alone is asked.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enginewright_contract.engines import serves
from enginewright_contract.images import ImageFacts
from enginewright_contract.processors import Feature, has_exact_products
from enginewright_contract.task import Int8Products

from enginewright_cli import installing

_CPU: Final = re.compile(f"(cpu|openvino):({'|'.join(item.lower() for item in Feature)})")
AHEAD_OF_TIME: Final = "tensorrt-rtx"
PARSED: Final = "tensorrt"
# products of data centres, which classes run with TensorRT
_PRODUCTS: Final = {
    "t4": "7.5",
    "a100": "8.0",
    "a10": "8.6",
    "l4": "8.9",
    "l40s": "8.9",
    "h100": "9.0",
    "h200": "9.0",
    "b200": "10.0",
}
_EXTRAS: Final = {
    "tensorrt-rtx": "preflight,rtx",
    "openvino": "preflight-openvino",
    "cuda": "preflight-gpu",
    "cpu": "preflight",
}
# backend -> backends that a class of the same devices may list before it
_BEFORE: Final = {
    "cpu": ("openvino",),
    "openvino": ("cpu",),
    "tensorrt": ("tensorrt-rtx", "cuda"),
    "tensorrt-rtx": ("tensorrt", "cuda"),
    "cuda": ("tensorrt", "tensorrt-rtx"),
}


class TargetError(ValueError):
    """A target that is unknown or not installed here; the message states the remedy."""


@dataclass(frozen=True)
class PreflightTarget:
    """Where the model would run."""

    name: str
    backend: str
    compute_capability: str | None = None  # unless a CPU, or the GPU of this machine
    processor: Feature | None = None  # the kind of CPU, by its newest feature

    @property
    def int8_products(self) -> Int8Products | None:
        """Return what an INT8 model may rely on, or None if the target is not a CPU."""
        if self.backend not in {"cpu", "openvino"}:
            return None
        return "exact" if self.processor and has_exact_products({self.processor}) else "any"


def parse(name: str) -> PreflightTarget:
    """Return the target of that name. Raises TargetError."""
    if match := re.fullmatch(r"sm_?(\d{1,2})(\d)", name.strip().lower()):
        major, minor = match.groups()
        capability = f"{major}.{minor}"
        backend = AHEAD_OF_TIME if serves(AHEAD_OF_TIME, capability) else PARSED
        return PreflightTarget(f"sm{major}{minor}", backend, capability)
    if (product := name.strip().lower()) in _PRODUCTS:
        return PreflightTarget(product, PARSED, _PRODUCTS[product])
    if name in {"cpu", "cuda", "openvino"}:
        return PreflightTarget(name, name)
    if match := _CPU.fullmatch(name.strip().lower()):
        backend, feature = match.groups()
        return PreflightTarget(match[0], backend, processor=Feature(feature.upper()))
    raise TargetError(
        f"{name!r} is not a target; write sm86, sm89, sm120 or another compute capability"
        f" without its dot, {', '.join(_PRODUCTS)}, cpu, openvino, cuda, or a kind of CPU, such as cpu:avx2, cpu:avx512, cpu:vnni"
    )


def group_key(target: PreflightTarget) -> tuple[str, str]:
    """Return what determines how a model is prepared: targets with equal values share one."""
    return target.backend, target.int8_products or ""


def check(target: PreflightTarget, held: ImageFacts) -> None:
    """Verify that this installation can check the target. Raises TargetError."""
    if target.backend == PARSED and target.backend not in held.backends:
        raise TargetError(
            f"target {target.name} needs the libraries of TensorRT, which are not installed; run in a clone of"
            " Enginewright's repository: export ENGINEWRIGHT_TENSORRT=\"$(hack/tensorrt-libraries)\" (600 MB, NVIDIA's"
            " licence), or install its Python package"
        )
    if target.backend not in held.backends:
        extra = _EXTRAS[target.backend]
        separate = (
            "; an environment can contain only one ONNX Runtime, so create a new one for it"
            if target.backend in {"openvino", "cuda"}
            else ""
        )
        raise TargetError(
            f"target {target.name} needs backend {target.backend}, which is not installed;"
            f" {installing.remedy(extra)}{separate}"
        )


def defaults(held: ImageFacts) -> tuple[PreflightTarget, ...]:
    """Return the default targets: everything that this installation supports."""
    targets = [parse(item) for item in ("cpu", "openvino") if item in held.backends]
    if AHEAD_OF_TIME in held.backends:
        targets.append(parse("sm89"))
    return tuple(targets)


def scope(target: PreflightTarget, targets: Sequence[PreflightTarget], held: ImageFacts) -> str:
    """Return, in one sentence, what the verdict on `target`, one of the checked `targets`, covers."""
    backend = target.backend
    what = (
        f"backend {backend} {held.backends[backend]} ({held.ort_distribution} {held.ort_version}),"
        " as installed here"
    )
    if backend == PARSED:
        what = (
            f"the parser of TensorRT {held.backends[backend]}, as installed here; kernels, memory, latency and outputs"
            " are found when the engine's Job builds on its device"
        )
    checked = {preflight_target.backend for preflight_target in targets}
    others = [item for item in _BEFORE[backend] if item not in checked]
    if not others:
        return what
    listed = " or ".join(others)
    return (
        f"{what}; a class that lists {listed} first may behave differently:"
        " `enginewright plan` shows the backend of each class"
    )
