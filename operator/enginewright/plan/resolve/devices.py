"""What the devices of a class are, from labels of nodes: kinds of GPU with names for their classes, instruction sets of CPUs.

GPUs have labels of GPU Feature Discovery (docs/gpu-feature-discovery of NVIDIA's k8s-device-plugin), or the administrator's
own. Names are derived without a table of products, so that future products get one too.

A CPU class has the instruction sets that it declares or that its selector requires, never what its current nodes have in
common: keys would change when nodes join and leave.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.processors import Feature, has_exact_products
from enginewright_contract.task import Int8Products, Precision

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.manifests.names import child_name
from enginewright.observed.nodes import NodeView

_PREFIX: Final = "nvidia.com/"
_GPU: Final = "nvidia.com/gpu"
_PRODUCT: Final = "nvidia.com/gpu.product"
_MEMORY: Final = re.compile(r"nvidia\.com/(gpu|mig-[^/]+)\.memory")  # in MiB
_MIG_STATE: Final = "nvidia.com/mig.config.state"
_MIG_PRODUCT: Final = re.compile(r"nvidia\.com/(mig-[^/]+)\.product")
_MIG_IN_CHANGE: Final = frozenset({"pending", "rebooting"})  # the other labels are outdated
_SHARED: Final = "-SHARED"
_INVALID: Final = "-MIG-INVALID"  # strategy `single` on GPUs with different MIG devices
_CAPABILITY: Final = re.compile(r"[0-9]{1,2}[.][0-9]{1,2}")

_VENDOR: Final = frozenset({"nvidia", "tesla", "geforce", "quadro"})
_FORM_FACTOR: Final = re.compile(r"sxm[0-9]*|pcie|hbm[0-9]*e?")
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


@dataclass(frozen=True, order=True)
class GpuKind:
    """A kind of device that one engine fits: a product, or one MIG profile of it."""

    product: str  # value of the label, such as NVIDIA-A100-SXM4-80GB-MIG-1g.10gb
    label: str  # nvidia.com/gpu.product, nvidia.com/mig-1g.10gb.product, or one of the administrator's own
    resource: str  # that a pod requests: nvidia.com/gpu, nvidia.com/mig-1g.10gb

    @property
    def key(self) -> str:
        """Return a unique identifier, valid as a key of a ConfigMap."""
        return f"{self.resource.removeprefix(_PREFIX)}_{self.product}"

    @property
    def memory_label(self) -> str:
        """Return the node label with the devices' memory in MiB."""
        profile = _MIG_PRODUCT.fullmatch(self.label)
        return f"{_PREFIX}{profile.group(1)}.memory" if profile else f"{_GPU}.memory"


def is_product(label: str) -> bool:
    """Return whether GPU Feature Discovery names a GPU product, or a MIG profile of one, by this node label."""
    return label == _PRODUCT or _MIG_PRODUCT.fullmatch(label) is not None


def products_of(labels: Mapping[str, str], own: Sequence[str] = ()) -> list[str]:
    """Return the GPU products that labels name: by GPU Feature Discovery, else by the first of the `own` labels."""
    named = [value for label, value in sorted(labels.items()) if is_product(label)]
    return named or [labels[item] for item in own if labels.get(item)][:1]


def is_memory(label: str) -> bool:
    """Return whether a node label has the memory of a GPU, or of a MIG profile, in MiB."""
    return _MEMORY.fullmatch(label) is not None


def memory_of(node: NodeView, kind: GpuKind) -> int | None:
    """Return the memory in MiB of a node's devices of a kind, if it is known."""
    return _number(node.labels, kind.memory_label)


def kinds_of(node: NodeView) -> tuple[GpuKind, ...]:
    """Return the kinds of GPU that pods can request on the node."""
    labels = node.labels
    if labels.get(_MIG_STATE) in _MIG_IN_CHANGE:
        return ()
    slices = [
        _kind(labels, label, f"{_PREFIX}{profile.group(1)}")
        for label, product in labels.items()
        if product and (profile := _MIG_PRODUCT.fullmatch(label))
    ]
    return (*_full_gpus(labels, sliced=bool(slices)), *sorted(slices))


def own_kinds(node: NodeView, own: Sequence[str]) -> tuple[GpuKind, ...]:
    """Return the kind of the node's GPUs by each of the administrator's `own` labels."""
    labels = node.labels
    return tuple(GpuKind(labels[item], item, _GPU) for item in own if labels.get(item))


def _full_gpus(labels: Mapping[str, str], *, sliced: bool) -> Iterator[GpuKind]:
    """Yield the kind of the node's GPUs, or of their MIG devices with strategy `single`."""
    product = labels.get(_PRODUCT, "")
    replicas = _number(labels, f"{_GPU}.replicas")  # how many pods may share one device
    # With labels for MIG profiles (strategy `mixed`), only a count shows that full GPUs are left.
    none_left = replicas == 0 or (sliced and replicas is None)
    if product and not product.endswith(_INVALID) and not none_left:
        yield _kind(labels, _PRODUCT, _GPU)


def _kind(labels: Mapping[str, str], label: str, resource: str) -> GpuKind:
    """Return the kind; a shared device has a suffix of its product, or a renamed resource."""
    product = labels[label]
    renamed = (_number(labels, f"{resource}.replicas") or 0) > 1 and not product.endswith(_SHARED)
    return GpuKind(product, label, f"{resource}.shared" if renamed else resource)


def _number(labels: Mapping[str, str], label: str) -> int | None:
    text = labels.get(label, "")
    return int(text) if text.isdecimal() else None


def compute_capability(nodes: Iterable[NodeView]) -> str | None:
    """Return the compute capability of the nodes' GPUs, or None if they differ."""
    major, minor = (f"nvidia.com/gpu.compute.{part}" for part in ("major", "minor"))
    texts = {f"{node.label(major)}.{node.label(minor)}" for node in nodes}
    text = texts.pop() if len(texts) == 1 else ""
    return text if _CAPABILITY.fullmatch(text) else None


def class_names(kinds: Sequence[GpuKind], taken: Collection[str]) -> dict[GpuKind, str]:
    """Return a name for each kind: a unique DNS label that is not in `taken`.

    The short name if only one kind has it, else with the form factor, else with a hash. The same kinds
    in any order get the same names.
    """
    short = [_product_name(kind.product, short=True) for kind in kinds]
    used = {*taken, *(name for name in short if short.count(name) > 1)}
    names: dict[GpuKind, str] = {}
    for kind in sorted(kinds):
        names[kind] = next(name for name in _candidates(kind) if name not in used)
        used.add(names[kind])
    return names


def _candidates(kind: GpuKind) -> Iterator[str]:
    yield _product_name(kind.product, short=True)
    long = _product_name(kind.product, short=False)
    yield long
    for number in count():
        digest = hashlib.sha256(f"{kind.key} {number}".encode()).hexdigest()
        yield child_name(long, digest[:8])


def _product_name(product: str, *, short: bool) -> str:
    """Return the product in lower case, without vendor names and, if short, without form factor."""
    parts = re.findall("[a-z0-9]+", product.lower())
    while len(parts) > 1 and parts[0] in _VENDOR:
        del parts[0]
    if short:
        parts = [part for part in parts if not _FORM_FACTOR.fullmatch(part)] or parts
    return child_name("-".join(parts) or "gpu")


def features(accelerator: AcceleratorClass) -> tuple[Feature, ...]:
    """Return the instruction sets that every node of a class is known to have."""
    if accelerator.spec.cpu_features is not None:
        return accelerator.spec.cpu_features
    selected = _read_features(accelerator.spec.node_selector)
    return tuple(feature for feature in Feature if feature in selected)


def _read_features(labels: Mapping[str, str]) -> set[Feature]:
    return {feature for name, feature in _LABELS.items() if labels.get(f"{_CPUID}{name}") == "true"}


def int8_products(
    backend: str, precisions: Collection[Precision | None], classes: Collection[AcceleratorClass]
) -> Int8Products | None:
    """Return which sums of INT8 products the model must tolerate, if CPUs may run it in INT8."""
    if "INT8" not in precisions or backend in DEVICE_BACKENDS:
        return None
    return (
        "exact"
        if all(has_exact_products(features(device_class)) for device_class in classes)
        else "any"
    )


def find_contradicted(
    accelerator: AcceleratorClass, labels: Mapping[str, str]
) -> tuple[Feature, ...]:
    """Return features that a class declares but a node lacks, if its labels list features."""
    if not any(label.startswith(_CPUID) for label in labels):
        return ()
    lacking = {*_LABELS.values()} - _read_features(labels)
    return tuple(feature for feature in accelerator.spec.cpu_features or () if feature in lacking)
