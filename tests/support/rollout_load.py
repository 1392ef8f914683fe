"""Measurements of simulated pods, with the noise of real servers.

Time in the model is lognormal with autocorrelation, with heavy-tailed outliers, and load that slows
all pods of a node pool for some seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from random import Random
from typing import Final, Literal

from enginewright_contract.measurements import WINDOW, WINDOWS, LatencySeries, Measurements

START: Final = 1_800_000_000.0  # Unix time


@dataclass(frozen=True)
class Noise:
    """Of the logarithm of one measurement."""

    sigma: float = 0.2
    rho: float = 0.5  # lag-1 autocorrelation
    outliers: float = 0.05  # share
    alpha: float = 1.5  # Pareto's; outliers take 2 to 20 times as long
    swing: float = 1.5  # common load
    swing_seconds: float = 5.0
    swing_share: float = 0.3  # of the time


def seed_random(seed: int) -> Random:
    """Return reproducible noise."""
    return Random(seed)  # noqa: S311 - not for secrets


@dataclass(frozen=True)
class Load:
    """Load of both revisions, as what it multiplies in each interval; the intervals recur."""

    factors: tuple[float, ...]
    noise: Noise

    @classmethod
    def of(cls, random: Random, noise: Noise) -> "Load":
        """Return the load of 200 intervals."""
        swings = (random.random() < noise.swing_share for _ in range(200))
        return cls(tuple(noise.swing if swing else 1.0 for swing in swings), noise)


def windows(
    random: Random,
    count: int,
    load: Load,
    *,
    seconds: float = 0.01,
    interval: float = 1.0,
    stalls: float = 0.0,
    slow: Callable[[Random], float] | None = None,
) -> list[tuple[float, float]]:
    """Return the medians of `count` measurements, one every `interval` seconds.

    `stalls` is the share of measurements that take 100 times as long; `slow` multiplies each.
    """
    noise, factors = load.noise, load.factors
    measurements = []
    time = random.random() * interval * WINDOW
    level = random.gauss(0, noise.sigma)
    step = noise.sigma * sqrt(1 - noise.rho**2)
    for _ in range(count // WINDOW):
        values = []
        for _ in range(WINDOW):
            time += interval
            level = noise.rho * level + random.gauss(0, step)
            value = seconds * exp(level) * factors[int(time / noise.swing_seconds) % len(factors)]
            if slow:
                value *= slow(random)
            extreme = random.random()
            if extreme < noise.outliers:
                value *= min(2 * random.paretovariate(noise.alpha), 20)
            elif extreme > 1 - stalls:
                value *= 100
            values.append(value)
        values.sort()
        middle = (values[WINDOW // 2 - 1] + values[WINDOW // 2]) / 2
        measurements.append((START + time, middle))
    return measurements


def series(
    measurements: Sequence[tuple[float, float]],
    name: str = "1000",
    source: Literal["requests", "golden"] = "requests",
) -> LatencySeries:
    """Return windows as the sidecar reports them."""
    return LatencySeries.model_construct(
        source=source,
        name=name,
        count=WINDOW * len(measurements),
        windows=tuple(measurements[-WINDOWS:]),
    )


def pod(*latencies: LatencySeries, since: float = START) -> Measurements:
    """Return a pod's measurements; it has answered the requests that it has measured."""
    requests = sum(latency.count for latency in latencies if latency.source == "requests")
    return Measurements(
        model="m",
        revision="r",
        since=since,
        responses={"200": requests} if requests else {},
        latencies=latencies,
    )
