"""What the cache believes when listings, events and our own writes cross each other."""

from typing import Any

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import Router, Sinks
from enginewright.kube.api import Listing
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    Resource,
)
from enginewright.manifests.store_access import StoreBucket
from enginewright.observed.deployments import count_managers
from enginewright.plan.types import StoreConfig

from tests.support.listings import route, show
from tests.support.optional import present


def obj(name: str, version: int, uid: str = "u1", **rest: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    metadata |= rest.pop("metadata", {})
    return {"metadata": metadata, **rest}


def of_model(name: str, version: int, model: str = "m", **rest: Any) -> dict[str, Any]:
    return make_labelled(name, version, {"enginewright.dev/model": model}, **rest)


def make_labelled(name: str, version: int, labels: dict[str, str], **rest: Any) -> dict[str, Any]:
    return obj(name, version, uid=f"uid-{name}", metadata={"labels": labels}, **rest)


@pytest.mark.parametrize("version", [9, 20], ids=["an older version", "the echo"])
def test_older_than_our_own_write_is_no_change(version: int) -> None:
    cache = ObjectCache()
    cache.observe(JOBS, obj("j", 20, spec={"a": 2}))
    assert cache.observe(JOBS, obj("j", version, spec={"a": 1})) is None
    held = present(cache.get(JOBS, "ns", "j"))
    assert held["spec"] == {"a": 2}


def test_a_new_version_with_nothing_new_in_it_is_no_change_but_is_remembered() -> None:
    cache = ObjectCache()
    cache.observe(JOBS, obj("j", 1, metadata={"managedFields": [1]}))
    assert cache.observe(JOBS, obj("j", 2, metadata={"managedFields": [2]})) is None
    held = present(cache.get(JOBS, "ns", "j"))
    assert held["metadata"]["resourceVersion"] == "2"
    assert "managedFields" not in held["metadata"]


def test_owner_of_the_replicas_is_kept() -> None:
    def make_owned(version: int, *managers: str) -> dict[str, Any]:
        counted: dict[str, Any] = {"f:spec": {"f:replicas": {}}}
        fields = [
            {"manager": manager, "time": version, "fieldsV1": counted} for manager in managers
        ]
        other = {"manager": "x", "fieldsV1": {"f:spec": {"f:template": {}}}}
        status = {"manager": "y", "fieldsV1": {"f:status": {"f:replicas": {}}}}
        return obj("d", version, metadata={"managedFields": [*fields, other, status]})

    cache = ObjectCache()
    cache.observe(DEPLOYMENTS, make_owned(1, "a", "b"))
    held = present(cache.get(DEPLOYMENTS, "ns", "d"))
    assert count_managers(held["metadata"]) == {"a", "b"}
    assert cache.observe(DEPLOYMENTS, make_owned(2, "b", "a")) is None
    assert cache.observe(DEPLOYMENTS, make_owned(3, "b")) is not None


def test_metrics_of_an_autoscaler_are_no_change() -> None:
    cache = ObjectCache()
    cache.observe(HORIZONTAL_POD_AUTOSCALERS, obj("a", 1, spec={"maxReplicas": 8}, status={}))
    measured = obj("a", 2, spec={"maxReplicas": 8}, status={"currentReplicas": 3})
    assert cache.observe(HORIZONTAL_POD_AUTOSCALERS, measured) is None
    edited = obj("a", 3, spec={"maxReplicas": 9}, status={})
    assert cache.observe(HORIZONTAL_POD_AUTOSCALERS, edited) is not None


def test_a_late_event_does_not_raise_the_dead() -> None:
    cache = ObjectCache()
    cache.observe(JOBS, obj("j", 1))
    cache.observe(JOBS, obj("j", 1), deleted=True)
    assert cache.observe(JOBS, obj("j", 2)) is None
    assert cache.get(JOBS, "ns", "j") is None


def test_the_old_ones_deletion_leaves_its_successor() -> None:
    cache = ObjectCache()
    cache.observe(JOBS, obj("j", 1, uid="old"))
    cache.observe(JOBS, obj("j", 5, uid="new"))
    assert cache.observe(JOBS, obj("j", 4, uid="old"), deleted=True) is None
    held = present(cache.get(JOBS, "ns", "j"))
    assert held["metadata"]["uid"] == "new"


def test_children_are_found_by_label_and_follow_it() -> None:
    cache = ObjectCache()
    cache.observe(JOBS, of_model("b", 1))
    cache.observe(JOBS, of_model("a", 2))
    cache.observe(JOBS, of_model("c", 3, model="other"))
    assert [job["metadata"]["name"] for job in cache.of_model(JOBS, "ns", "m")] == ["a", "b"]
    cache.observe(JOBS, of_model("b", 4, model="other"))
    assert [job["metadata"]["name"] for job in cache.of_model(JOBS, "ns", "m")] == ["a"]
    cache.observe(JOBS, of_model("a", 5), deleted=True)
    assert cache.of_model(JOBS, "ns", "m") == ()


def of_engine(name: str, version: int) -> dict[str, Any]:
    return make_labelled(name, version, {"enginewright.dev/engine": "e"})


def test_children_of_engines_and_models_are_found_apart() -> None:
    cache = ObjectCache()
    cache.observe(JOBS, of_engine("b", 1))
    cache.observe(JOBS, of_engine("a", 2))
    cache.observe(JOBS, of_model("c", 3, model="e"))
    assert [job["metadata"]["name"] for job in cache.of_engine(JOBS, "ns", "e")] == ["a", "b"]
    assert [job["metadata"]["name"] for job in cache.of_model(JOBS, "ns", "e")] == ["c"]
    assert cache.of_engine(JOBS, "elsewhere", "e") == ()
    cache.observe(JOBS, of_engine("a", 4), deleted=True)
    cache.observe(JOBS, of_engine("b", 5), deleted=True)
    assert cache.of_engine(JOBS, "ns", "e") == ()


def test_listing_drops_ghosts_and_keeps_later_objects() -> None:
    cache = ObjectCache()
    cache.observe(JOBS, obj("ghost", 1, uid="g"))
    cache.observe(JOBS, obj("kept", 2, uid="k"))
    cache.observe(JOBS, obj("newer", 50, uid="n"))
    listing = Listing((obj("kept", 2, uid="k"), obj("new", 3, uid="x")), "40")
    assert show(cache, JOBS, listing) == ["ghost", "new"]
    assert sorted(one["metadata"]["name"] for one in cache.all(JOBS)) == ["kept", "new", "newer"]


class Routed:
    def __init__(self) -> None:
        self.models: list[str] = []
        self.engines: list[str] = []
        self.classes: list[str] = []
        self.images: list[str] = []
        self.proposals: list[str] = []
        self.collections: list[str] = []  # namespaces
        self.cache = ObjectCache()
        self.sinks = Sinks(
            model=lambda key: self.models.append("/".join(key)),
            engine=lambda key: self.engines.append("/".join(key)),
            accelerator_class=self.classes.append,
            image=self.images.append,
            proposals=lambda: self.proposals.append("all"),
            collection=self.collections.append,
        )
        self.router = Router(self.cache, self.sinks)
        for namespace, name in (("ns", "m"), ("ns", "n"), ("elsewhere", "m")):
            model = obj(name, 1, uid=f"{namespace}/{name}", metadata={"namespace": namespace})
            self.router.event(INFERENCE_MODELS, model, deleted=False)
        aclass = obj("cpu", 1, uid="c", metadata={"namespace": None})
        self.router.event(ACCELERATOR_CLASSES, aclass, deleted=False)
        self.forget()

    def install(self, bucket: StoreBucket | None) -> None:
        """Have the installation store artefacts in this bucket, or in volumes that nodes share."""
        store = StoreConfig("store", "20Gi", "ReadWriteMany", None, bucket=bucket)
        self.router = Router(self.cache, self.sinks, store)

    def find_woken(self) -> dict[str, list[str]]:
        """Return the keys of each kind that were queued."""
        kinds = ("models", "engines", "classes", "images", "proposals", "collections")
        return {kind: keys for kind in kinds if (keys := getattr(self, kind))}

    def forget(self) -> None:
        for keys in self.find_woken().values():
            keys.clear()

    def see(self, resource: Resource, one: dict[str, Any], *, deleted: bool = False) -> None:
        self.router.event(resource, one, deleted=deleted)


@pytest.fixture
def routed() -> Routed:
    return Routed()


ALL = ["elsewhere/m", "ns/m", "ns/n"]


def test_a_model_is_its_own_key(routed: Routed) -> None:
    routed.see(INFERENCE_MODELS, obj("m", 7, uid="ns/m", spec={"changed": True}))
    assert routed.models == ["ns/m"]
    routed.see(INFERENCE_MODELS, obj("m", 8, uid="ns/m"), deleted=True)
    assert routed.models == ["ns/m", "ns/m"]


def refer(*engines: str) -> dict[str, Any]:
    return {"engines": [{"class": "l4", "name": engine} for engine in engines]}


def reject(prepared: str) -> dict[str, Any]:
    return {"rejectedBackends": [{"backend": "tensorrt", "prepared": {"key": prepared}}]}


@pytest.fixture
def with_engines(routed: Routed) -> Routed:
    """Return a router that knows engines, one of them built."""
    for name, status in (("waits", {}), ("other", {}), ("built", {"engine": {"sha256": "e"}})):
        spec = {"preparedKey": f"key-of-{name}"}
        routed.see(INFERENCE_ENGINES, obj(name, 5, uid=name, spec=spec, status=status))
    routed.forget()
    return routed


def write_model(routed: Routed, version: int, status: dict[str, Any]) -> None:
    """Have another of our controllers write a model's status."""
    written = obj("m", version, uid="ns/m", status=status)
    routed.cache.observe(INFERENCE_MODELS, written)
    routed.router.on_written(INFERENCE_MODELS, written)


@pytest.mark.parametrize("status", [refer("waits", "built"), reject("key-of-waits")])
def test_a_model_that_needs_engines_wakes_those_that_are_not_built(
    with_engines: Routed, status: dict[str, Any]
) -> None:
    with_engines.see(INFERENCE_MODELS, obj("m", 7, uid="ns/m", status=status))
    assert with_engines.engines == ["ns/waits"]
    write_model(with_engines, 8, refer("other"))
    assert with_engines.engines == ["ns/waits", "ns/other", "ns/waits"], "also if needed no more"
    write_model(with_engines, 9, {})
    assert with_engines.engines[3:] == ["ns/other"]
    with_engines.see(INFERENCE_MODELS, obj("m", 10, uid="ns/m", status={"phase": "x"}))
    assert with_engines.engines[4:] == []


def test_a_deleted_model_wakes_the_engines_that_it_needed(with_engines: Routed) -> None:
    write_model(with_engines, 7, refer("waits"))
    with_engines.forget()
    with_engines.see(INFERENCE_MODELS, obj("m", 8, uid="ns/m"), deleted=True)
    assert with_engines.engines == ["ns/waits"]


COLLECTS = {"enginewright.dev/component": "collect"}


@pytest.mark.parametrize(
    ("resource", "labels", "woken"),
    [
        (JOBS, {"enginewright.dev/model": "m"}, {"models": ["ns/m"] * 2}),
        (PODS, {"enginewright.dev/model": "m"}, {"models": ["ns/m"] * 2}),
        (DEPLOYMENTS, {"enginewright.dev/model": "m"}, {"models": ["ns/m"] * 2}),
        (JOBS, {"enginewright.dev/engine": "e"}, {"engines": ["ns/e"] * 2}),
        (PODS, {"enginewright.dev/engine": "e"}, {"engines": ["ns/e"] * 2}),
        (JOBS, {"enginewright.dev/image": "abc"}, {"images": ["abc"] * 2}),
        (JOBS, COLLECTS, {"collections": ["ns"] * 2}),
        (PODS, COLLECTS, {"collections": ["ns"] * 2}),
    ],
)
def test_child_wakes_owner(
    routed: Routed, resource: Resource, labels: dict[str, str], woken: dict[str, list[str]]
) -> None:
    routed.see(resource, make_labelled("child", 5, labels, status={"phase": "Running"}))
    routed.see(
        resource, make_labelled("child", 6, labels, status={"phase": "Failed"}), deleted=True
    )
    assert routed.find_woken() == woken


def test_a_child_that_changes_hands_wakes_both(routed: Routed) -> None:
    routed.see(JOBS, of_model("j", 5))
    routed.forget()
    routed.see(JOBS, of_model("j", 6, model="n"))
    assert sorted(routed.models) == ["ns/m", "ns/n"]


def test_a_claim_that_grows_wakes_what_may_wait_for_room(routed: Routed) -> None:
    routed.see(INFERENCE_ENGINES, obj("e", 4, uid="e", metadata={"namespace": "ns"}))
    routed.see(CLAIMS, obj("store", 5, uid="c", metadata={"namespace": "ns"}))
    routed.forget()
    grown = {"capacity": {"storage": "40Gi"}}
    routed.see(CLAIMS, obj("store", 6, uid="c", metadata={"namespace": "ns"}, status=grown))
    assert routed.find_woken()["engines"] == ["ns/e"]
    assert "ns/m" in routed.find_woken()["models"]


def test_a_namespace_is_collected_once_it_has_a_store(routed: Routed) -> None:
    routed.see(CLAIMS, obj("store", 5, uid="c", metadata={"namespace": "new"}))
    routed.see(CLAIMS, obj("store", 6, uid="c", metadata={"namespace": "new"}, spec={"a": 1}))
    routed.see(INFERENCE_ENGINES, obj("e", 7, uid="e", metadata={"namespace": "other"}))
    routed.see(JOBS, obj("j", 8, uid="j", metadata={"namespace": "left", "labels": COLLECTS}))
    assert routed.collections == ["new", "other", "left"]
    routed.collections.clear()
    routed.router.on_written(CLAIMS, obj("store", 9, uid="w", metadata={"namespace": "own"}))
    listed = obj("store", 10, uid="l", metadata={"namespace": "listed"})
    kept = present(routed.cache.get(CLAIMS, "new", "store"))
    route(routed.router, CLAIMS, Listing((listed, kept), "6"))
    assert routed.collections == ["own", "listed"]
    routed.see(CLAIMS, listed, deleted=True)
    routed.collections.clear()
    for queue_all in (routed.router.begin, routed.router.all_collections):
        queue_all()
        assert routed.collections == ["elsewhere", "left", "new", "ns", "other"]
        routed.collections.clear()


def test_an_engines_stage_wakes_itself_and_only_the_models_that_use_its_key(routed: Routed) -> None:
    routed.see(INFERENCE_MODELS, obj("m", 2, uid="ns/m", status=refer("e")))
    same = {"prepared": {"key": "p"}}  # as it was built from, by settings of another engine
    routed.see(INFERENCE_MODELS, obj("same", 2, uid="ns/same", status=same))
    elsewhere = {"namespace": "elsewhere"}
    routed.see(
        INFERENCE_MODELS, obj("m", 2, uid="elsewhere/m", metadata=elsewhere, status=refer("e"))
    )
    routed.forget()

    def make_engine(version: int, stage: str) -> dict[str, Any]:
        return obj("e", version, uid="e", spec={"preparedKey": "p"}, status={"stage": stage})

    routed.see(INFERENCE_ENGINES, make_engine(5, "build"))
    assert (routed.engines, sorted(routed.models)) == (["ns/e"], ["ns/m", "ns/same"])
    routed.forget()
    routed.see(INFERENCE_ENGINES, make_engine(6, "build"))
    assert (routed.engines, routed.models) == ([], []), "nothing has changed"
    routed.see(INFERENCE_ENGINES, make_engine(7, "verify"))
    assert (routed.engines, sorted(routed.models)) == (["ns/e"], ["ns/m", "ns/same"])
    routed.forget()
    routed.see(INFERENCE_ENGINES, make_engine(8, "verify"), deleted=True)
    assert routed.engines == ["ns/e"]
    assert sorted(routed.models) == ["ns/m", "ns/same"], "one of them makes it again"


def test_users_of_an_engine_wake_no_model(routed: Routed) -> None:
    routed.see(INFERENCE_MODELS, obj("m", 2, uid="ns/m", status=refer("e")))
    built = {"engine": {"sha256": "e"}, "users": {"count": 1}}
    routed.see(INFERENCE_ENGINES, obj("e", 5, uid="e", status=built))
    routed.forget()
    used = {**built, "users": {"count": 2}, "lastUsed": "2026-11-21T12:00:00Z"}
    routed.see(INFERENCE_ENGINES, obj("e", 6, uid="e", status=used))
    assert (routed.engines, routed.models) == (["ns/e"], [])
    routed.cache.observe(INFERENCE_ENGINES, obj("e", 7, uid="e", status=built))
    routed.router.on_written(INFERENCE_ENGINES, obj("e", 7, uid="e", status=built))
    assert (routed.engines, routed.models) == (["ns/e", "ns/e"], [])
    routed.see(INFERENCE_ENGINES, obj("e", 8, uid="e", status={**used, "engine": {"sha256": "f"}}))
    assert routed.models == ["ns/m"]
    routed.forget()
    routed.see(INFERENCE_ENGINES, obj("e", 9, uid="e"), deleted=True)
    routed.see(INFERENCE_ENGINES, obj("e", 10, uid="another", status=used))
    assert routed.models == ["ns/m", "ns/m"]


def test_the_stores_claim_wakes_the_models_of_its_namespace(routed: Routed) -> None:
    routed.see(CLAIMS, obj("store", 5, status={"phase": "Bound"}))
    assert sorted(routed.models) == ["ns/m", "ns/n"]


def test_an_accelerator_class_wakes_all(routed: Routed) -> None:
    routed.see(ACCELERATOR_CLASSES, obj("gpu", 5, uid="g", metadata={"namespace": None}))
    assert sorted(routed.models) == ALL
    assert sorted(set(routed.classes)) == ["cpu", "gpu"]


def node(version: int, **changes: Any) -> dict[str, Any]:
    conditions = [
        {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": str(version)},
        {
            "type": "Ready",
            "status": changes.get("ready", "True"),
            "lastHeartbeatTime": str(version),
        },
    ]
    metadata = {
        "namespace": None,
        "labels": changes.get("labels", {"zone": "a"}),
        "annotations": {"agent/heartbeat": str(version)},
    }
    return obj(
        "node-1",
        version,
        metadata=metadata,
        spec=changes.get("spec", {}),
        status={"conditions": conditions, "images": [version]},
    )


@pytest.fixture
def with_classes(routed: Routed) -> Routed:
    """Return a router with a shared store, two classes, and models: m on one, n on the other, any on none by name."""
    routed.install(StoreBucket(uri="s3://models"))
    for name, zone in (("cpu", "a"), ("gpu", "b")):
        aclass = obj(name, 2, uid=name, spec={"nodeSelector": {"zone": zone}})
        aclass["metadata"]["namespace"] = None
        routed.see(ACCELERATOR_CLASSES, aclass)
    for name, of in (("m", "cpu"), ("n", "gpu")):
        spec = {"accelerators": [{"class": of}]}
        routed.see(INFERENCE_MODELS, obj(name, 2, uid=f"ns/{name}", spec=spec))
    routed.see(NODES, node(1))
    routed.forget()
    return routed


def test_a_node_heartbeat_queues_nothing(with_classes: Routed) -> None:
    with_classes.see(NODES, node(2))
    assert with_classes.find_woken() == {}


@pytest.mark.parametrize(
    ("change", "classes", "models"),
    [
        ({"ready": "False"}, ["cpu"], ["elsewhere/m", "ns/m"]),
        ({"labels": {"zone": "a", "noted-by": "an agent"}}, ["cpu"], ["elsewhere/m", "ns/m"]),
        ({"labels": {"zone": "b"}}, ["cpu", "gpu"], ALL),
        ({"labels": {}}, ["cpu"], ["elsewhere/m", "ns/m"]),
        ({"spec": {"unschedulable": True}}, ["cpu"], ["elsewhere/m", "ns/m"]),
        (
            {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}},
            ["cpu"],
            ["elsewhere/m", "ns/m"],
        ),
    ],
)
def test_a_nodes_change_wakes_the_models_of_its_classes(
    with_classes: Routed, change: dict[str, Any], classes: list[str], models: list[str]
) -> None:
    """The model elsewhere names no class: it may be served on any."""
    with_classes.see(NODES, node(2, **change))
    woken = with_classes.find_woken()
    assert woken == {"classes": classes, "models": woken["models"], "proposals": ["all"]}
    assert sorted(woken["models"]) == models


def test_a_node_that_joins_or_leaves_wakes_the_models_of_its_classes(with_classes: Routed) -> None:
    joins = node(5, labels={"zone": "b"})
    joins["metadata"] |= {"name": "node-2", "uid": "u2"}
    for deleted in (False, True):
        with_classes.see(NODES, joins, deleted=deleted)
        assert with_classes.classes == ["gpu"]
        assert sorted(with_classes.models) == ["elsewhere/m", "ns/n"]
        with_classes.forget()


def test_the_first_and_the_last_node_of_an_architecture_wake_all(with_classes: Routed) -> None:
    def make_arm(number: int) -> dict[str, Any]:
        arm = node(10 + number, labels={"kubernetes.io/arch": "arm64"})
        arm["metadata"] |= {"name": f"arm-{number}", "uid": f"arm-{number}"}
        return arm

    woken = []
    for number, deleted in ((1, False), (2, False), (1, True), (2, True)):
        with_classes.see(NODES, make_arm(number), deleted=deleted)
        woken.append(sorted(with_classes.models))
        with_classes.forget()
    assert woken == [ALL, ["elsewhere/m"], ["elsewhere/m"], ALL]


@pytest.mark.parametrize(
    ("modes", "everyone"), [(["ReadWriteMany"], False), (["ReadWriteOnce"], True)]
)
def test_a_node_that_takes_pods_counts_for_all_where_one_alone_can_mount_a_store(
    with_classes: Routed, modes: list[str], everyone: bool
) -> None:
    with_classes.install(None)
    claim = obj("store", 3, uid="claim", spec={"accessModes": modes})
    with_classes.cache.observe(CLAIMS, claim)
    with_classes.see(NODES, node(2, spec={"unschedulable": True}))
    assert sorted(with_classes.models) == (ALL if everyone else ["elsewhere/m", "ns/m"])
    with_classes.forget()
    with_classes.see(NODES, node(3, spec={"unschedulable": True}, ready="False"))
    assert sorted(with_classes.models) == ["elsewhere/m", "ns/m"], "no pods go elsewhere"
