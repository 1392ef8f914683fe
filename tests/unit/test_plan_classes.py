"""AcceleratorClasses proposed from labels as GPU Feature Discovery writes them."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from driver import gpus
from driver.layout import Gpus
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.observed.nodes import node_view
from enginewright.plan.resolve.classes import (
    Proposals,
    device,
    find_mixed_devices,
    propose,
    readiness,
)
from enginewright.plan.resolve.devices import GpuKind, class_names, kinds_of
from hypothesis import given
from hypothesis import strategies as st

from tests.support import plan_objects

ALL = ("cpu", "gpu", "rtx")

# As GPU Feature Discovery 0.17 labelled an L4; gfd.timestamp and the driver's labels left out.
L4 = {
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.deploy.driver": "pre-installed",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.machine": "Google-Compute-Engine",
    "nvidia.com/gpu.memory": "23034",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "false",
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/mps.capable": "false",
}
A10G_SHARED = {
    **L4,
    "nvidia.com/gpu.compute.minor": "6",
    "nvidia.com/gpu.product": "NVIDIA-A10G-SHARED",
    "nvidia.com/gpu.replicas": "2",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
A10G_RENAMED = {**A10G_SHARED, "nvidia.com/gpu.product": "NVIDIA-A10G"}
A100 = {
    **L4,
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/mig.capable": "true",
}
SINGLE = {
    **A100,
    "nvidia.com/gpu.count": "7",
    "nvidia.com/gpu.memory": "9728",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "nvidia.com/gpu.slices.ci": "1",
    "nvidia.com/gpu.slices.gi": "1",
    "nvidia.com/mig.config": "all-1g.10gb",
    "nvidia.com/mig.config.state": "success",
}
INVALID = {
    **A100,
    "nvidia.com/gpu.count": "0",
    "nvidia.com/gpu.memory": "0",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-INVALID",
    "nvidia.com/gpu.replicas": "0",
}
PENDING = {**A100, "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "pending"}
MIXED = {
    **A100,
    "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe",
    "nvidia.com/gpu.replicas": "0",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.10gb.count": "2",
    "nvidia.com/mig-1g.10gb.engines.copy": "1",
    "nvidia.com/mig-1g.10gb.memory": "9728",
    "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-80GB-PCIe-MIG-1g.10gb",
    "nvidia.com/mig-1g.10gb.replicas": "1",
    "nvidia.com/mig-1g.10gb.slices.gi": "1",
    "nvidia.com/mig-3g.40gb.count": "1",
    "nvidia.com/mig-3g.40gb.memory": "40192",
    "nvidia.com/mig-3g.40gb.product": "NVIDIA-A100-80GB-PCIe-MIG-3g.40gb",
    "nvidia.com/mig-3g.40gb.replicas": "1",
}
MIXED_WITH_WHOLE = {**MIXED, "nvidia.com/gpu.replicas": "1"}
LOCAL_MIG = gpus.labels(Gpus(1, "a100-80gb", "1g.10gb", 7))


def node(labels: Mapping[str, str], name: str = "n", taint: str | None = None) -> dict[str, Any]:
    taints = [{"key": taint, "value": "present", "effect": "NoSchedule"}] if taint else []
    obj = plan_objects.node(name, taints=taints)
    obj["metadata"]["labels"] |= labels
    return obj


def existing(name: str, **spec: Any) -> AcceleratorClass:
    obj = {"metadata": {"name": name}, "spec": {"backends": ["cuda"], **spec}}
    return AcceleratorClass.model_validate(obj)


def propose_classes(
    *nodes: Mapping[str, Any],
    classes: tuple[AcceleratorClass, ...] = (),
    made: dict[str, str] | None = None,
    variants: tuple[str, ...] = ALL,
    own: tuple[str, ...] = (),
) -> Proposals:
    return propose(map(node_view, nodes), classes, variants, made or {}, own)


def specs(proposals: Proposals) -> dict[str, dict[str, Any]]:
    return {entry["metadata"]["name"]: entry["spec"] for entry in proposals.apply}


def test_a_proposal_is_a_whole_class() -> None:
    proposals = propose_classes(node(L4, "a", taint="nvidia.com/gpu"), node(L4, "b"))
    (obj,) = proposals.apply
    assert obj == {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "AcceleratorClass",
        "metadata": {"name": "l4", "labels": {"enginewright.dev/proposed": "true"}},
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "resourceName": "nvidia.com/gpu",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "computeCapability": "8.9",
            "backends": ["tensorrt", "tensorrt-rtx", "cuda"],
        },
    }
    assert proposals.made == {"gpu_NVIDIA-L4": "l4"}
    AcceleratorClass.model_validate(obj)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (L4, {"l4": ("nvidia.com/gpu.product", "nvidia.com/gpu")}),
        (A10G_SHARED, {"a10g-shared": ("nvidia.com/gpu.product", "nvidia.com/gpu")}),
        (A10G_RENAMED, {"a10g": ("nvidia.com/gpu.product", "nvidia.com/gpu.shared")}),
        (A100, {"a100-80gb": ("nvidia.com/gpu.product", "nvidia.com/gpu")}),
        (SINGLE, {"a100-80gb-mig-1g-10gb": ("nvidia.com/gpu.product", "nvidia.com/gpu")}),
        (INVALID, {}),
        (PENDING, {}),
        (MIXED, {
            "a100-80gb-mig-1g-10gb": ("nvidia.com/mig-1g.10gb.product", "nvidia.com/mig-1g.10gb"),
            "a100-80gb-mig-3g-40gb": ("nvidia.com/mig-3g.40gb.product", "nvidia.com/mig-3g.40gb"),
        }),
        (MIXED_WITH_WHOLE, {
            "a100-80gb": ("nvidia.com/gpu.product", "nvidia.com/gpu"),
            "a100-80gb-mig-1g-10gb": ("nvidia.com/mig-1g.10gb.product", "nvidia.com/mig-1g.10gb"),
            "a100-80gb-mig-3g-40gb": ("nvidia.com/mig-3g.40gb.product", "nvidia.com/mig-3g.40gb"),
        }),
        ({**LOCAL_MIG, "nvidia.com/mig-1g.10gb.replicas": "4"}, {
            "a100-80gb-mig-1g-10gb":
                ("nvidia.com/mig-1g.10gb.product", "nvidia.com/mig-1g.10gb.shared"),
        }),
        (LOCAL_MIG, {
            "a100-80gb-mig-1g-10gb": ("nvidia.com/mig-1g.10gb.product", "nvidia.com/mig-1g.10gb"),
        }),
        ({}, {}),
        ({"nvidia.com/gpu.present": "true"}, {}),
        ({"nvidia.com/gpu.product": ""}, {}),
    ],
)  # fmt: skip
def test_gpu_feature_discovery(
    labels: dict[str, str], expected: dict[str, tuple[str, str]]
) -> None:
    class_specs = specs(propose_classes(node(labels)))
    assert {
        name: (*spec["nodeSelector"], spec["resourceName"]) for name, spec in class_specs.items()
    } == expected


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla-T4", "t4"),
        ("Tesla-V100-SXM2-16GB", "v100-16gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA-A100-SXM-64GB", "a100-64gb"),
        ("NVIDIA-A100-80GB-PCIe", "a100-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA-H100-NVL", "h100-nvl"),
        ("NVIDIA-GH200-144G-HBM3e", "gh200-144g"),
        ("NVIDIA-B200", "b200"),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090"),
        ("GeForce-GTX-1080-Ti", "gtx-1080-ti"),
        ("Quadro-RTX-6000", "rtx-6000"),
        ("NVIDIA-RTX-4000-Ada-Generation", "rtx-4000-ada-generation"),
        ("NVIDIA-A16-4Q", "a16-4q"),
        ("GRID-T4-8C", "grid-t4-8c"),
        ("NVIDIA", "nvidia"),
        ("PCIe", "pcie"),
    ],
)
def test_names(product: str, name: str) -> None:
    kind = GpuKind(product, "nvidia.com/gpu.product", "nvidia.com/gpu")
    assert class_names((kind,), ()) == {kind: name}


def test_kinds_that_would_share_a_name_get_longer_ones() -> None:
    sxm = node({**A100}, "a")
    pcie = node({**A100, "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe"}, "b")
    assert set(specs(propose_classes(sxm, pcie))) == {"a100-sxm4-80gb", "a100-80gb-pcie"}
    # One after the other: the first one's name stays.
    first = propose_classes(sxm)
    assert set(specs(first)) == {"a100-80gb"}
    there = AcceleratorClass.model_validate(first.apply[0])
    second = propose_classes(sxm, pcie, classes=(there,), made=first.made)
    assert set(specs(second)) == {"a100-80gb-pcie"}
    # The same profile by either strategy differs in nothing but the resource.
    single = node({**SINGLE, "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe-MIG-1g.10gb"}, "c")
    names = set(specs(propose_classes(single, node(MIXED, "d"))))
    assert len(names) == 3
    assert len([name for name in names if name.startswith("a100-80gb-pcie-mig-1g-10gb")]) == 2


def test_the_order_of_nodes_decides_nothing() -> None:
    one, other = (
        GpuKind("NVIDIA-L4", "nvidia.com/gpu.product", f"nvidia.com/{name}") for name in ("a", "b")
    )
    assert class_names((one, other), ()) == class_names((other, one), ())


PRODUCTS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)
KINDS = st.lists(
    st.builds(
        GpuKind,
        PRODUCTS | st.sampled_from(["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"]),
        st.just("nvidia.com/gpu.product"),
        st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"]),
    ),
    unique=True,
    max_size=6,
)


@given(KINDS, st.sets(st.sampled_from(["cpu", "a100-80gb", "a100-80gb-pcie", "l4"])), st.data())
def test_names_are_unique_dns_labels(
    kinds: list[GpuKind], taken: set[str], data: st.DataObject
) -> None:
    names = class_names(kinds, taken)
    assert set(names) == set(kinds)
    assert len({*names.values(), *taken}) == len(kinds) + len(taken)
    for name in names.values():
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
    assert class_names(data.draw(st.permutations(kinds)), taken) == names
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", kind.key) for kind in kinds)


@given(st.dictionaries(
    st.sampled_from([*L4, *MIXED, "nvidia.com/mig-.product", "nvidia.com/mig-1g.5gb.me.product"]),
    st.sampled_from(["", "0", "-1", "99999", "NVIDIA-L4", "single", "é", "1" * 63, "²"]),
))  # fmt: skip
def test_no_labels_are_too_odd(labels: dict[str, str]) -> None:
    for entry in propose_classes(node(labels)).apply:
        AcceleratorClass.model_validate(entry)


# fault: Engines | a GPU for which ONNX Runtime's CUDA provider has no code (V100, B200)
@pytest.mark.parametrize(
    ("capability", "variants", "backends"),
    [
        ("8.9", ("cpu",), None),
        ("8.9", ("openvino", "cpu"), None),
        ("8.9", ("gpu",), ["tensorrt", "cuda"]),
        ("8.9", ("rtx",), ["tensorrt-rtx"]),
        ("12.0", ALL, ["tensorrt", "tensorrt-rtx", "cuda"]),
        ("9.0", ALL, ["tensorrt", "cuda"]),
        ("9.0", ("rtx",), None),
        ("8.6", ALL, ["tensorrt", "tensorrt-rtx", "cuda"]),
        ("7.5", ALL, ["tensorrt", "cuda"]),  # TensorRT-RTX builds for these two, and no more
        ("8.0", ALL, ["tensorrt", "cuda"]),
        ("8.0", ("rtx",), None),
        ("10.0", ALL, ["tensorrt"]),  # ONNX Runtime's CUDA provider has no code for it
        ("7.0", ALL, None),  # CUDA 13 has dropped it
        ("12.1", ALL, ["tensorrt", "tensorrt-rtx", "cuda"]),
        ("", ("rtx",), ["tensorrt-rtx"]),
        ("8.9.1", ("rtx",), ["tensorrt-rtx"]),
    ],
)
def test_backends_support_the_device(
    capability: str, variants: tuple[str, ...], backends: list[str] | None
) -> None:
    major, _, minor = capability.partition(".")
    labels = {**L4, "nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    class_specs = specs(propose_classes(node(labels), variants=variants))
    assert [spec["backends"] for spec in class_specs.values()] == ([backends] if backends else [])
    if backends and capability in ("", "8.9.1"):
        assert "computeCapability" not in class_specs["l4"]


@pytest.mark.parametrize(
    ("spec", "covers"),
    [
        ({"nodeSelector": {"kubernetes.io/os": "linux"}}, False),  # the class of all CPUs
        ({"nodeSelector": {"pool": "gold"}, "resourceName": "nvidia.com/gpu"}, True),
        ({"nodeSelector": {"pool": "iron"}, "resourceName": "nvidia.com/gpu"}, False),
        ({"nodeSelector": {"pool": "gold"}, "resourceName": "example.com/gpu"}, False),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}, True),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4", "pool": "none"}}, True),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A10"}}, False),
    ],
)
def test_a_kind_that_has_a_class_gets_no_other(spec: dict[str, Any], covers: bool) -> None:
    nodes = (node({**L4, "pool": "gold"}, "a"), node(L4, "b"))
    proposals = propose_classes(*nodes, classes=(existing("mine", **spec),))
    assert bool(proposals.apply) is not covers
    assert proposals.made == ({} if covers else {"gpu_NVIDIA-L4": "l4"})


def test_class_is_proposed_once() -> None:
    first = propose_classes(node(L4))
    assert propose_classes(node(L4), made=first.made) == Proposals((), first.made)
    # Nor where the ConfigMap was lost while the class is there.
    there = AcceleratorClass.model_validate(first.apply[0])
    assert propose_classes(node(L4), classes=(there,)) == Proposals((), first.made)


def test_a_kind_of_several_capabilities_claims_none() -> None:
    odd = {**L4, "nvidia.com/gpu.compute.minor": "6"}
    assert "computeCapability" not in specs(propose_classes(node(L4, "a"), node(odd, "b")))["l4"]


ONE_NAME = {**A100, "nvidia.com/gpu.product": "NVIDIA-A100"}
SLICE = "nvidia.com/mig-1g.10gb"
MEMORY = "nvidia.com/gpu.memory"


@pytest.mark.parametrize(
    ("one", "other", "resource", "reported"),
    [
        (ONE_NAME, {**ONE_NAME, MEMORY: "40960"}, "nvidia.com/gpu", "NVIDIA-A100 with 40960 MiB and 81920 MiB"),
        (ONE_NAME, {**ONE_NAME, MEMORY: "95830"}, "nvidia.com/gpu", "by the label nvidia.com/gpu.memory"),
        (ONE_NAME, {**ONE_NAME, MEMORY: "76800"}, "nvidia.com/gpu", ""),  # error correction
        (ONE_NAME, {**ONE_NAME, MEMORY: ""}, "nvidia.com/gpu", ""),
        (MIXED, {**MIXED, f"{SLICE}.memory": "4864"}, SLICE, f"by the label {SLICE}.memory"),
        (MIXED, {**MIXED, MEMORY: "40960"}, SLICE, ""),  # of whole GPUs, of which nothing is requested
        (SINGLE, {**SINGLE, MEMORY: "4864"}, "nvidia.com/gpu", "1g.10gb with 4864 MiB and 9728 MiB"),
        (L4, ONE_NAME, "nvidia.com/gpu", "have NVIDIA-A100, NVIDIA-L4, but an engine fits one product"),
    ],
)  # fmt: skip
def test_devices_of_one_name_differ_in_memory(
    one: dict[str, str], other: dict[str, str], resource: str, reported: str
) -> None:
    nodes = [
        node_view(node({**labels, "pool": "gpus"}, name))
        for name, labels in {"a": one, "b": other}.items()
    ]
    spec = {"nodeSelector": {"pool": "gpus"}, "resourceName": resource}
    mixture = find_mixed_devices(existing("gpus", backends=["tensorrt"], **spec), nodes)
    assert reported in mixture
    assert bool(reported) == bool(mixture)
    ready = readiness(existing("gpus", backends=["tensorrt"], **spec), (), nodes)
    assert ready.reason == (StatusReason.MIXED_DEVICES if reported else StatusReason.NODES_FOUND)
    assert find_mixed_devices(existing("gpus", **spec), nodes) == "", "nothing is compiled"


def test_every_gpu_of_the_local_cluster_is_read() -> None:
    for name, product in gpus.PRODUCTS.items():
        for mig in (None, *product.slices):
            one = Gpus(1, name, mig, 1)
            (kind,) = kinds_of(node_view(node(gpus.labels(one))))
            assert kind.resource == gpus.resource(one)


# labels of one's own


GKE = "cloud.google.com/gke-accelerator"
KARPENTER = "karpenter.k8s.aws/instance-gpu-name"
OWN = (GKE, KARPENTER)
GKE_L4 = {GKE: "nvidia-l4"}
POOL = {"nodeSelector": {"pool": "gpus"}, "resourceName": "nvidia.com/gpu"}


def test_a_label_of_ones_own_names_a_product() -> None:
    nodes = (node(GKE_L4, "a", taint="nvidia.com/gpu"), node({KARPENTER: "t4", "x": "y"}, "b"))
    assert specs(propose_classes(*nodes)) == {}, "only by setting"
    class_specs = specs(propose_classes(*nodes, own=OWN))
    assert {name: spec["nodeSelector"] for name, spec in class_specs.items()} == {
        "l4": GKE_L4,
        "t4": {KARPENTER: "t4"},
    }
    assert class_specs["l4"] == {
        "nodeSelector": GKE_L4,
        "resourceName": "nvidia.com/gpu",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "backends": ["tensorrt", "tensorrt-rtx", "cuda"],
    }


def test_a_node_with_several_labels_is_proposed_once() -> None:
    both = {**GKE_L4, KARPENTER: "l4"}
    (first,) = specs(propose_classes(node(both), own=OWN)).values()
    assert first["nodeSelector"] == GKE_L4
    (with_nvidia,) = specs(propose_classes(node({**L4, **both}), own=OWN)).values()
    assert with_nvidia["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_node_that_is_not_labelled_yet_is_not_proposed_twice() -> None:
    labelled_class = existing("l4", nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"})
    assert propose_classes(node(GKE_L4, "joins"), classes=(labelled_class,), own=OWN).apply == ()
    assert [*specs(propose_classes(node(GKE_L4, "joins"), node(L4, "is there"), own=OWN))] == ["l4"]
    first = propose_classes(node(GKE_L4), own=OWN)
    there = AcceleratorClass.model_validate(first.apply[0])
    later = propose_classes(node({**L4, **GKE_L4}), classes=(there,), made=first.made, own=OWN)
    assert later.apply == (), "GPU Feature Discovery came later"


@pytest.mark.parametrize(
    ("one", "other", "reported"),
    [
        (GKE_L4, {GKE: "nvidia-tesla-t4"}, f"nvidia-l4, nvidia-tesla-t4, but an engine fits one product: narrow spec.nodeSelector by the label {GKE}"),
        ({KARPENTER: "l4"}, {KARPENTER: "t4"}, "have l4, t4"),
        (GKE_L4, GKE_L4, ""),
        (GKE_L4, {**L4, **GKE_L4}, ""),  # the labels of one node are still missing
        (GKE_L4, {**ONE_NAME, GKE: "nvidia-tesla-a100"}, "have nvidia-l4, nvidia-tesla-a100"),
        ({**L4, **GKE_L4}, {**L4, GKE: "other"}, ""),  # NVIDIA's labels decide
    ],
)  # fmt: skip
def test_own_labels_tell_products_apart(
    one: dict[str, str], other: dict[str, str], reported: str
) -> None:
    pool = {"a": one, "b": other}
    nodes = [node_view(node({**labels, "pool": "gpus"}, name)) for name, labels in pool.items()]
    mixed = existing("gpus", backends=["tensorrt"], **POOL)
    ready = readiness(mixed, (), nodes, OWN)
    assert reported in ready.message
    assert ready.reason == (StatusReason.MIXED_DEVICES if reported else StatusReason.NODES_FOUND)
    assert readiness(mixed, (), nodes[:1], OWN).reason == StatusReason.NODES_FOUND
    claims_cpu = existing("cpu", nodeSelector={"pool": "gpus"}, backends=["tensorrt"])
    assert find_mixed_devices(claims_cpu, nodes, OWN) == "", "it requests none of them"


def test_classes_of_both_labels_that_select_one_node_overlap() -> None:
    labelled = node_view(node({**L4, **GKE_L4}))
    resource = {"resourceName": "nvidia.com/gpu"}
    one = existing("one", nodeSelector=GKE_L4, **resource)
    other = existing("other", nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"}, **resource)
    assert readiness(one, (other,), (labelled,), OWN).reason == StatusReason.OVERLAPPING_CLASS


def test_device_by_own_labels() -> None:
    def describe(selector: dict[str, str], own: tuple[str, ...] = OWN) -> str:
        return device(existing("c", nodeSelector=selector, resourceName="nvidia.com/gpu"), own)

    assert describe(GKE_L4) == "nvidia-l4 nvidia.com/gpu"
    assert describe(GKE_L4, ()) == ""
    assert describe({**GKE_L4, KARPENTER: "l4"}) == "nvidia-l4 nvidia.com/gpu"
    nvidia = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert describe({**GKE_L4, **nvidia}) == describe(nvidia, ()) == "NVIDIA-L4 nvidia.com/gpu"
