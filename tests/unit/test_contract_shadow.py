"""The annotation by which serving pods send copies of requests to a canary: only what the operator writes holds."""

from dataclasses import replace

import pytest
from enginewright_contract.shadow import (
    MOST_ADDRESSES,
    SHADOW_SECONDS,
    ShadowOrder,
    is_current,
    read_order,
    shadow_order,
    shadow_token,
)

NOW = 1_800_000_000.0
TOKEN = shadow_token("0b9e6b6e-model")
ORDER = ShadowOrder(0.1, int(NOW) + SHADOW_SECONDS, "5d41402a", TOKEN, ("10.1.0.1", "fd00::7"))


@pytest.mark.parametrize("share", [1.0, 0.1, 0.001, 0.00001, 0.333333])
def test_order_is_read_back(share: float) -> None:
    order = replace(ORDER, share=share)
    assert read_order(order.annotation()) == order


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "0.1",
        "0.1 1800000060 5d41402a",
        f"0.1 1800000060 5d41402a {TOKEN}",
        "0.1 1800000060 5d41402a 10.1.0.1",
        "0.1 1800000060 5d41402a 10.1.0.1 fd00::7",
        f"0.1 1800000060 5d41402a {TOKEN}%0d%0a 10.1.0.1",
        f"0 1800000060 5d41402a {TOKEN} 10.1.0.1",
        f"1.5 1800000060 5d41402a {TOKEN} 10.1.0.1",
        f"-0.1 1800000060 5d41402a {TOKEN} 10.1.0.1",
        f"nan 1800000060 5d41402a {TOKEN} 10.1.0.1",
        f"0.1 soon 5d41402a {TOKEN} 10.1.0.1",
        f"0.1 -5 5d41402a {TOKEN} 10.1.0.1",
        f"0.1 ١٢٣ 5d41402a {TOKEN} 10.1.0.1",
        f"0.1 1800000060 ../x {TOKEN} 10.1.0.1",
        f"0.1 1800000060 5d%0d%0a {TOKEN} 10.1.0.1",
        f"0.1 1800000060 5d41402a {TOKEN} 10.1.0.1:8081",
        f"0.1 1800000060 5d41402a {TOKEN} [fd00::7]:8080",
        f"0.1 1800000060 5d41402a {TOKEN} example.com",
        f"0.1 1800000060 5d41402a {TOKEN} localhost",
        f"0.1 1800000060 5d41402a {TOKEN} 10.1.0.1 example.com",
        f"0.1 1800000060 5d41402a {TOKEN} 0.0.0.0",
        f"0.1 1800000060 5d41402a {TOKEN} 169.254.169.254",
        f"0.1 1800000060 5d41402a {TOKEN} 224.0.0.1",
        f"0.1 1800000060 5d41402a {TOKEN} fe80::1%eth0",
        f"0.1 1800000060 5d41402a {TOKEN} " + " ".join(["10.1.0.1"] * (MOST_ADDRESSES + 1)),
    ],
)
def test_anything_else_is_no_order(forged: str) -> None:
    assert read_order(forged) is None


@pytest.mark.parametrize(
    ("left", "holds"),
    [(-1, False), (0, False), (1, True), (SHADOW_SECONDS + 60, True), (SHADOW_SECONDS + 61, False)],
)
def test_order_holds_until_its_end(left: int, holds: bool) -> None:
    assert is_current(replace(ORDER, until=int(NOW) + left), NOW) is holds


def test_an_order_is_renewed_before_it_ends_and_not_at_every_look() -> None:
    first = shadow_order(0.1, NOW, "5d41402a", ["fd00::7", "10.1.0.1"], None, token=TOKEN)
    assert first == ORDER
    for seconds, same in ((1, True), (59, True), (60, False), (500, False)):
        later = shadow_order(0.1, NOW + seconds, "5d41402a", ORDER.addresses, first, token=TOKEN)
        assert (later is first) is same
        assert is_current(later, NOW + seconds)


def test_an_order_that_says_something_else_is_replaced() -> None:
    for order in (
        replace(ORDER, share=0.2),
        replace(ORDER, revision="other"),
        replace(ORDER, token=shadow_token("another model")),
        replace(ORDER, addresses=("10.1.0.2",)),
        replace(ORDER, until=ORDER.until + 1),
    ):
        shadow = shadow_order(0.1, NOW, ORDER.revision, ORDER.addresses, order, token=TOKEN)
        assert shadow == ORDER


def test_of_many_addresses_some_are_ordered() -> None:
    many = [f"10.1.0.{number}" for number in range(100)]
    shadow = shadow_order(0.1, NOW, "5d41402a", many, None, token=TOKEN)
    assert len(shadow.addresses) == MOST_ADDRESSES
    assert read_order(shadow.annotation()) == shadow
