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
from enginewright.observed.deployments import count_managers

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
    changed = cache.replace(JOBS, Listing((obj("kept", 2, uid="k"), obj("new", 3, uid="x")), "40"))
    assert sorted(one["metadata"]["name"] for one in changed) == ["ghost", "new"]
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
        self.router = Router(
            self.cache,
            Sinks(
                model=lambda key: self.models.append("/".join(key)),
                engine=lambda key: self.engines.append("/".join(key)),
                accelerator_class=self.classes.append,
                image=self.images.append,
                proposals=lambda: self.proposals.append("all"),
                collection=self.collections.append,
            ),
        )
        for namespace, name in (("ns", "m"), ("ns", "n"), ("elsewhere", "m")):
            model = obj(name, 1, uid=f"{namespace}/{name}", metadata={"namespace": namespace})
            self.router.event(INFERENCE_MODELS, model, deleted=False)
        aclass = obj("cpu", 1, uid="c", metadata={"namespace": None})
        self.router.event(ACCELERATOR_CLASSES, aclass, deleted=False)
        self.forget()

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


@pytest.mark.parametrize("deleted", [False, True])
def test_a_model_wakes_the_engines_that_it_may_need_no_more(routed: Routed, deleted: bool) -> None:
    for name, status in (("waits", {}), ("built", {"engine": {"sha256": "e"}})):
        routed.see(INFERENCE_ENGINES, obj(name, 5, uid=name, status=status))
    routed.forget()
    model = obj("m", 7, uid="ns/m", status={"engines": []})
    routed.see(INFERENCE_MODELS, model, deleted=deleted)
    assert routed.engines == ["ns/waits"]
    routed.router.on_written(INFERENCE_MODELS, model)
    assert routed.engines == ["ns/waits", "ns/waits"]
    elsewhere = obj("m", 8, uid="elsewhere/m", metadata={"namespace": "elsewhere"})
    routed.router.on_written(INFERENCE_MODELS, elsewhere)
    assert routed.engines == ["ns/waits", "ns/waits"]


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
    routed.router.listing(CLAIMS, Listing((listed, kept), "6"))
    assert routed.collections == ["own", "listed"]
    routed.see(CLAIMS, listed, deleted=True)
    routed.collections.clear()
    for queue_all in (routed.router.begin, routed.router.all_collections):
        queue_all()
        assert routed.collections == ["elsewhere", "left", "new", "ns", "other"]
        routed.collections.clear()


def test_an_engine_wakes_itself_and_the_models_that_may_wait_for_it(routed: Routed) -> None:
    routed.see(INFERENCE_ENGINES, obj("e", 5, uid="e", status={"stage": "build"}))
    assert routed.engines == ["ns/e"]
    assert sorted(routed.models) == ["ns/m", "ns/n"]
    routed.forget()
    routed.see(INFERENCE_ENGINES, obj("e", 6, uid="e", status={"stage": "build"}))
    assert (routed.engines, routed.models) == ([], []), "nothing has changed"
    routed.see(INFERENCE_ENGINES, obj("e", 7, uid="e"), deleted=True)
    assert routed.engines == ["ns/e"]
    assert sorted(routed.models) == ["ns/m", "ns/n"], "one of them makes it again"


def test_users_of_an_engine_wake_no_model(routed: Routed) -> None:
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
    assert sorted(routed.models) == ["ns/m", "ns/n"]
    routed.forget()
    routed.see(INFERENCE_ENGINES, obj("e", 9, uid="e"), deleted=True)
    routed.see(INFERENCE_ENGINES, obj("e", 10, uid="another", status=used))
    assert sorted(routed.models) == ["ns/m", "ns/m", "ns/n", "ns/n"]


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


def test_a_node_heartbeat_queues_nothing(routed: Routed) -> None:
    routed.see(NODES, node(1))
    assert sorted(routed.models) == ALL
    routed.forget()
    routed.see(NODES, node(2))
    assert (routed.models, routed.classes) == ([], [])


@pytest.mark.parametrize(
    "change",
    [
        {"ready": "False"},
        {"labels": {"zone": "b"}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}},
    ],
)
def test_a_nodes_change_wakes_all(routed: Routed, change: dict[str, Any]) -> None:
    routed.see(NODES, node(1))
    routed.forget()
    routed.see(NODES, node(2, **change))
    assert sorted(routed.models) == ALL
    assert routed.classes == ["cpu"]
    assert routed.proposals == ["all"]
