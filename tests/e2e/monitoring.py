"""The small Prometheus and Alertmanager in the test cluster, installed by hack/monitoring/install."""

import contextlib
from collections.abc import Iterator
from typing import Any

from hack.monitoring.stack import PORTS
from tests.e2e.harness import CLUSTER_NAME, REPOSITORY, Namespace, eventually, run
from tests.support.monitoring import Stack

HOME = "enginewright-monitoring"


@contextlib.contextmanager
def watching(installed: Namespace) -> Iterator[Stack]:
    """Install it and forward its three Services."""
    run([str(REPOSITORY / "hack/monitoring/install"), CLUSTER_NAME], timeout=400)
    home = Namespace(HOME, installed.kubeconfig)
    with contextlib.ExitStack() as forwards:
        urls = {
            name: forwards.enter_context(home.forward(f"service/{name}", port))
            for name, port in PORTS.items()
        }
        yield Stack(**urls)


def wait_scraped(stack: Stack, namespace: str, model: str) -> None:
    """Wait until Prometheus has the model's metrics."""
    series = f'enginewright_info{{namespace="{namespace}", model="{model}"}}'
    eventually(lambda: stack.query(series), 120, series)


def wait_notified(
    stack: Stack, alert: str, status: str, *, model: str, seconds: float = 60
) -> dict[str, Any]:
    """Wait until the webhook is notified of an alert's status for a model; return the last notification."""

    def notifications() -> list[dict[str, Any]]:
        return [
            entry
            for entry in stack.list_notifications(alert)
            if entry["status"] == status and entry["labels"].get("model") == model
        ]

    return eventually(notifications, seconds, f"{alert} for {model}, {status}", interval=0.2)[-1]


def first_seen(stack: Stack, series: str) -> float:
    """Return the Unix time of the first sample of `series` in the last ten minutes."""
    (sample,) = stack.query(f"min(min_over_time(timestamp({series})[10m:1s]))")
    return float(sample["value"][1])
