"""What serving may cost, as ratios within one run, and whether it does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from bench.serving.exchange import BINARY, GRPC, JSON, OWN_JSON
from bench.serving.results import Results
from bench.serving.servers import (
    FLOOR,
    FURNACE,
    OURS,
    OURS_SINGLE,
    SERVERS,
    TRITON,
    TRITON_BATCHING,
)

MANY: Final = 32  # connections
Outcome = Literal["pass", "miss", "not measured"]
_OVER_HTTP: Final = (BINARY, JSON, OWN_JSON)


@dataclass(frozen=True)
class Target:
    """A bound on a ratio or an amount; `value` returns it if all of it was measured."""

    model: str
    what: str
    bound: float
    at_least: bool
    value: Callable[[Results], float | None]
    unit: str = "x"

    @property
    def bound_text(self) -> str:
        """Its bound as text."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"

    def outcome(self, results: Results) -> tuple[float | None, Outcome]:
        """Return the value and whether it keeps the bound."""
        value = self.value(results)
        if value is None:
            return None, "not measured"
        kept = value >= self.bound if self.at_least else value <= self.bound
        return value, "pass" if kept else "miss"


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _rate(results: Results, model: str, server: str, transport: str) -> float | None:
    figures = results.find(model, server, transport, MANY)
    return None if figures is None else figures.per_second


def _most(rates: Iterable[float | None]) -> float | None:
    return max((rate for rate in rates if rate is not None), default=None)


def _rate_over(model: str, transport: str, *others: str) -> Callable[[Results], float | None]:
    """Compare our rate at 32 connections with the quickest of others over the same transport."""

    def value(results: Results) -> float | None:
        rates = (_rate(results, model, other, transport) for other in others)
        return _ratio(_rate(results, model, OURS, transport), _most(rates))

    return value


def _rate_over_python(results: Results) -> float | None:
    rates = (
        _rate(results, "tiny", server.name, transport)
        for server in SERVERS
        if server.is_python_peer
        for transport in _OVER_HTTP
    )
    return _ratio(_rate(results, "tiny", OURS, BINARY), _most(rates))


def _cpu_over_bare(model: str) -> Callable[[Results], float | None]:
    def value(results: Results) -> float | None:
        figures, bare = results.find(model, OURS, BINARY, MANY), results.bare.get(model)
        return None if figures is None or bare is None else figures.cpu_us / bare.one_us

    return value


def _median_over(model: str, part: str, whole: str) -> Callable[[Results], float | None]:
    """Compare the latencies of two servers for a lone client."""

    def value(results: Results) -> float | None:
        first, second = (results.find(model, name, BINARY, 1) for name in (part, whole))
        return None if first is None or second is None else first.p50_us / second.p50_us

    return value


def _rate_of_aged(model: str) -> Callable[[Results], float | None]:
    def value(results: Results) -> float | None:
        aging = results.aging.get(model)
        return None if aging is None else aging.rate_ratio

    return value


def _median_of_aged(model: str) -> Callable[[Results], float | None]:
    def value(results: Results) -> float | None:
        aging = results.aging.get(model)
        return None if aging is None else aging.p50_ratio

    return value


def _rate_over_bare(results: Results) -> float | None:
    rate, bare = _rate(results, "real", OURS, BINARY), results.bare.get("real")
    return None if rate is None or bare is None else rate * bare.one_us / 1e6


def _tail(results: Results) -> float | None:
    figures = results.find("real", OURS, BINARY, MANY)
    return None if figures is None else figures.p99_us / figures.p50_us


def _memory(results: Results) -> float | None:
    bare = results.bare.get("tiny")
    for row in results.of_model("tiny"):
        if row.server == OURS and row.memory_mb and bare is not None:
            return row.memory_mb - bare.model_mb
    return None


TARGETS: Final = (
    Target("tiny", "requests/s at 32, over Triton", 3, True, _rate_over("tiny", BINARY, TRITON)),
    Target(
        "tiny",
        "requests/s at 32, over Triton with dynamic batching",
        2,
        True,
        _rate_over("tiny", BINARY, TRITON_BATCHING),
    ),
    Target("tiny", "requests/s at 32, over the quickest Python server", 8, True, _rate_over_python),
    Target("tiny", "CPU per request at 32, over `session.run`", 9, False, _cpu_over_bare("tiny")),
    Target("tiny", "p50 at 1, over Triton", 0.7, False, _median_over("tiny", OURS, TRITON)),
    Target("tiny", "requests/s at 32, over furnace", 2, True, _rate_over("tiny", BINARY, FURNACE)),
    Target("tiny", "p50 at 1, over furnace", 1, False, _median_over("tiny", OURS, FURNACE)),
    Target(
        "tiny", "requests/s at 32, over the floor", 0.5, True, _rate_over("tiny", BINARY, FLOOR)
    ),
    Target("tiny", "requests/s at 32, aged, over fresh", 0.95, True, _rate_of_aged("tiny")),
    Target(
        "tiny", "gRPC requests/s at 32, over Triton", 1.3, True, _rate_over("tiny", GRPC, TRITON)
    ),
    Target(
        "tiny",
        "gRPC requests/s at 32, over Triton with dynamic batching",
        1,
        True,
        _rate_over("tiny", GRPC, TRITON_BATCHING),
    ),
    Target(
        "image",
        "requests/s at 32, over Triton, batching or not",
        2,
        True,
        _rate_over("image", BINARY, TRITON, TRITON_BATCHING),
    ),
    Target(
        "image",
        "gRPC requests/s at 32, over Triton, batching or not",
        1.5,
        True,
        _rate_over("image", GRPC, TRITON, TRITON_BATCHING),
    ),
    Target("image", "CPU per request at 32, over `session.run`", 9, False, _cpu_over_bare("image")),
    Target(
        "real", "CPU per request at 32, over `session.run`", 1.05, False, _cpu_over_bare("real")
    ),
    Target("real", "requests/s at 32, over those of `session.run`", 0.97, True, _rate_over_bare),
    Target("real", "p99 at 32, over its p50", 1.5, False, _tail),
    Target(
        "batching",
        "requests/s at 32, over those without batching",
        2,
        True,
        _rate_over("batching", BINARY, OURS_SINGLE),
    ),
    Target("batching", "requests/s at 32, aged, over fresh", 0.95, True, _rate_of_aged("batching")),
    Target(
        "batching",
        "p50 at 1, aged, over fresh",
        1.1,
        False,
        _median_of_aged("batching"),
    ),
    Target("tiny", "memory, model excluded", 110, False, _memory, "MB"),
)
