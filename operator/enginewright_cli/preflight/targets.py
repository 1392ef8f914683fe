"""What `--target` names, and what a verdict on it speaks of.

A target is a GPU by its compute capability, or a backend of this machine; it is no cluster's class. A class
may list several backends, of which the first that holds serves; here only those are looked at that are
installed, and asked for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enginewright.contract.images import ImageFacts
from enginewright.contract.processors import Feature, has_exact_products
from enginewright.contract.task import Int8Products

from enginewright_cli import installing

_CPU: Final = re.compile(f"(cpu|openvino):({'|'.join(each.lower() for each in Feature)})")
AHEAD_OF_TIME: Final = "tensorrt-rtx"
_EXTRAS: Final = {
    "tensorrt-rtx": "preflight,rtx",
    "openvino": "preflight-openvino",
    "cuda": "preflight-gpu",
    "cpu": "preflight",
}
# backend -> those that a class of the same devices may list before it
_BEFORE: Final = {
    "cpu": ("openvino",),
    "openvino": ("cpu",),
    "tensorrt-rtx": ("tensorrt", "cuda"),
    "cuda": ("tensorrt", "tensorrt-rtx"),
}


class TargetError(ValueError):
    """A target that is none, or that this installation has not; tells what to do."""


@dataclass(frozen=True)
class PreflightTarget:
    """Where the model is to run."""

    name: str
    backend: str
    compute_capability: str | None = None  # None: a CPU, or the device at hand
    processor: Feature | None = None  # the kind of CPU, by the latest that it has; None: any

    @property
    def int8_products(self) -> Int8Products | None:
        """Return what an INT8 form may rely on; None: it is for no CPU."""
        if self.backend not in {"cpu", "openvino"}:
            return None
        return "exact" if self.processor and has_exact_products({self.processor}) else "any"


def parse(name: str) -> PreflightTarget:
    """Return the target of that name.

    Raises:
        TargetError: it is none.
    """
    if found := re.fullmatch(r"sm_?(\d{1,2})(\d)", name.strip().lower()):
        major, minor = found.groups()
        return PreflightTarget(f"sm{major}{minor}", AHEAD_OF_TIME, f"{major}.{minor}")
    if name in {"cpu", "cuda", "openvino"}:
        return PreflightTarget(name, name)
    if found := _CPU.fullmatch(name.strip().lower()):
        backend, feature = found.groups()
        return PreflightTarget(found[0], backend, processor=Feature(feature.upper()))
    raise TargetError(
        f"{name!r} is no target; write sm86, sm89, sm120 or another compute capability"
        " without its dot, or cpu, openvino, cuda, or a kind of CPU, such as cpu:avx2, cpu:avx512, cpu:vnni"
    )


def prepared_alike(target: PreflightTarget) -> tuple[str, str]:
    """Return what decides how a model is prepared: targets of which it is equal share one."""
    return target.backend, target.int8_products or ""


def check(target: PreflightTarget, held: ImageFacts) -> None:
    """See to it that this installation can look at the target.

    Raises:
        TargetError: it cannot; names the command that would help.
    """
    if target.backend not in held.backends:
        extra = _EXTRAS[target.backend]
        alone = (
            "; one environment holds one ONNX Runtime, so make a new one for it"
            if target.backend in {"openvino", "cuda"}
            else ""
        )
        raise TargetError(
            f"target {target.name} needs backend {target.backend}, which is not installed;"
            f" {installing.remedy(extra)}{alone}"
        )


def defaults(held: ImageFacts) -> tuple[PreflightTarget, ...]:
    """Return what is looked at when nothing is named: everything that this installation has."""
    found = [parse(each) for each in ("cpu", "openvino") if each in held.backends]
    if AHEAD_OF_TIME in held.backends:
        found.append(parse("sm89"))
    return tuple(found)


def scope(target: PreflightTarget, targets: Sequence[PreflightTarget], held: ImageFacts) -> str:
    """Return, in one sentence, what the verdict of `target` speaks of.

    Args:
        target: one of `targets`.
        targets: all that are looked at.
        held: what is installed here.
    """
    backend = target.backend
    what = (
        f"backend {backend} {held.backends[backend]} ({held.ort_distribution} {held.ort_version}),"
        " as installed here"
    )
    looked = {each.backend for each in targets}
    others = [each for each in _BEFORE[backend] if each not in looked]
    if not others:
        return what
    listed = " or ".join(others)
    return (
        f"{what}; not known is what a class does whose backends begin with {listed}:"
        " `enginewright plan` names the backend of each class"
    )
