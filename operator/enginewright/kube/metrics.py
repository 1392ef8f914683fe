"""Metrics of our requests, under client-go's names so that existing dashboards work."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

FAILED: Final = "<error>"  # client-go's code for a request without a response


class RestMetrics:
    """Counts and times requests; each attempt is one request."""

    def __init__(self, registry: CollectorRegistry, client: str = "rest_client") -> None:
        self.requests = Counter(
            f"{client}_requests",
            "Requests to the API server, by method and status code; <error>: no response. Watches are not counted.",
            ("method", "code"),
            registry=registry,
        )
        self.duration = Histogram(
            f"{client}_request_duration_seconds",
            "Time until the API server's response was read, by method.",
            ("verb",),
            registry=registry,
            buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60),
        )
