"""How Kubernetes sees a node with GPUs: extended resources, GPU Feature Discovery's labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from driver.errors import ClusterError
from driver.layout import Gpus

_COMPUTE_SLICES_PER_GPU = 7


@dataclass(frozen=True)
class Slice:
    """A MIG profile as GPU Feature Discovery describes it."""

    memory_mib: int
    multiprocessors: int
    slices: int


@dataclass(frozen=True)
class Product:
    """One GPU as GPU Feature Discovery describes it, and its MIG profiles."""

    label: str  # nvidia.com/gpu.product
    memory_mib: int
    capability: tuple[int, int]
    family: str
    slices: Mapping[str, Slice] = field(default_factory=dict)


# Profiles and sizes: NVIDIA's Multi-Instance GPU user guide, supported profiles.
_A100_40GB = {
    "1g.5gb": Slice(4864, 14, 1),
    "2g.10gb": Slice(9856, 28, 2),
    "3g.20gb": Slice(19968, 42, 3),
}
_A100_80GB = {
    "1g.10gb": Slice(9728, 14, 1),
    "2g.20gb": Slice(19968, 28, 2),
    "3g.40gb": Slice(40192, 42, 3),
    "7g.80gb": Slice(81050, 98, 7),
}
_H100 = {
    "1g.10gb": Slice(9984, 16, 1),
    "2g.20gb": Slice(20096, 32, 2),
    "3g.40gb": Slice(40448, 60, 3),
}
PRODUCTS: Mapping[str, Product] = {
    "t4": Product("Tesla-T4", 15360, (7, 5), "turing"),
    "a10": Product("NVIDIA-A10", 23028, (8, 6), "ampere"),
    "a100-40gb": Product("NVIDIA-A100-SXM4-40GB", 40960, (8, 0), "ampere", _A100_40GB),
    "a100-80gb": Product("NVIDIA-A100-SXM4-80GB", 81920, (8, 0), "ampere", _A100_80GB),
    "l4": Product("NVIDIA-L4", 23034, (8, 9), "ada-lovelace"),
    "l40s": Product("NVIDIA-L40S", 46068, (8, 9), "ada-lovelace"),
    "h100": Product("NVIDIA-H100-80GB-HBM3", 81559, (9, 0), "hopper", _H100),
    "rtx-pro-6000": Product(
        "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97887, (12, 0), "blackwell"
    ),
}


def parse(text: str) -> Gpus:
    """Read `NODE=PRODUCT[/MIG]:COUNT`, e.g. `2=l4:1` or `1=a100-80gb/1g.10gb:7`.

    Raises:
        ClusterError: Malformed, or an unknown product or MIG profile.
    """
    node, separator, device = text.partition("=")
    product, colon, count = device.rpartition(":")
    if not (separator and colon and node.isdigit() and count.isdigit()):
        raise ClusterError(
            f"--gpus {text!r} is not NODE=PRODUCT[/MIG]:COUNT; write for example 2=l4:1"
        )
    name, slash, mig = product.partition("/")
    if name not in PRODUCTS:
        raise ClusterError(f"unknown GPU {name!r}; choose one of {', '.join(PRODUCTS)}")
    slices = PRODUCTS[name].slices
    if slash and mig not in slices:
        remedy = f"choose one of {', '.join(slices)}" if slices else "it does not support MIG"
        raise ClusterError(f"unknown MIG profile {mig!r} of {name}; {remedy}")
    if int(count) < 1:
        raise ClusterError(f"--gpus {text!r} has a count of 0; set it to 1 or more")
    return Gpus(int(node), name, mig or None, int(count))


def parse_all(texts: Sequence[str]) -> tuple[Gpus, ...]:
    """Read every `--gpus`; a node has one product, and each MIG profile of it at most once.

    Raises:
        ClusterError: One is malformed, or two contradict each other.
    """
    parsed = tuple(parse(text) for text in texts)
    for index, one in enumerate(parsed):
        for other in parsed[:index]:
            if one.node != other.node:
                continue
            if one.product != other.product or one.mig == other.mig:
                raise ClusterError(
                    f"--gpus refers to node {one.node} twice, with {other.product} and "
                    f"{one.product}; give each node one product, and each MIG profile once"
                )
    return parsed


def resource(gpus: Gpus) -> str:
    """Return the extended resource's name."""
    return f"nvidia.com/mig-{gpus.mig}" if gpus.mig else "nvidia.com/gpu"


def _physical_gpus(gpus: Gpus) -> int:
    """Return the number of physical GPUs of a node: one has at most seven compute slices."""
    if not gpus.mig:
        return gpus.count
    per_gpu = _COMPUTE_SLICES_PER_GPU // PRODUCTS[gpus.product].slices[gpus.mig].slices
    return -(-gpus.count // per_gpu)


def labels(gpus: Gpus) -> dict[str, str]:
    """Return the labels that GPU Feature Discovery would set (mixed MIG strategy)."""
    product = PRODUCTS[gpus.product]
    common = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product.label,
        "nvidia.com/gpu.memory": str(product.memory_mib),
        "nvidia.com/gpu.family": product.family,
        "nvidia.com/gpu.compute.major": str(product.capability[0]),
        "nvidia.com/gpu.compute.minor": str(product.capability[1]),
        "nvidia.com/gpu.count": str(_physical_gpus(gpus)),
        "nvidia.com/mig.capable": "true" if product.slices else "false",
    }
    if not gpus.mig:
        return common
    prefix = f"nvidia.com/mig-{gpus.mig}"
    size = product.slices[gpus.mig]
    return {
        **common,
        "nvidia.com/mig.strategy": "mixed",
        f"{prefix}.count": str(gpus.count),
        f"{prefix}.memory": str(size.memory_mib),
        f"{prefix}.multiprocessors": str(size.multiprocessors),
        f"{prefix}.product": f"{product.label}-MIG-{gpus.mig}",
        f"{prefix}.slices.ci": str(size.slices),
        f"{prefix}.slices.gi": str(size.slices),
    }
