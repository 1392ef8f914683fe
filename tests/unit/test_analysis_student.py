"""Tail of Student's t against published quantiles and closed forms."""

from math import atan, pi, sqrt
from statistics import NormalDist

import pytest
from enginewright.analysis.student import upper_tail


@pytest.mark.parametrize(
    ("t", "degrees", "tail"),  # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2
    [
        (6.314, 1, 0.05),
        (2.015, 5, 0.05),
        (3.365, 5, 0.01),
        (2.764, 10, 0.01),
        (4.144, 10, 0.001),
        (3.385, 30, 0.001),
    ],
)
def test_published_quantiles(t: float, degrees: float, tail: float) -> None:
    assert upper_tail(t, degrees) == pytest.approx(tail, rel=2e-3)
    assert upper_tail(-t, degrees) == pytest.approx(1 - tail, rel=2e-3)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 4.0, 30.0, 1e4])
def test_closed_forms(t: float) -> None:
    assert upper_tail(t, 1) == pytest.approx(0.5 - atan(t) / pi, abs=1e-12)
    assert upper_tail(t, 2) == pytest.approx(0.5 - t / (2 * sqrt(2 + t * t)), abs=1e-12)


def test_many_degrees_are_normal() -> None:
    assert upper_tail(2.0, 1e7) == pytest.approx(1 - NormalDist().cdf(2.0), rel=1e-5)
