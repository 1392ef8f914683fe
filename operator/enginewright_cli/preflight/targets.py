"""The targets of `--target`, and what a verdict on one covers.

A target is a kind of device: a GPU by its product or compute capability, or CPUs; or a backend of this machine. It gets
the backend that a cluster's class of this kind prefers, unless --backend names another. Where that one is not installed
here, the next of the class stands for it, within the limits of the version that the release's image has, and a warning
says what stays unknown. TensorRT builds on its device only, so its parser alone is asked.
"""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import Final

from enginewright_contract.engines import serves, why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, CPU_BACKENDS, ImageFacts
from enginewright_contract.processors import Feature, has_exact_products
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import Int8Products

from enginewright_cli import installing

_CPU: Final = re.compile(f"(cpu|openvino)(?::({'|'.join(item.lower() for item in Feature)}))?")
_CAPABILITY: Final = re.compile(r"sm_?(\d{1,2})(\d)")
_GEFORCE: Final = re.compile(r"rtx[-_ ]?(20|30|40|50)[5-9]0(?:[-_ ]?(?:ti|super|d))*")
AHEAD_OF_TIME: Final = "tensorrt-rtx"
PARSED: Final = "tensorrt"
_BACKENDS: Final = (*CPU_BACKENDS, AHEAD_OF_TIME, PARSED)  # of which a target may have several
_PRODUCTS: Final = {
    **dict.fromkeys(("t4",), "7.5"),
    **dict.fromkeys(("a30", "a100"), "8.0"),
    **dict.fromkeys(("a2", "a10", "a10g", "a16", "a40"), "8.6"),
    **dict.fromkeys(("l4", "l40", "l40s"), "8.9"),
    **dict.fromkeys(("h100", "h200", "gh200"), "9.0"),
    **dict.fromkeys(("b200", "gb200"), "10.0"),
    **dict.fromkeys(("b300", "gb300"), "10.3"),
}
_SERIES: Final = {"20": "7.5", "30": "8.6", "40": "8.9", "50": "12.0"}  # of GeForce RTX
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
    """A target that is unknown, or on which a backend does not run; the message states what to write."""


@dataclass(frozen=True)
class PreflightTarget:
    """Where the model would run."""

    name: str
    backend: str  # that runs it here
    compute_capability: str | None = None  # unless a CPU, or the GPU of this machine
    processor: Feature | None = None  # the kind of CPU, by its newest feature
    next_backend: str | None = None  # that a class lists after `backend`
    stands_for: str | None = None  # the backend that would serve, if that is not installed here
    runtime_version: str | None = (
        None  # of ONNX Runtime with that backend, unless an option says it
    )

    @property
    def int8_products(self) -> Int8Products | None:
        """Return what an INT8 model may rely on, or None if the target is not a CPU."""
        if self.backend not in CPU_BACKENDS:
            return None
        return "exact" if self.processor and has_exact_products({self.processor}) else "any"

    def describe_unknown(self) -> Finding | None:
        """Return what the verdict cannot know, if another backend stands for the one that would serve."""
        if self.stands_for is None:
            return None
        return Finding(
            severity="warning",
            reason=Reason.PROVIDER_MISSING,
            cause=f"a cluster's class of CPUs prefers backend {self.stands_for}, which is not installed here: backend"
            f" {self.backend} has run the model, so operators that {self.stands_for} refuses, its outputs and its"
            " latency are unknown",
            remedy=f"check it in an environment of its own ({installing.remedy(_EXTRAS[self.stands_for])}); for models"
            f" with spec.backends: [{self.backend}], give --backend {self.backend}",
        )


def parse(name: str, backend: str | None = None) -> PreflightTarget:
    """Return the target of that name, with the backend that a class prefers, or with `backend` if it runs there.

    Raises TargetError.
    """
    text = name.strip().lower()
    if capability := _find_capability(text):
        title = f"sm{capability.replace('.', '')}" if _CAPABILITY.fullmatch(text) else text
        if backend in COMPILED_BACKENDS and (why := why_unusable(backend, capability)):
            raise TargetError(f"target {title}: {why}; choose another --backend or --target")
        preferred = AHEAD_OF_TIME if serves(AHEAD_OF_TIME, capability) else PARSED
        return PreflightTarget(
            title, backend if backend in COMPILED_BACKENDS else preferred, capability
        )
    if text == "cuda":
        return PreflightTarget(text, text)
    if match := _CPU.fullmatch(text):
        kind, feature = match.groups()
        processor = Feature(feature.upper()) if feature else None
        if kind == "cpu" and backend not in CPU_BACKENDS:
            first, second = CPU_BACKENDS
            return PreflightTarget(text, first, processor=processor, next_backend=second)
        return PreflightTarget(
            text, backend if kind == "cpu" and backend else kind, processor=processor
        )
    names = [*_PRODUCTS, "rtx4090", "cpu", "openvino", "cuda"]
    near = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]}? Otherwise write" if near else "write"
    raise TargetError(
        f"{name!r} is not a target; {hint} sm86, sm89, sm120 or another compute capability without its dot,"
        f" {', '.join(_PRODUCTS)}, rtx4090 or another GeForce RTX, cpu, openvino, cuda, or a kind of CPU, such as"
        " cpu:avx2, cpu:avx512, cpu:vnni"
    )


def read_backend(text: str | None) -> str | None:
    """Read `--backend`. Raises TargetError."""
    if text is None or text in _BACKENDS:
        return text
    raise TargetError(f"--backend {text!r}: write one of {', '.join(_BACKENDS)}")


def _find_capability(text: str) -> str | None:
    if match := _CAPABILITY.fullmatch(text):
        return ".".join(match.groups())
    if match := _GEFORCE.fullmatch(text):
        return _SERIES[match[1]]
    return _PRODUCTS.get(text)


def settle(
    target: PreflightTarget, held: ImageFacts, image: ImageFacts | None, *, locked: bool
) -> PreflightTarget:
    """Return the target with the backend that `image` has for it, or with one that is installed here and stands for it.

    The latter gets the limits of the version that this release has `locked`, unless another is to serve.
    """
    offered: Collection[str] = image.backends if image else (target.backend,)
    after = target.next_backend
    if target.backend not in offered and after is not None and after in offered:
        return replace(target, backend=after, next_backend=None)
    if target.backend in held.backends or after is None or after not in held.backends:
        return target
    return replace(
        target,
        backend=after,
        stands_for=target.backend,
        runtime_version=find_locked_runtime(target.backend) if locked else None,
    )


@cache
def find_locked_runtime(extra: str) -> str | None:
    """Return the version of ONNX Runtime that an extra of this release pins, as the image of that name locks it."""
    pinned = re.compile(
        rf"onnxruntime(?:-openvino|-gpu)?[=>]=([\d.]+)\b.*\bextra == ['\"]{extra}['\"]"
    )
    matches = map(pinned.match, metadata.requires("enginewright") or ())
    return next((match[1] for match in matches if match), None)


def group_key(target: PreflightTarget) -> tuple[str, str]:
    """Return what determines how a model is prepared: targets with equal values share one."""
    return target.backend, target.int8_products or ""


def why_unchecked(target: PreflightTarget, held: ImageFacts) -> str | None:
    """Return why this installation cannot check the target, with the remedy, or None if it can."""
    if target.backend in held.backends:
        return None
    if target.backend == PARSED:
        return (
            f"target {target.name} needs the libraries of TensorRT, which are not installed; run in a clone of"
            " Enginewright's repository: export ENGINEWRIGHT_TENSORRT=\"$(hack/tensorrt-libraries)\" (600 MB, NVIDIA's"
            " licence), or install its Python package"
        )
    separate = (
        "; an environment can contain only one ONNX Runtime, so create a new one for it"
        if target.backend in {"openvino", "cuda"}
        else ""
    )
    return (
        f"target {target.name} needs backend {target.backend}, which is not installed;"
        f" {installing.remedy(_EXTRAS[target.backend])}{separate}"
    )


def defaults(held: ImageFacts) -> tuple[str, ...]:
    """Return the names of the default targets: CPUs, and engines if their builder is installed."""
    return ("cpu", "sm89") if AHEAD_OF_TIME in held.backends else ("cpu",)


def scope(target: PreflightTarget, targets: Sequence[PreflightTarget], held: ImageFacts) -> str:
    """Return, in one sentence, what the verdict on `target`, one of the checked `targets`, covers."""
    backend = target.backend
    what = (
        f"backend {backend} {held.backends[backend]} ({held.ort_distribution} {held.ort_version}),"
        " as installed here"
    )
    if target.stands_for:
        within = f" {target.runtime_version}" if target.runtime_version else ""
        return f"{what}, within the limits of {target.stands_for}'s ONNX Runtime{within}"
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
