"""Tail of Student's t distribution, which the standard library lacks."""

from math import exp, lgamma, log, log1p
from typing import Final

_PRECISION: Final = 1e-12
_TINY: Final = 1e-300  # replaces denominators of 0


def upper_tail(t: float, degrees: float) -> float:
    """Return P(T > t) for `degrees` of freedom, a positive number that need not be whole."""
    half = 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))
    return half if t >= 0 else 1 - half


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function: NIST DLMF 8.17."""
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction of the complement converges faster
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front / _evaluate_fraction(a, b, x)


def _evaluate_fraction(a: float, b: float, x: float) -> float:
    """Return 1 + d1 / (1 + d2 / (1 + ...)), NIST DLMF 8.17.22, by Lentz's method."""
    value = c = 1.0
    d = 0.0
    for index in range(1, 1000):
        m = index // 2
        if index % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value
