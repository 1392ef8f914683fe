"""What a node with GPUs looks like to Kubernetes: resources, and GPU Feature Discovery's labels."""

from dataclasses import dataclass

from driver.errors import ClusterError
from driver.layout import Gpus


@dataclass(frozen=True)
class Product:
    """One GPU as GPU Feature Discovery describes it."""

    label: str  # nvidia.com/gpu.product
    memory_mib: int
    capability: tuple[int, int]
    family: str


PRODUCTS = {
    "t4": Product("Tesla-T4", 15360, (7, 5), "turing"),
    "a10": Product("NVIDIA-A10", 23028, (8, 6), "ampere"),
    "a100-40gb": Product("NVIDIA-A100-SXM4-40GB", 40960, (8, 0), "ampere"),
    "a100-80gb": Product("NVIDIA-A100-SXM4-80GB", 81920, (8, 0), "ampere"),
    "l4": Product("NVIDIA-L4", 23034, (8, 9), "ada-lovelace"),
    "l40s": Product("NVIDIA-L40S", 46068, (8, 9), "ada-lovelace"),
    "h100": Product("NVIDIA-H100-80GB-HBM3", 81559, (9, 0), "hopper"),
}
# Sizes of MIG slices: NVIDIA's Multi-Instance GPU user guide, supported profiles.
MIG_MEMORY_MIB = {
    "1g.5gb": 4864,
    "2g.10gb": 9856,
    "3g.20gb": 19968,
    "1g.10gb": 9728,
    "2g.20gb": 19968,
    "3g.40gb": 40192,
    "7g.80gb": 81050,
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
    name, _, mig = product.partition("/")
    if name not in PRODUCTS:
        raise ClusterError(f"unknown GPU {name!r}; choose one of {', '.join(PRODUCTS)}")
    if mig and mig not in MIG_MEMORY_MIB:
        raise ClusterError(
            f"unknown MIG profile {mig!r}; choose one of {', '.join(MIG_MEMORY_MIB)}"
        )
    return Gpus(int(node), name, mig or None, int(count))


def resource(gpus: Gpus) -> str:
    """Return the extended resource's name."""
    return f"nvidia.com/mig-{gpus.mig}" if gpus.mig else "nvidia.com/gpu"


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
        "nvidia.com/gpu.count": str(gpus.count if not gpus.mig else 1),
        "nvidia.com/mig.capable": "true" if gpus.mig else "false",
    }
    if not gpus.mig:
        return common
    prefix = f"nvidia.com/mig-{gpus.mig}"
    return {
        **common,
        "nvidia.com/mig.strategy": "mixed",
        f"{prefix}.count": str(gpus.count),
        f"{prefix}.memory": str(MIG_MEMORY_MIB[gpus.mig]),
        f"{prefix}.product": f"{product.label}-MIG-{gpus.mig}",
    }
