"""A fallback is reported on a real cluster: metric, alert, notification, and their end."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from enginewright.manifests.labels import STORE_MAX_SIZE

from hack.samples.magika import tensor
from tests.e2e import collecting, load, stored
from tests.e2e.devices import CLASS
from tests.e2e.files import Files
from tests.e2e.harness import Namespace, cases, eventually, inference_model
from tests.e2e.monitoring import first_seen, wait_notified, wait_scraped, watching
from tests.e2e.test_fallback import MAKEFILE, twin
from tests.support.monitoring import RULES, Stack, board_queries

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ALERT = "EnginewrightCPUFallback"
NOT_READY = "EnginewrightModelNotReady"
ALLOW = {"policy": "Allow"}
# queries of the dashboards that may have no data here
WITHOUT_DATA = {
    "panel `Engine builds` A": "an engine may still be built, or be in the store",
    "panel `Build time` A": "likewise",
    "panel `Build time` B": "likewise",
    "panel `Failed reconciles per second` A": "none failed",
    "panel `Rollbacks` A": "none was rolled back",
    "panel `GPU memory in use` A": "there is no GPU",
    "panel `GPU utilization` A": "likewise",
}
# meanwhile monitoring starts, and a model is prepared
COLLECTED_AFTER: Final = timedelta(seconds=120)
SUDDEN: Final = "sudden-alert"
ON_STORES: Final = (
    "test_a_collection_removes_only_unused_artefacts",
    "test_a_session_that_falls_back_while_serving_alerts_within_seconds",
    "test_every_query_of_the_dashboards_returns_data",
)


@dataclass(frozen=True)
class Stores:
    """Two namespaces that are due for their first collection."""

    used: Namespace  # has a model, and a limit
    unreadable: Namespace  # has a limit that is no size


@pytest.fixture(scope="module")
def stores(new_namespace: Callable[..., Namespace], file_server: Files) -> Iterator[Stores]:
    used, unreadable = map(new_namespace, islice(collecting.names_due(COLLECTED_AFTER), 2))
    source = {"uri": file_server.url("magika.onnx")}
    used.apply(inference_model(SUDDEN, "", source=source))
    limit = {"metadata": {"annotations": {STORE_MAX_SIZE: "plenty"}}}
    unreadable.patch("namespace", unreadable.name, limit)
    unreadable.apply(collecting.claim())
    yield Stores(used, unreadable)
    # else each operator that starts later reports its limit again
    unreadable.kubectl("delete", "namespace", unreadable.name, "--wait=false")


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest, l4: Namespace) -> None:
    """Apply all models at once: no test waits for another one's models."""
    l4.apply(inference_model("alerted", "magika.onnx", on=CLASS, backends=["cuda"], fallback=ALLOW))
    if cases(request, "test_a_refused_model_is_an_alert_with_its_reason"):
        l4.apply(inference_model("refused-alert", "truncated.onnx"))
    if cases(request, "test_a_model_that_never_starts_is_one_alert_that_names_the_cause"):
        l4.apply(
            inference_model("never-starts", "magika.onnx", on=CLASS, backends=["tensorrt-rtx"])
        )
    # before monitoring starts, which takes a part of COLLECTED_AFTER
    if cases(request, *ON_STORES):
        request.getfixturevalue("stores")


@pytest.fixture(scope="module")
def watch(side_by_side: None, installed: Namespace) -> Iterator[Stack]:
    with watching(installed) as stack:
        yield stack


def test_the_operator_and_its_sidecars_are_found_by_the_shipped_pod_monitors(
    watch: Stack, installed: Namespace
) -> None:
    (operator,) = eventually(lambda: watch.query('up{job="enginewright-operator"} == 1'), 60)
    assert operator["metric"]["namespace"] == installed.name
    assert operator["metric"]["container"] == "operator"


@dataclass(frozen=True)
class Full:
    """A store above its limit, of a model that answers requests meanwhile."""

    needed: Path
    expired: Path  # unused for longer than the chart allows
    evicted: Path  # the longest unused one of the others
    kept: Path
    clients: load.Load


@pytest.fixture(scope="module", autouse=True)
def _in_time(request: pytest.FixtureRequest, side_by_side: None) -> None:
    """Fill the stores before they are collected, whichever test comes first."""
    if cases(request, *ON_STORES):
        request.getfixturevalue("full")


@pytest.fixture(scope="module")
def full(watch: Stack, stores: Stores) -> Full:
    """A store before its collection, with unused artefacts, of which its limit leaves room for one."""
    used = stores.used
    used.wait_ready(SUDDEN)
    key = used.get("im", SUDDEN)["status"]["serving"]["preparedKey"]
    needed = stored.volume(used) / "prepared" / key
    days = (collecting.UNUSED, timedelta(days=2), timedelta(days=1))
    expired, evicted, kept = collecting.abandon(needed, *days)
    limit = str(collecting.size(needed) * 5 // 2)
    used.patch("namespace", used.name, {"metadata": {"annotations": {STORE_MAX_SIZE: limit}}})
    assert collecting.jobs(used) == [], "the model is ready before the collection begins"
    body = {"inputs": [tensor(MAKEFILE)]}
    clients = load.start(used, SUDDEN, body, requests=10)
    return Full(needed, expired, evicted, kept, clients)


@pytest.fixture(scope="module")
def fallen(l4: Namespace, watch: Stack) -> Iterator[tuple[Namespace, dict[str, Any]]]:
    """The incident under Allow, the gpu image without CUDA, once the webhook has been notified."""
    l4.wait_ready("alerted", 300)
    fired = wait_notified(watch, ALERT, "firing", model="alerted")
    yield l4, fired
    l4.kubectl("delete", "im", "alerted", "--ignore-not-found")


def test_the_alert_names_model_and_reason(
    watch: Stack, fallen: tuple[Namespace, dict[str, Any]]
) -> None:
    namespace, fired = fallen
    labels = fired["labels"]
    assert (labels["namespace"], labels["model"]) == (namespace.name, "alerted")
    assert labels["kind"] == "NodeFallback"
    assert labels["reason"] == "ProviderMissing"
    # the alert may fire before the operator has polled the pod
    namespace.wait_condition("alerted", "FallbackActive", "True", "ProviderMissing", 60)
    assert labels["revision"] == namespace.get("im", "alerted")["status"]["serving"]["revision"]
    assert f"{namespace.name}/alerted" in fired["annotations"]["summary"]
    assert fired["annotations"]["remedy"]
    active = [
        alert["labels"]
        for alert in watch.alerts()
        if alert["labels"]["alertname"] == ALERT and alert["labels"]["model"] == "alerted"
    ]
    assert active == [labels], "one alert for all pods"


# fault: Reports | a refused model raises no alert | alert EnginewrightModelNotReady with the
#   reason | 1 min
def test_a_refused_model_is_an_alert_with_its_reason(watch: Stack, namespace: Namespace) -> None:
    namespace.wait_condition("refused-alert", "Stalled", "True", "InvalidModel", 180)
    fired = wait_notified(watch, NOT_READY, "firing", model="refused-alert", seconds=120)
    assert fired["labels"]["reason"] == "InvalidModel"
    assert fired["labels"]["namespace"] == namespace.name
    namespace.kubectl("delete", "im", "refused-alert")
    wait_notified(watch, NOT_READY, "resolved", model="refused-alert", seconds=120)


# fault: Store | a limit of a store cannot be read | nothing is removed; Event CollectionBlocked, alert
#   EnginewrightStoreNotCollected | 3 h after the first collection was due
# event: Jobs | a store is larger than its limit, and models that use it answer requests | all pods, without a failed
#   request; of what nothing needs the longest unused is removed | `enginewright_store_bytes` and its limit
def test_a_collection_removes_only_unused_artefacts(
    watch: Stack, stores: Stores, full: Full
) -> None:
    used, unreadable = stores.used, stores.unreadable
    result = collecting.wait_collected(used, 240)
    assert (result.artifacts, result.needed_artifacts, result.removed_artifacts) == (4, 1, 2)
    assert result.bytes_after == result.removed_bytes == 2 * result.needed_bytes > 0
    assert not full.expired.exists()
    assert not full.evicted.exists()
    assert stored.is_intact(full.kept)
    assert stored.is_intact(full.needed), "it was unused for the longest time, but serves"
    before = full.clients.counts()
    eventually(lambda: full.clients.counts().sent > before.sent, 60, "further requests")
    last = full.clients.stop()
    assert last.failed == 0, last.failures
    used.wait_ready(SUDDEN, 60)
    in_used = f'{{model_namespace="{used.name}"}}'

    def read_metric(metric: str) -> list[str]:
        return [entry["value"][1] for entry in watch.query(f"enginewright_store_{metric}{in_used}")]

    def have_sizes() -> bool:
        sizes = [str(result.bytes_after)], [str(result.needed_bytes)]
        return (read_metric("bytes"), read_metric("needed_bytes")) == sizes

    eventually(have_sizes, 60, "the sizes")
    assert read_metric("artifacts") == ["2"]
    removed = 'enginewright_store_collected_total{kind="artifact"} == 2'
    eventually(lambda: watch.query(removed), 60, removed)

    fields = "reason=CollectionBlocked"
    (event,) = eventually(lambda: unreadable.items("events", fields=fields), 60, fields)
    assert event["involvedObject"]["kind"] == "PersistentVolumeClaim"
    assert "'plenty'" in event["message"]
    assert collecting.jobs(unreadable) == []
    trouble = f'enginewright_store_collection_trouble{{model_namespace="{unreadable.name}"}}'
    (series,) = eventually(lambda: watch.query(f"{trouble} == 1"), 60, trouble)
    assert series["metric"]["reason"] == "CollectionBlocked"


def test_a_session_that_falls_back_while_serving_alerts_within_seconds(
    watch: Stack, stores: Stores
) -> None:
    namespace, model = stores.used, SUDDEN
    namespace.wait_ready(model)
    namespace.apply(twin(namespace, model))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/twin", "--timeout=120s")
    wait_scraped(watch, namespace.name, model)
    namespace.kubectl("exec", "twin", "--container", "server", "--", "touch", "/tmp/fall")
    began = time.time()
    fired = wait_notified(watch, ALERT, "firing", model=model)
    assert fired["labels"]["reason"] == "SessionReplaced"
    metric = first_seen(watch, f'enginewright_fallback_active{{model="{model}"}} == 1')
    alert = datetime.fromisoformat(fired["startsAt"]).timestamp()
    print(
        f"fallback begun to metric in Prometheus {metric - began:.1f} s,"
        f" to alert {alert - began:.1f} s, to the webhook {fired['receivedAt'] - began:.1f} s"
    )
    namespace.kubectl("delete", "pod", "twin", "--grace-period=0", "--force")
    wait_notified(watch, ALERT, "resolved", model=model, seconds=90)


def test_every_query_of_the_dashboards_returns_data(
    watch: Stack, fallen: tuple[Namespace, dict[str, Any]]
) -> None:
    namespace, _ = fallen
    chosen = {"rate_interval": "30s", "namespace": namespace.name, "model": "alerted"}

    def empty(board: str) -> list[str]:
        queries = board_queries(board)
        return [query.place for query in queries if not watch.query(query.fill_in(**chosen))]

    missing: list[str] = []

    def is_complete() -> bool:
        # rates need two samples and continuous requests, the latency ratio needs a baseline and probes
        namespace.infer("alerted", tensor(MAKEFILE))
        places = {*empty("model.json"), *empty("fleet.json")}
        missing[:] = places - WITHOUT_DATA.keys()
        return not missing

    try:
        eventually(is_complete, 120, "data for every query")
    except AssertionError as error:
        raise AssertionError(f"no data for {missing}") from error


# fault: Reports | a model that never starts raises alerts that do not name the cause
def test_a_model_that_never_starts_is_one_alert_that_names_the_cause(
    watch: Stack, l4: Namespace
) -> None:
    """Its engine is built ahead of time, and the serving node has no driver."""
    model = "never-starts"
    l4.wait_condition(model, "PlacementVerified", "False", "DriverMissing", 300)
    # the sidecar of a pod whose server never answers
    check = f'enginewright_check{{namespace="{l4.name}", model="{model}", check="server"}}'
    eventually(lambda: watch.query(check), 120, check)
    query = f'enginewright_model_not_ready{{model_namespace="{l4.name}", model="{model}"}}'
    eventually(
        lambda: [entry["metric"]["reason"] for entry in watch.query(query)] == ["DriverMissing"], 60
    )
    # the shipped expressions without the minutes for which a model may not be ready
    firing = [
        (rule["alert"], entry["metric"].get("reason"))
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        for entry in watch.query(re.sub(r":30s\]\) >= \d+", ":30s]) >= 1", rule["expr"]))
        if entry["metric"].get("model") == model
    ]
    assert firing == [(NOT_READY, "DriverMissing")]
    l4.kubectl("delete", "im", model)


def test_a_mended_model_ends_the_alert(
    watch: Stack, fallen: tuple[Namespace, dict[str, Any]]
) -> None:
    namespace, fired = fallen
    alerts = [
        entry
        for entry in watch.list_notifications(ALERT)
        if entry["labels"].get("model") == "alerted"
    ]
    assert "resolved" not in {alert["status"] for alert in alerts}
    began = time.time()
    namespace.apply(inference_model("alerted", "magika.onnx", backends=["cpu"]))
    resolved = wait_notified(watch, ALERT, "resolved", model="alerted", seconds=240)
    assert resolved["labels"] == fired["labels"]
    ended = datetime.fromisoformat(resolved["endsAt"]).timestamp()
    print(
        f"spec mended to alert ended {ended - began:.1f} s,"
        f" to the webhook {resolved['receivedAt'] - began:.1f} s"
    )
    namespace.wait_ready("alerted")
    assert not [alert for alert in watch.alerts() if alert["labels"].get("model") == "alerted"]
