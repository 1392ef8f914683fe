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

from hack.samples.magika import features
from tests.e2e import collecting, load, stored
from tests.e2e.devices import CLASS
from tests.e2e.files import Files
from tests.e2e.harness import Namespace, cases, eventually, http_json, inference_model
from tests.e2e.monitoring import first_seen, wait_notified, wait_scraped, watching
from tests.e2e.test_fallback import MAKEFILE, _twin
from tests.support.monitoring import RULES, Stack, board_queries

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ALERT = "EnginewrightCPUFallback"
NOT_READY = "EnginewrightModelNotReady"
ALLOW = {"policy": "Allow"}
# Queries of the dashboards about what need not have happened before this test, or is not here.
NOT_IN_THIS_SCENE = {
    "panel `Engine builds` A": "an engine may still be built, or lie in the store",
    "panel `Build time` A": "likewise",
    "panel `Build time` B": "likewise",
    "panel `Failed reconciles per second` A": "none failed",
    "panel `Rollbacks` A": "none was rolled back",
    "panel `GPU memory in use` A": "there is no GPU",
    "panel `GPU utilisation` A": "likewise",
}


# until the stores are collected: monitoring starts meanwhile, and a model is prepared
COLLECTED_AFTER: Final = timedelta(seconds=120)
SUDDEN: Final = "sudden-alert"
ON_STORES: Final = (
    "test_a_collection_removes_what_nothing_needs_and_nothing_else",
    "test_a_session_that_falls_back_while_serving_alerts_within_seconds",
    "test_every_query_of_the_dashboards_returns_data",
)
REQUEST: Final[dict[str, Any]] = {
    "inputs": [
        {"name": "bytes", "shape": [1, 2048], "datatype": "INT32", "data": features(MAKEFILE)}
    ]
}


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
    # or each operator that starts later reports its limit again
    unreadable.kubectl("delete", "namespace", unreadable.name, "--wait=false")


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest, l4: Namespace) -> None:
    """All models at once, while monitoring starts: tests do not wait for each other's models."""
    l4.apply(inference_model("alerted", "magika.onnx", on=CLASS, backends=["cuda"], fallback=ALLOW))
    if cases(request, "test_a_refused_model_is_an_alert_with_its_reason"):
        l4.apply(inference_model("refused-alert", "truncated.onnx"))
    if cases(request, "test_a_model_that_never_starts_is_one_alert_that_names_the_cause"):
        l4.apply(
            inference_model("never-starts", "magika.onnx", on=CLASS, backends=["tensorrt-rtx"])
        )
    if cases(
        request, *ON_STORES
    ):  # before monitoring starts, which takes a part of COLLECTED_AFTER
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
    old: Path  # unused for longer than the chart allows
    older: (
        Path  # unused for a shorter time, but for the longest of what the limit leaves no room for
    )
    newer: Path
    clients: load.Load


@pytest.fixture(scope="module", autouse=True)
def _in_time(request: pytest.FixtureRequest, side_by_side: None) -> None:
    """Fill the stores before they are collected, whichever test comes first."""
    if cases(request, *ON_STORES):
        request.getfixturevalue("full")


@pytest.fixture(scope="module")
def full(watch: Stack, stores: Stores) -> Full:
    """Artefacts that nothing needs, in a store before it is collected; there is room for one of them."""
    used = stores.used
    used.wait_ready(SUDDEN)
    key = used.get("im", SUDDEN)["status"]["serving"]["preparedKey"]
    needed = stored.volume(used) / "prepared" / key
    days = (collecting.UNUSED, timedelta(days=2), timedelta(days=1))
    old, older, newer = collecting.abandon(needed, *days)
    limit = str(collecting.size(needed) * 5 // 2)
    used.patch("namespace", used.name, {"metadata": {"annotations": {STORE_MAX_SIZE: limit}}})
    assert collecting.jobs(used) == [], "the model is ready before the collection begins"
    return Full(needed, old, older, newer, load.start(used, SUDDEN, REQUEST, requests=10))


@pytest.fixture(scope="module")
def fallen(l4: Namespace, watch: Stack) -> Iterator[tuple[Namespace, dict[str, Any]]]:
    """The incident under Allow: the gpu image without CUDA. The webhook has been notified."""
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
    # the alert may be there before the operator has asked the pod
    namespace.wait_condition("alerted", "FallbackActive", "True", "ProviderMissing", 60)
    assert labels["revision"] == namespace.get("im", "alerted")["status"]["serving"]["revision"]
    assert f"{namespace.name}/alerted" in fired["annotations"]["summary"]
    assert fired["annotations"]["remedy"]
    active = [
        alert["labels"]
        for alert in watch.alerts()
        if alert["labels"]["alertname"] == ALERT and alert["labels"]["model"] == "alerted"
    ]
    assert active == [labels], "one alert, whatever the number of pods"


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
def test_a_collection_removes_what_nothing_needs_and_nothing_else(
    watch: Stack, stores: Stores, full: Full
) -> None:
    used, unreadable = stores.used, stores.unreadable
    found = collecting.collected(used, 240)
    assert (found.artifacts, found.needed_artifacts, found.removed_artifacts) == (4, 1, 2)
    assert found.bytes_after == found.removed_bytes == 2 * found.needed_bytes > 0
    assert not full.old.exists()
    assert not full.older.exists()
    assert stored.is_intact(full.newer)
    assert stored.is_intact(full.needed), "it was unused for the longest time, but serves"
    answered = full.clients.counts()
    eventually(lambda: full.clients.counts().sent > answered.sent, 60, "further requests")
    last = full.clients.stop()
    assert last.failed == 0, last.failures
    used.wait_ready(SUDDEN, 60)
    in_used = f'{{model_namespace="{used.name}"}}'

    def measured(metric: str) -> list[str]:
        return [each["value"][1] for each in watch.query(f"enginewright_store_{metric}{in_used}")]

    def both() -> bool:
        sizes = [str(found.bytes_after)], [str(found.needed_bytes)]
        return (measured("bytes"), measured("needed_bytes")) == sizes

    eventually(both, 60, "the sizes")
    assert measured("artifacts") == ["2"]
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
    """The pod has served without fallback before, so the time of the fallback is known."""
    namespace, model = stores.used, SUDDEN
    namespace.wait_ready(model)
    namespace.apply(_twin(namespace, model))
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
        return [
            query.place for query in board_queries(board) if not watch.query(query.filled(**chosen))
        ]

    missing: list[str] = []

    def all_there() -> bool:
        # rates need two samples and requests all the time, the latency ratio a baseline and probes
        _send_requests(namespace, "alerted", 5)
        found = [*empty("model.json"), *empty("fleet.json")]
        missing[:] = [each for each in found if each not in NOT_IN_THIS_SCENE]
        return not missing

    try:
        eventually(all_there, 120, "data for every query")
    except AssertionError as error:
        raise AssertionError(f"no data for {missing}") from error


# fault: Reports | a model that never starts raises alerts that do not name the cause
def test_a_model_that_never_starts_is_one_alert_that_names_the_cause(
    watch: Stack, l4: Namespace
) -> None:
    """Its engine is built ahead of time, and the serving node has no driver."""
    model = "never-starts"
    l4.wait_condition(model, "PlacementVerified", "False", "DriverMissing", 300)
    wait_scraped_check(watch, l4.name, model)
    query = f'enginewright_model_not_ready{{model_namespace="{l4.name}", model="{model}"}}'
    eventually(
        lambda: [each["metric"]["reason"] for each in watch.query(query)] == ["DriverMissing"], 60
    )
    # the shipped expressions, their waiting left out: what would fire is one alert, with the cause
    firing = [
        (alert["alert"], each["metric"].get("reason"))
        for alert in shipped_alerts()
        for each in watch.query(at_once(alert["expr"]))
        if each["metric"].get("model") == model
    ]
    assert firing == [(NOT_READY, "DriverMissing")]
    l4.kubectl("delete", "im", model)


def test_a_mended_model_ends_the_alert(
    watch: Stack, fallen: tuple[Namespace, dict[str, Any]]
) -> None:
    namespace, fired = fallen
    assert not [each for each in watch.notified(ALERT) if _resolved(each, "alerted")]
    began = time.time()
    namespace.apply(inference_model("alerted", "magika.onnx", backends=["cpu"]))
    reported = wait_notified(watch, ALERT, "resolved", model="alerted", seconds=240)
    assert reported["labels"] == fired["labels"]
    ended = datetime.fromisoformat(reported["endsAt"]).timestamp()
    print(
        f"spec mended to alert ended {ended - began:.1f} s,"
        f" to the webhook {reported['receivedAt'] - began:.1f} s"
    )
    namespace.wait_ready("alerted")
    assert not [each for each in watch.alerts() if each["labels"].get("model") == "alerted"]


def _resolved(notified: dict[str, Any], model: str) -> bool:
    return (notified["status"], notified["labels"].get("model")) == ("resolved", model)


def shipped_alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def at_once(expression: str) -> str:
    """Return an alert's expression without the minutes for which a model may not be ready."""
    return re.sub(r":30s\]\) >= \d+", ":30s]) >= 1", expression)


def wait_scraped_check(stack: Stack, namespace: str, model: str) -> None:
    """Wait until the sidecar of a pod whose server never answered is scraped."""
    series = f'enginewright_check{{namespace="{namespace}", model="{model}", check="server"}}'
    eventually(lambda: stack.query(series), 120, series)


def _send_requests(namespace: Namespace, model: str, count: int) -> None:
    with namespace.forward(f"service/{model}", 80) as url:
        for _ in range(count):
            http_json(f"{url}/v2/models/{model}/infer", REQUEST)
