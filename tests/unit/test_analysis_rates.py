"""How often a rollout fails without and with a regression, over all looks: docs/analysis.md."""

import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.rollout_load import Noise
from tests.support.rollout_simulation import Scenario, either

TEXT: Final = (Path(__file__).parents[2] / "docs/analysis.md").read_text()
ROWS: Final = dict(re.findall(r"^\| (.+) \| \d+ \| ([\d.]+%) \|$", TEXT, re.MULTILINE))


class Rate(NamedTuple):
    scenario: Scenario
    simulations: int
    least: float
    most: float


RATES: Final = {
    "no change, sigma 0.2, rho 0.5": Rate(Scenario(), 1000, 0, 0.01),
    "no change, sigma 0.25, rho 0.7": Rate(
        Scenario(noise=Noise(0.25, 0.7), most=400), 300, 0, 0.01
    ),
    "no change, five series": Rate(Scenario((1.0,) * 5), 100, 0, 0.01),
    "no change, two modes with a ratio of 3": Rate(Scenario(slow=either(3.0)), 300, 0, 0.01),
    "no change, 2% stalls of 100 times in the new revision": Rate(
        Scenario(stalls=0.02), 300, 0, 0.01
    ),
    "1.3 times slower, sigma 0.15, rho 0.5": Rate(
        Scenario((1.3,), Noise(0.15), min_samples=200), 200, 0.95, 1
    ),
    "1.3 times slower, sigma 0.2, rho 0.5": Rate(Scenario((1.3,), min_samples=200), 200, 0.95, 1),
    "1.3 times slower, sigma 0.2, rho 0.7": Rate(
        Scenario((1.3,), Noise(rho=0.7), min_samples=200), 200, 0.85, 1
    ),
    "1.3 times slower, sigma 0.25, rho 0.7, `minSamples: 400`": Rate(
        Scenario((1.3,), Noise(0.25, 0.7), min_samples=400, most=400), 100, 0.9, 1
    ),
    "1.3 times slower, sigma 0.2, rho 0.5, `minSamples: 100`": Rate(
        Scenario((1.3,), most=100), 200, 0.6, 1
    ),
    "1.5 times slower, sigma 0.2, rho 0.7, `minSamples: 100`": Rate(
        Scenario((1.5,), Noise(rho=0.7), most=100), 200, 0.9, 1
    ),
    "one of five series 1.5 times slower": Rate(
        Scenario((1.0, 1.0, 1.5, 1.0, 1.0), min_samples=200), 50, 0.95, 1
    ),
    "2 times slower, half of `minSamples`": Rate(
        Scenario((2.0,), min_samples=200, most=100), 100, 0.99, 1
    ),
    "300 times slower, 20 measurements": Rate(
        Scenario((300.0,), min_samples=200, most=20), 100, 0.99, 1
    ),
}


def test_the_page_has_every_rate() -> None:
    assert ROWS.keys() == RATES.keys()


@pytest.mark.parametrize("name", RATES)
def test_rollouts_fail_as_often_as_the_page_says(name: str) -> None:
    scenario, simulations, least, most = RATES[name]
    failed = scenario.count_failed(simulations)
    assert least <= failed <= most
    assert f"| {name} | {simulations} | {failed:.1%} |" in TEXT
