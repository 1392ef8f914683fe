"""What a run measured, bench/results/scale.json, and what it should have been."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Outcome = Literal["pass", "miss", "not measured"]
KNOWN: Final = "engine in the store"
NEW: Final = "prepared and built"
_THOUSAND: Final = 1000
_FEWEST: Final = 100  # models of a run from which growth is counted
_MOST: Final = 5000


@dataclass(frozen=True)
class Run:
    """A fleet of models, applied at once to an empty cluster."""

    kind: str  # KNOWN or NEW
    models: int
    rate: float  # models a second, from the first apply until all were Ready
    p50: float  # seconds from apply to Ready
    p99: float
    requests: dict[str, float]  # by verb, for each model, Events and Leases included
    passes: float  # of all controllers, for each model
    cpu_ms: float  # for each model
    rss_mib: float  # once all are Ready
    peak_mib: float  # since the start
    idle_cpu: float  # cores, while nothing changes
    idle_writes: int
    restart_seconds: float  # until everything has been looked at again
    restart_cpu_ms: float  # for each model, the start of the process included
    restart_writes: int
    restart_peak_mib: float  # listing included

    @property
    def requests_each(self) -> float:
        """Return the requests for each model."""
        return sum(self.requests.values())


@dataclass(frozen=True)
class Results:
    """All runs."""

    about: dict[str, Any]  # date, processor, versions
    runs: tuple[Run, ...]

    def find(self, kind: str, models: int) -> Run | None:
        """Return a run, if it was made."""
        return next((run for run in self.runs if (run.kind, run.models) == (kind, models)), None)

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def read(document: dict[str, Any]) -> Results:
    """Return the results in a document."""
    return Results(document["about"], tuple(Run(**run) for run in document["runs"]))


@dataclass(frozen=True)
class Target:
    """A bound on one figure of one run."""

    what: str
    bound: float
    value: float | None
    at_least: bool = False

    @property
    def outcome(self) -> Outcome:
        """Return whether the bound is kept."""
        if self.value is None:
            return "not measured"
        kept = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "pass" if kept else "miss"


def list_targets(results: Results) -> tuple[Target, ...]:
    """Return what the control plane should cost at most.

    The rate is three times that of KServe's controller on the same cluster with simulated pods: 300
    InferenceServices were Ready after 72 s, with 45 requests and 42 ms of processor time each.
    """
    thousand = results.find(KNOWN, _THOUSAND)
    fewest, most = results.find(KNOWN, _FEWEST), results.find(KNOWN, _MOST)
    growth = most.cpu_ms / fewest.cpu_ms if most and fewest else None
    return (
        Target("models/s at 1,000", 12.5, thousand.rate if thousand else None, at_least=True),
        Target("requests for each of 1,000", 14, thousand.requests_each if thousand else None),
        Target("processor time for each of 1,000, ms", 42, thousand.cpu_ms if thousand else None),
        Target("the same at 5,000 over that at 100", 1.2, growth),
        Target(
            "memory at 5,000, MiB, listing included", 400, most.restart_peak_mib if most else None
        ),
        Target("seconds of a restart at 5,000", 20, most.restart_seconds if most else None),
        Target("writes of a restart", 0, _find_most(results, "restart_writes")),
        Target("writes while nothing changes", 0, _find_most(results, "idle_writes")),
    )


def _find_most(results: Results, field: str) -> float | None:
    return max((float(getattr(run, field)) for run in results.runs), default=None)
