"""What nothing needs is removed, and nothing else is, with the operator's process on a real API server.

Scheduler, kubelet, Job controller and garbage collector are played. The operator has no more rights than
the chart grants.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.collection import CollectTask

from tests.apiserver.world import (
    GOOD,
    PUBLISHED,
    RTX_IMAGE,
    WHOLE,
    EngineWorld,
    engine_built,
    model,
    set_up,
    task_of,
)
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import STORE, OperatorProcess, store_settings
from tests.support.plan_objects import COLLECTED, make_object

pytestmark = pytest.mark.apiserver


class Store(EngineWorld):
    """A cluster with one class of GPUs for which engines are built without a device."""

    def collecting(self, **gc: object) -> OperatorProcess:
        images = {"rtx": RTX_IMAGE}
        store = store_settings(**gc)
        return self.operator(images=images, with_chart_rights=True, store=store)

    def serves(self, number: int, prepared: str) -> str:
        """Prepare the model and build its engine, the `number`-th ones; the engine's key."""
        publish = {"ok": True, "published": PUBLISHED | {"key": prepared}}
        self.prepare(GOOD | {"publish": publish}, number)
        self.follow(self.job("engine", number))
        self.end_build(engine_built(self.key, **WHOLE), number)
        self.wait("True", "Built")
        return self.key

    def collection(self, not_in: set[str]) -> dict[str, Any]:
        """Return the next Job that collects, which has none of these names."""

        def new() -> list[dict[str, Any]]:
            return [job for job in self.jobs("collect") if _name(job) not in not_in]

        return eventually(new, 30, "a collection", interval=0.1)[0]

    def next_collection(self) -> dict[str, Any]:
        return self.collection({_name(job) for job in self.jobs("collect")})

    def collects(self, job: dict[str, Any]) -> None:
        """Run a Job that collects to its end."""
        report = {"ok": True, "collected": COLLECTED.model_dump(mode="json")}
        self.play(job, {"collect": report}, ("collect",))


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def collect_task(job: dict[str, Any]) -> CollectTask:
    return CollectTask.model_validate_json(task_of(container_of(job)))


def _name(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def beginnings(*keys: str) -> set[str]:
    return {key[:16] for key in keys}


@pytest.fixture
def store(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[Store]:
    with set_up(Store, new_namespace, tmp_path) as store:
        yield store


FIRST, SECOND = "cd" * 32, "ef" * 32  # keys of prepared models


def test_used_artefacts_stay_until_their_model_is_deleted(
    store: Store,
) -> None:
    played.add_gpu_class(store.user)
    store.user.apply(model(uri="https://example.com/first.onnx"))
    limit = {"metadata": {"annotations": {"enginewright.dev/store-max-size": "1Gi"}}}
    store.user.patch("namespace", store.user.name, limit)
    with store.collecting(interval="2s", unusedFor="4s") as operator:
        operator.wait_ready()
        store.probe_images(2)
        first = store.serves(1, FIRST)
        eventually(lambda: store.user.get("deployment", "m-l4"), 20, interval=0.1)
        before = {_name(entry) for entry in store.jobs("collect")}
        for entry in store.jobs("collect"):  # it began before there was anything
            store.collects(entry)
        job = store.collection(before)
        task = collect_task(job)
        assert beginnings(FIRST, first) <= set(task.keep)
        assert (task.max_bytes, task.max_age_seconds) == (1 << 30, 4)

        # an update in the middle of its rollout: the first revision serves, the second is verified
        store.user.apply(model(uri="https://example.com/second.onnx"))
        second = store.serves(2, SECOND)
        assert second != first
        eventually(lambda: len(store.user.items("controllerrevisions")) == 2, 20, interval=0.1)
        assert len([entry for entry in store.jobs("collect") if not _has_ended(entry)]) == 1
        store.collects(job)
        job = store.collection({*before, _name(job)})
        needed = beginnings(FIRST, first, SECOND, second)
        assert set(collect_task(job).keep) == needed

        # both engines outlast the time after which unused ones are removed
        seen = {entry["metadata"]["uid"] for entry in store.user.items("inferenceengines")}
        for _ in range(3):
            store.collects(job)
            job = store.next_collection()
            assert set(collect_task(job).keep) == needed
        assert {entry["metadata"]["uid"] for entry in store.user.items("inferenceengines")} == seen

        store.user.delete("inferencemodel", "m")
        store.user.delete_all("deployments,controllerrevisions")  # which the garbage collector does
        eventually(lambda: store.user.items("inferenceengines") == [], 30, interval=0.1)
        fields = "reason=EngineRemoved"
        eventually(lambda: len(store.user.items("events", fields=fields)) == 2, 20, interval=0.1)
        store.collects(job)
        job = store.next_collection()
        assert collect_task(job).keep == ()
        assert operator.total("rest_client_requests_total", code="403") == 0
    assert "level=error" not in operator.log


def test_a_result_outlives_the_operator_and_a_restart_begins_no_collection(store: Store) -> None:
    request = {"requests": {"storage": "1Gi"}}
    claim = {"accessModes": ["ReadWriteMany"], "resources": request}
    store.user.apply(make_object("PersistentVolumeClaim", STORE, spec=claim))
    with store.collecting(interval="2s", maxSize="3k") as operator:
        operator.wait_ready()
        store.probe_images(2)
        job = store.collection(set())
        store.collects(job)
        name = job["metadata"]["name"]
        annotation = "enginewright.dev/collection"
        recorded = eventually(
            lambda: store.user.get("job", name)["metadata"].get("annotations", {}).get(annotation),
            20,
            "the result",
            interval=0.1,
        )
        assert json.loads(recorded)["collected"]["bytes_after"] == 4000
        fields = "reason=StoreOverLimit"
        (event,) = eventually(lambda: store.user.items("events", fields=fields), 20, interval=0.1)
        assert event["involvedObject"]["kind"] == "PersistentVolumeClaim"
        operator.kill()
    store.expire_lease()
    # what is due after two seconds may have begun before the process was killed
    store.user.delete_all("pods")
    for entry in store.jobs("collect"):
        if _name(entry) != name:
            store.user.delete("job", _name(entry))
    names = [_name(entry) for entry in store.jobs("collect")]
    with store.collecting(interval="1h", maxSize="3k") as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        where = {"model_namespace": store.user.name}
        assert operator.total("enginewright_store_bytes", **where) == 4000
        assert operator.total("enginewright_store_needed_bytes", **where) == 4000
        assert operator.total("enginewright_store_limit_bytes", **where) == 3000
    assert [_name(entry) for entry in store.jobs("collect")] == names


def test_nothing_is_removed_where_a_revision_of_another_version_is_stored(store: Store) -> None:
    labels = {"app.kubernetes.io/managed-by": "enginewright", "enginewright.dev/model": "m"}
    newer = make_object(
        "ControllerRevision", "m-newer", labels=labels, revision=1, data={"artifacts": ["ab" * 32]}
    )
    store.user.apply(newer)
    store.apply()  # an InferenceEngine shows that there is a store
    bucket = {"uri": "s3://models/team"}
    often = store_settings(interval="2s", unusedFor="4s") | {"bucket": bucket}
    with store.operator(store=often) as operator:
        operator.wait_ready()
        store.probe_images()
        fields = "reason=CollectionBlocked"
        (event,) = eventually(lambda: store.user.items("events", fields=fields), 30, interval=0.1)
        assert event["involvedObject"]["name"] == "m-newer"
        assert "ControllerRevision m-newer" in event["message"]
        where = {"model_namespace": store.user.name, "reason": "CollectionBlocked"}
        assert operator.total("enginewright_store_collection_trouble", **where) == 1
        assert store.jobs("collect") == []
    rarely = store_settings(interval="24h") | {"bucket": bucket}
    with store.operator(store=rarely) as operator:
        operator.wait_ready()

        def is_reported() -> bool:
            return operator.total("enginewright_store_collection_trouble", **where) == 1

        eventually(is_reported, 20, "a restart forgets nothing", interval=0.1)
    store.user.delete_all("controllerrevisions")
    with store.operator(store=often) as operator:
        operator.wait_ready()
        job = store.collection(set())
        env = {item["name"]: item["value"] for item in container_of(job)["env"]}
        assert env["ENGINEWRIGHT_STORE"] == f"s3://models/team/{store.user.name}"
        system = store.user.get("namespace", "kube-system")
        assert collect_task(job).cluster == system["metadata"]["uid"]
        assert beginnings(store.key) < set(collect_task(job).keep)


def _has_ended(job: dict[str, Any]) -> bool:
    kinds = {item["type"] for item in job.get("status", {}).get("conditions", ())}
    return bool(kinds & {"Complete", "Failed"})
