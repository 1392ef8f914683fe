"""AcceleratorClasses: their nodes, whether two classes overlap, which ones to propose. Pure.

A class is proposed once for each kind of GPU, and from then on belongs to the administrator.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.engines import why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, VARIANTS
from enginewright_contract.keys import content_hash

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassSpec, Backend
from enginewright.api.base import API_VERSION
from enginewright.api.conditions import ConditionType, StatusReason, WantedCondition
from enginewright.api.pods import Toleration
from enginewright.manifests.placement import ARCHITECTURE, USUAL_ARCHITECTURE
from enginewright.observed.nodes import NodeView
from enginewright.plan.resolve.devices import (
    GpuKind,
    class_names,
    compute_capability,
    find_contradicted,
    is_memory,
    kinds_of,
    memory_of,
    own_kinds,
    products_of,
)

PROPOSED: Final = "enginewright.dev/proposed"  # label of classes created by the operator

# Devices of one size differ in what error correction and drivers leave of their memory: up to an eighth
_SAME_MEMORY: Final = 8 / 7
_HASH_LENGTH: Final = 12  # of the conditions of a claim
_TAINT: Final = "nvidia.com/gpu"  # that clusters put on GPU nodes to keep other pods away
_RANKED: Final = (Backend.TENSORRT, Backend.TENSORRT_RTX, Backend.CUDA)


def matching(accelerator: AcceleratorClass, nodes: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes that have all labels of the class's selector."""
    return select_nodes(accelerator.spec.node_selector, nodes)


def select_nodes(selector: Mapping[str, str], nodes: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes that have all labels of a selector."""
    return [node for node in nodes if selector.items() <= node.labels.items()]


def device(accelerator: AcceleratorClass, own: Sequence[str] = ()) -> str:
    """Return what identifies the class's devices, or "" if no product label of its selector does, nor an `own` one.

    The product, memory and processor architecture that the selector names, and the resource. Never from
    its nodes: keys would change when nodes join and leave.
    """
    selector = accelerator.spec.node_selector
    products = products_of(selector, own)
    if not products:
        return ""
    memory = [f"{value}MiB" for label, value in sorted(selector.items()) if is_memory(label)]
    architecture = selector.get(ARCHITECTURE, USUAL_ARCHITECTURE)
    if architecture == USUAL_ARCHITECTURE:
        architecture = ""  # so that keys stay
    spec = accelerator.spec
    parts = (*products, *memory, architecture, spec.resource_name, _identify_claim(accelerator))
    return " ".join(filter(None, parts))


def _identify_claim(accelerator: AcceleratorClass) -> str:
    """Return what identifies the request for a device by Dynamic Resource Allocation, if there is one."""
    request = accelerator.spec.device
    if request is None:
        return ""
    if not request.selectors:
        return request.device_class_name
    conditions = content_hash(*(selector.cel.expression for selector in request.selectors))
    return f"{request.device_class_name} {conditions[:_HASH_LENGTH]}"


def find_mixed_devices(
    accelerator: AcceleratorClass, nodes: Iterable[NodeView], own: Sequence[str] = ()
) -> str:
    """Return why an engine built on one node would not fit another, if it would not.

    An engine built ahead of time fits a compute capability, and so any product. The administrator's `own` product
    labels count unless GPU Feature Discovery labels all nodes.
    """
    spec = accelerator.spec
    if spec.ahead_of_time or not COMPILED_BACKENDS.intersection(spec.backends):
        return ""
    mine = matching(accelerator, nodes)
    devices = {
        (kind, memory_of(node, kind))
        for node in mine
        for kind in kinds_of(node)
        if kind.resource == spec.resource_name
    }
    products = {kind.product for kind, _ in devices}
    if len(products) > 1:
        have, fits, label = ", ".join(sorted(products)), "one product", "nvidia.com/gpu.product"
    elif differing := _differing(accelerator, mine, own):
        label = differing[0].label
        have, fits = ", ".join(gpu_kind.product for gpu_kind in differing), "one product"
    elif len(sizes := sorted({memory for _, memory in devices if memory})) > 1:
        if sizes[-1] <= sizes[0] * _SAME_MEMORY:
            return ""
        shown = " and ".join(f"{number} MiB" for number in (sizes[0], sizes[-1]))
        have, fits = f"{products.pop()} with {shown}", "one size, which differs in processors too"
        label = min(kind.memory_label for kind, _ in devices)
    else:
        return ""
    return (
        f"nodes of AcceleratorClass {accelerator.metadata.name} have {have}, but an engine fits {fits}:"
        f" narrow spec.nodeSelector by the label {label}, and create a class for each"
    )


def _differing(
    accelerator: AcceleratorClass, nodes: Sequence[NodeView], own: Sequence[str]
) -> list[GpuKind]:
    """Return the kinds of GPU by the first of the administrator's `own` labels that has several, if any does."""
    if all(products_of(node.labels) for node in nodes):
        return []
    requested = accelerator.spec.resource_name
    kinds = {kind for node in nodes for kind in own_kinds(node, own) if kind.resource == requested}
    by_label = (sorted(kind for kind in kinds if kind.label == item) for item in own)
    return next((row for row in by_label if len(row) > 1), [])


def is_proposed(accelerator: AcceleratorClass) -> bool:
    """Return whether the operator created the class from the labels of nodes."""
    return accelerator.metadata.labels.get(PROPOSED) == "true"


def readiness(
    this: AcceleratorClass,
    others: Iterable[AcceleratorClass],
    nodes: Iterable[NodeView],
    own: Sequence[str] = (),
) -> WantedCondition:
    """Return the condition Ready: the class has nodes, and no other class requests its devices.

    `own` are the administrator's product labels. Classes that request different resources may share nodes, like
    the class of all CPUs and classes of GPUs, or two MIG profiles of one GPU.
    """
    mine = matching(this, nodes)
    resource = this.spec.resource_name or _identify_claim(this)
    rivals = sorted(
        other.metadata.name
        for other in others
        if (other.spec.resource_name or _identify_claim(other)) == resource
        and matching(other, mine)
    )
    if rivals:
        several = len(rivals) > 1
        named = f"AcceleratorClass{'es' if several else ''} {', '.join(rivals)}"
        requests = f"{'request' if several else 'requests'} {resource or 'no resource'}"
        return _not_ready(
            StatusReason.OVERLAPPING_CLASS,
            f"{named} {requests} on nodes of this class too: narrow spec.nodeSelector"
            " so that every node belongs to one class, or delete one of them",
        )
    if not mine:
        return _not_ready(
            StatusReason.NO_MATCHING_NODE,
            "no node has the labels of spec.nodeSelector:"
            " add a node with these labels or correct the selector (kubectl get nodes --show-labels)",
        )
    if mixed := find_mixed_devices(this, mine, own):
        return _not_ready(StatusReason.MIXED_DEVICES, mixed)
    for node in mine:
        if lacking := find_contradicted(this, node.labels):
            return _not_ready(
                StatusReason.FEATURE_MISSING,
                f"spec.cpuFeatures lists {', '.join(lacking)}, but node {node.name} lacks it"
                " according to its labels of Node Feature Discovery: narrow spec.nodeSelector, or"
                " remove it from spec.cpuFeatures",
            )
    count = "1 node matches" if len(mine) == 1 else f"{len(mine)} nodes match"
    return WantedCondition(
        type=ConditionType.READY,
        status="True",
        reason=StatusReason.NODES_FOUND,
        message=f"{count} spec.nodeSelector",
    )


def _not_ready(reason: StatusReason, message: str) -> WantedCondition:
    return WantedCondition(type=ConditionType.READY, status="False", reason=reason, message=message)


@dataclass(frozen=True)
class Proposals:
    """Classes to propose now, and all kinds of GPU that ever had a class proposed."""

    apply: tuple[dict[str, Any], ...]
    made: dict[str, str]  # key of a GpuKind -> name of the class; entries are never removed


def propose(
    nodes: Iterable[NodeView],
    classes: Sequence[AcceleratorClass],
    variants: Collection[str],
    made: dict[str, str],
    own: Sequence[str] = (),
) -> Proposals:
    """Return a class for each kind of GPU that has none and never had one proposed.

    The administrator's `own` product labels count only where GPU Feature Discovery is not in use: a node that joins
    gets its labels later than others, and would be proposed twice. A kind that none of the configured `variants`
    of the runtime image supports is reconsidered when the operator is started with others.
    """
    of_kind: dict[GpuKind, list[NodeView]] = {}
    nodes = tuple(nodes)
    selectors = (device_class.spec.node_selector for device_class in classes)
    is_discovered = any(map(products_of, (*selectors, *(node.labels for node in nodes))))
    for node in nodes:
        for kind in kinds_of(node) if is_discovered else own_kinds(node, own)[:1]:
            of_kind.setdefault(kind, []).append(node)
    now = dict(made)
    specs: dict[GpuKind, AcceleratorClassSpec] = {}
    for kind, its_nodes in of_kind.items():
        if owner := _class_of(kind, its_nodes, classes):
            if is_proposed(owner):
                now.setdefault(kind.key, owner.metadata.name)  # created just before a restart
        elif kind.key not in made and (spec := _spec(kind, its_nodes, variants)):
            specs[kind] = spec
    names = class_names(tuple(specs), {device_class.metadata.name for device_class in classes})
    now.update({kind.key: name for kind, name in names.items()})
    return Proposals(tuple(_object(names[kind], specs[kind]) for kind in names), now)


def _class_of(
    kind: GpuKind, nodes: Iterable[NodeView], classes: Iterable[AcceleratorClass]
) -> AcceleratorClass | None:
    """Return a class that covers the kind: a second one could overlap with it."""
    for device_class in classes:
        selects = matching(device_class, nodes)
        named = device_class.spec.node_selector.get(kind.label) == kind.product
        requests = (
            device_class.spec.device is not None or device_class.spec.resource_name == kind.resource
        )
        if (selects and requests) or named:
            return device_class
    return None


def _spec(
    kind: GpuKind, nodes: Sequence[NodeView], variants: Collection[str]
) -> AcceleratorClassSpec | None:
    capability = compute_capability(nodes)
    backends = tuple(
        backend
        for backend in _RANKED
        if VARIANTS[backend] in variants and why_unusable(backend, capability) is None
    )
    if not backends:
        return None
    tainted = any(taint.key == _TAINT for node in nodes for taint in node.taints)
    return AcceleratorClassSpec(
        node_selector={kind.label: kind.product},
        resource_name=kind.resource,
        tolerations=(Toleration(key=_TAINT, operator="Exists"),) if tainted else (),
        compute_capability=capability,
        backends=backends,
    )


def _object(name: str, spec: AcceleratorClassSpec) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": AcceleratorClass.kind,
        "metadata": {"name": name, "labels": {PROPOSED: "true"}},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
