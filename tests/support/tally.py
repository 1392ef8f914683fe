"""What clients know of the requests that a server counts: each once, under the status of its answer. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

_REQUESTS = "enginewright_requests_total"
_COPIES = "enginewright_shadow_requests_total"
_AS_MANY = (  # as requests
    "enginewright_request_duration_seconds_count",
    "enginewright_request_bytes_count",
    "enginewright_response_bytes_count",
)
_RUNS = ("enginewright_batch_size_count", "enginewright_batch_size_sum")


@dataclass(frozen=True)
class Counts:
    """What a server says."""

    requests: Counter[int]  # by status
    copies: Counter[int]
    as_many: dict[str, int]  # as requests, by the name of the figure
    runs: int = 0  # of the model
    requests_in_runs: int = 0

    @classmethod
    def read(cls, exposition: str, statistics: Mapping[str, Any]) -> Self:
        """Read metrics, and the statistics of the model."""
        series = {_REQUESTS: Counter[int](), _COPIES: Counter[int]()}
        figures = dict.fromkeys((*_AS_MANY, *_RUNS), 0)
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                if sample.name in series:
                    series[sample.name][int(sample.labels["code"])] += int(sample.value)
                elif sample.name in figures:
                    figures[sample.name] += int(sample.value)
        ended = statistics["model_stats"][0]["inference_stats"]
        as_many = {name: figures[name] for name in _AS_MANY}
        as_many["statistics"] = ended["success"]["count"] + ended["fail"]["count"]
        runs, requests = (figures[name] for name in _RUNS)
        return cls(series[_REQUESTS], series[_COPIES], as_many, runs, requests)


@dataclass
class Tally:
    """What clients sent."""

    answered: Counter[int] = field(default_factory=Counter)  # by status
    left: int = 0  # whole requests that were sent without waiting for an answer: the server has some status for each
    unsure: int = 0  # that the server may have counted or not, such as parts of requests
    copies: Counter[int] = field(default_factory=Counter)  # answered, by status
    unsure_copies: int = 0
    wrong: list[str] = field(default_factory=list)  # answers that were not the request's own

    def add(self, other: "Tally") -> None:
        """Add what other clients sent."""
        self.answered += other.answered
        self.left += other.left
        self.unsure += other.unsure
        self.copies += other.copies
        self.unsure_copies += other.unsure_copies
        self.wrong += other.wrong

    def write(self) -> dict[str, Any]:
        """Return a document for `read`."""
        return dict(vars(self))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Read what another process wrote as JSON."""
        counters = {
            name: Counter({int(status): count for status, count in document[name].items()})
            for name in ("answered", "copies")
        }
        return cls(**{**document, **counters})

    def list_miscounts(self, before: Counts, after: Counts) -> list[str]:
        """Return how a server that has no request any more differs, with its counts before and after."""
        requests = _subtract(after.requests, before.requests)
        total = requests.total()
        wrong = _compare("requests", self.answered, self.left, self.unsure, requests)
        copies = _subtract(after.copies, before.copies)
        wrong += _compare("copies", self.copies, 0, self.unsure_copies, copies)
        for name, count in after.as_many.items():
            if (counted := count - before.as_many[name]) != total:
                wrong.append(f"{name}: {counted}, of {total} requests")
        return wrong


def _subtract(after: Counter[int], before: Counter[int]) -> Counter[int]:
    """Return what was counted meanwhile."""
    difference = Counter(after)
    difference.subtract(before)
    return difference


def _compare(
    what: str, answered: Counter[int], left: int, unsure: int, counted: Counter[int]
) -> list[str]:
    wrong = [
        f"{what} with status {status}: {counted[status]}, of at least {count}"
        for status, count in answered.items()
        if counted[status] < count
    ]
    least = answered.total() + left
    if not least <= counted.total() <= least + unsure:
        wrong.append(f"{what}: {counted.total()}, not {least} to {least + unsure}")
    return wrong
