"""The instruction sets of CPU classes: those that the class declares, or its selector requires. Pure.

A selector holds for every node, also for those that join later. What the current nodes have in common
does not, and keys derived from it would change when nodes join and leave.
"""

from collections.abc import Collection, Mapping
from typing import Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.processors import Feature, has_exact_products
from enginewright_contract.task import Int8Products, Precision

from enginewright.api.accelerator_class import AcceleratorClass

# Labels of Node Feature Discovery: "CPU" in its documentation of features
_CPUID: Final = "feature.node.kubernetes.io/cpu-cpuid."
_LABELS: Final = {
    "AVX2": Feature.AVX2,
    "AVX512F": Feature.AVX512,
    "AVX512VNNI": Feature.VNNI,
    "AVXVNNI": Feature.VNNI,
    "AMXINT8": Feature.AMX,
    "ASIMDDP": Feature.ASIMDDP,
    "SVE": Feature.SVE,
}


def features(accelerator: AcceleratorClass) -> tuple[Feature, ...]:
    """Return the instruction sets that every node of a class is known to have."""
    if accelerator.spec.cpu_features is not None:
        return accelerator.spec.cpu_features
    found = {
        _LABELS[label.removeprefix(_CPUID)]
        for label, value in accelerator.spec.node_selector.items()
        if value == "true" and label.startswith(_CPUID) and label.removeprefix(_CPUID) in _LABELS
    }
    return tuple(each for each in Feature if each in found)


def int8_products(
    backend: str, precisions: Collection[Precision | None], classes: Collection[AcceleratorClass]
) -> Int8Products | None:
    """Return which sums of INT8 products the model must tolerate; None: no INT8 for CPUs."""
    if "INT8" not in precisions or backend in DEVICE_BACKENDS:
        return None
    return "exact" if all(has_exact_products(features(each)) for each in classes) else "any"


def contradicted(accelerator: AcceleratorClass, labels: Mapping[str, str]) -> tuple[Feature, ...]:
    """Return features that a class declares but a node lacks by its labels; (): none, or not known."""
    if not any(label.startswith(_CPUID) for label in labels):
        return ()
    had = {feature for name, feature in _LABELS.items() if labels.get(f"{_CPUID}{name}") == "true"}
    labelled = {*_LABELS.values()}
    return tuple(
        each for each in accelerator.spec.cpu_features or () if each in labelled and each not in had
    )
