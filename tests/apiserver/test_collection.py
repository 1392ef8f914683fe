"""What nothing needs is removed, and nothing else is, with the operator's process on a real API server.

Scheduler, kubelet, Job controller and garbage collector are played. The operator has no more rights than
the chart grants.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright_contract.collection import Collected, CollectTask
from enginewright_contract.task import TASK_VARIABLE

from tests.apiserver.test_engine_lifecycle import PREPARED, RTX_IMAGE, World, built, know_images
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import (
    STORE,
    OperatorProcess,
    chart_kubeconfig,
    store_settings,
)
from tests.support.plan_objects import COLLECTED, made

pytestmark = pytest.mark.apiserver

WHOLE: Final = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}


class Store(World):
    """A cluster with one class of GPUs for which engines are built without a device."""

    def collecting(self, **gc: object) -> OperatorProcess:
        return OperatorProcess(
            chart_kubeconfig(self.system, self.folder),
            self.system.name,
            self.folder,
            settings={"store": store_settings(**gc)},
            images={"rtx": RTX_IMAGE},
        )

    def has_a_model(self, uri: str) -> None:
        spec = {"source": {"uri": uri}}
        self.user.apply(made("InferenceModel", "m", spec=spec))

    def serves(self, number: int, prepared: str) -> str:
        """Prepare the model and build its engine, the `number`-th ones; the engine's key."""
        published = {**PREPARED["publish"]["published"], "key": prepared}
        reports = {**PREPARED, "publish": {"ok": True, "published": published}}
        self.play(self.job("prepare", number), reports, tuple(PREPARED))
        job = self.job("engine", number)
        self.name = job["metadata"]["labels"]["enginewright.dev/engine"]
        self.play(job, built(self.key, **WHOLE))
        self.wait("True", "Built")
        return self.key

    def collection(self, not_in: set[str]) -> dict[str, Any]:
        """Return the next Job that collects, which has none of these names."""

        def there() -> dict[str, Any] | None:
            return next(
                (each for each in self.jobs("collect") if each["metadata"]["name"] not in not_in),
                None,
            )

        job = eventually(there, 30, "a collection", interval=0.1)
        assert job is not None
        return job

    def collects(self, job: dict[str, Any], found: Collected = COLLECTED) -> None:
        """Run a Job that collects to its end."""
        report = {"ok": True, "collected": found.model_dump(mode="json")}
        self.play(job, {"collect": report}, ("collect",))

    def is_garbage_collected(self, *kinds: str) -> None:
        """Delete what the deleted model owned, which nobody does here."""
        self.user.delete_all(",".join(kinds))


def task_of(job: dict[str, Any]) -> CollectTask:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (text,) = [each["value"] for each in container["env"] if each["name"] == TASK_VARIABLE]
    return CollectTask.model_validate_json(text)


def beginnings(*keys: str) -> set[str]:
    return {key[:16] for key in keys}


@pytest.fixture
def store(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[Store]:
    store = Store(new_namespace(), new_namespace(), tmp_path)
    store.furnish()
    yield store
    store.user.delete_all("inferencemodels,inferenceengines")
    store.user.delete_all("acceleratorclasses")


FIRST, SECOND = "cd" * 32, "ef" * 32  # keys of prepared models


def test_what_serves_what_is_rolled_out_and_what_may_come_back_stays_and_then_goes(
    store: Store,
) -> None:
    played.add_gpu_class(store.user)
    store.has_a_model("https://example.com/first.onnx")
    limit = {"metadata": {"annotations": {"enginewright.dev/store-max-size": "1Gi"}}}
    store.user.patch("namespace", store.user.name, limit)
    with store.collecting(interval="2s", unusedFor="4s") as operator:
        operator.wait_ready()
        know_images(store)
        first = store.serves(1, FIRST)
        eventually(lambda: store.user.get("deployment", "m-l4"), 20, interval=0.1)
        before = {each["metadata"]["name"] for each in store.jobs("collect")}
        for each in store.jobs("collect"):  # it began before there was anything
            store.collects(each)
        job = store.collection(before)
        task = task_of(job)
        assert beginnings(FIRST, first) <= set(task.keep)
        assert (task.max_bytes, task.max_age_seconds) == (1 << 30, 4)

        # an update in the middle of its rollout: the first revision serves, the second is verified
        store.has_a_model("https://example.com/second.onnx")
        second = store.serves(2, SECOND)
        assert second != first
        eventually(lambda: len(store.user.items("controllerrevisions")) == 2, 20, interval=0.1)
        assert len([each for each in store.jobs("collect") if not _ended(each)]) == 1
        store.collects(job)
        job = store.collection({*before, job["metadata"]["name"]})
        needed = beginnings(FIRST, first, SECOND, second)
        assert set(task_of(job).keep) == needed

        # both engines outlast the time after which unused ones are removed
        seen = {each["metadata"]["uid"] for each in store.user.items("inferenceengines")}
        for _ in range(3):
            store.collects(job)
            job = store.collection({each["metadata"]["name"] for each in store.jobs("collect")})
            assert set(task_of(job).keep) == needed
        assert {each["metadata"]["uid"] for each in store.user.items("inferenceengines")} == seen

        store.user.delete("inferencemodel", "m")
        store.is_garbage_collected("deployments", "controllerrevisions")
        eventually(lambda: store.user.items("inferenceengines") == [], 30, interval=0.1)
        fields = "reason=EngineRemoved"
        eventually(lambda: len(store.user.items("events", fields=fields)) == 2, 20, interval=0.1)
        store.collects(job)
        job = store.collection({each["metadata"]["name"] for each in store.jobs("collect")})
        assert task_of(job).keep == ()
        assert operator.total("rest_client_requests_total", code="403") == 0
    assert "level=error" not in operator.log


def test_a_result_outlives_the_operator_and_a_restart_begins_no_collection(store: Store) -> None:
    claim = made(
        "PersistentVolumeClaim",
        STORE,
        spec={
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    )
    store.user.apply(claim)
    with store.collecting(interval="2s", maxSize="3k") as operator:
        operator.wait_ready()
        know_images(store)
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
    store.system.delete("lease", "enginewright")  # as if it had expired
    # what is due after two seconds may have begun before the process was killed
    store.user.delete_all("pods")
    for each in store.jobs("collect"):
        if each["metadata"]["name"] != name:
            store.user.delete("job", each["metadata"]["name"])
    names = [each["metadata"]["name"] for each in store.jobs("collect")]
    with store.collecting(interval="1h", maxSize="3k") as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        where = {"model_namespace": store.user.name}
        assert operator.total("enginewright_store_bytes", **where) == 4000
        assert operator.total("enginewright_store_needed_bytes", **where) == 4000
        assert operator.total("enginewright_store_limit_bytes", **where) == 3000
    assert [each["metadata"]["name"] for each in store.jobs("collect")] == names


def test_nothing_is_removed_where_a_revision_of_another_version_is_stored(store: Store) -> None:
    labels = {"app.kubernetes.io/managed-by": "enginewright", "enginewright.dev/model": "m"}
    newer = made(
        "ControllerRevision", "m-newer", labels=labels, revision=1, data={"artifacts": ["ab" * 32]}
    )
    store.user.apply(newer)
    store.apply()  # an InferenceEngine shows that there is a store
    bucket = {"uri": "s3://models/team"}
    gc = {"interval": "2s", "unusedFor": "4s"}
    settings = {"store": {**store_settings(**gc), "bucket": bucket}}
    with OperatorProcess(
        store.user.kubeconfig, store.system.name, store.folder, settings=settings
    ) as operator:
        operator.wait_ready()
        know_images(store, count=1)
        fields = "reason=CollectionBlocked"
        (event,) = eventually(lambda: store.user.items("events", fields=fields), 30, interval=0.1)
        assert event["involvedObject"]["name"] == "m-newer"
        assert "ControllerRevision m-newer" in event["message"]
        where = {"model_namespace": store.user.name, "reason": "CollectionBlocked"}
        assert operator.total("enginewright_store_collection_trouble", **where) == 1
        assert store.jobs("collect") == []
    rarely = {"store": {**store_settings(interval="24h"), "bucket": bucket}}
    with OperatorProcess(
        store.user.kubeconfig, store.system.name, store.folder, settings=rarely
    ) as operator:
        operator.wait_ready()

        def is_reported() -> bool:
            return operator.total("enginewright_store_collection_trouble", **where) == 1

        eventually(is_reported, 20, "a restart forgets nothing", interval=0.1)
    store.user.delete_all("controllerrevisions")
    with OperatorProcess(
        store.user.kubeconfig, store.system.name, store.folder, settings=settings
    ) as operator:
        operator.wait_ready()
        job = store.collection(set())
        (container,) = job["spec"]["template"]["spec"]["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert env["ENGINEWRIGHT_STORE"] == f"s3://models/team/{store.user.name}"
        system = store.user.get("namespace", "kube-system")
        assert task_of(job).cluster == system["metadata"]["uid"]
        assert beginnings(store.key) < set(task_of(job).keep)


def _ended(job: dict[str, Any]) -> bool:
    kinds = {each["type"] for each in job.get("status", {}).get("conditions", ())}
    return bool(kinds & {"Complete", "Failed"})
