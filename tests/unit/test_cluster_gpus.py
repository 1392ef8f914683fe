"""Simulated GPUs: what `--gpus` may say, and what a node then says of itself."""

import pytest
from driver import gpus
from driver.errors import ClusterError
from driver.layout import Gpus


@pytest.mark.parametrize(
    ("text", "expected", "resource"),
    [
        ("2=l4:1", Gpus(2, "l4", None, 1), "nvidia.com/gpu"),
        (
            "1=a100-80gb/1g.10gb:7",
            Gpus(1, "a100-80gb", "1g.10gb", 7),
            "nvidia.com/mig-1g.10gb",
        ),
    ],
)
def test_reads_an_offer(text: str, expected: Gpus, resource: str) -> None:
    offer = gpus.parse(text)
    assert offer == expected
    assert gpus.resource(offer) == resource


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("l4:1", "NODE=PRODUCT"),
        ("1=l4", "NODE=PRODUCT"),
        ("x=l4:1", "NODE=PRODUCT"),
        ("1=l4:many", "NODE=PRODUCT"),
        ("1=l4:-1", "NODE=PRODUCT"),
        ("1=l4:0", "set it to 1 or more"),
        ("1=b9000:1", "unknown GPU 'b9000'; choose one of t4"),
        ("1=l4/1g.10gb:1", "it does not support MIG"),
        ("1=a100-80gb/1g.5gb:1", "choose one of 1g.10gb"),
        ("1=a100-80gb/:1", "unknown MIG profile ''"),
    ],
)
def test_refuses_with_a_remedy(text: str, reason: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        gpus.parse(text)
    assert reason in str(refusal.value)


def test_a_node_may_offer_several_kinds_of_slice() -> None:
    offers = gpus.parse_all(["1=a100-80gb/1g.10gb:3", "1=a100-80gb/3g.40gb:1", "2=l4:1"])
    assert [gpus.resource(offer) for offer in offers] == [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-3g.40gb",
        "nvidia.com/gpu",
    ]


@pytest.mark.parametrize("texts", [["1=l4:1", "1=l4:2"], ["1=l4:1", "1=t4:1"]])
def test_a_node_has_one_product_named_once(texts: list[str]) -> None:
    with pytest.raises(ClusterError, match="refers to node 1 twice"):
        gpus.parse_all(texts)


def test_labels_of_a_whole_gpu() -> None:
    labels = gpus.labels(Gpus(1, "l4", None, 2))
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert labels["nvidia.com/gpu.compute.major"] == "8"
    assert labels["nvidia.com/gpu.compute.minor"] == "9"
    assert labels["nvidia.com/gpu.count"] == "2"
    assert labels["nvidia.com/mig.capable"] == "false"
    assert not any("mig-" in key for key in labels)


@pytest.mark.parametrize(("profile", "count", "cards"), [("1g.10gb", 7, 1), ("3g.40gb", 3, 2)])
def test_labels_of_slices(profile: str, count: int, cards: int) -> None:
    labels = gpus.labels(Gpus(1, "a100-80gb", profile, count))
    assert labels["nvidia.com/gpu.count"] == str(cards)
    assert labels["nvidia.com/mig.strategy"] == "mixed"
    assert labels[f"nvidia.com/mig-{profile}.count"] == str(count)
    assert labels[f"nvidia.com/mig-{profile}.product"] == f"NVIDIA-A100-SXM4-80GB-MIG-{profile}"


def test_every_label_is_one_that_kubernetes_accepts() -> None:
    for name, product in gpus.PRODUCTS.items():
        for profile in (None, *product.slices):
            for key, value in gpus.labels(Gpus(1, name, profile, 1)).items():
                assert len(key.partition("/")[2]) <= 63
                assert len(value) <= 63
                assert value[0].isalnum()
                assert value[-1].isalnum()
