"""Objects come back as they were, take little memory, and thousands of them are found as fast as one."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from enginewright.controller import cache as cache_module
from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import POD
from enginewright.controller.packing import Packed, Packer
from enginewright.kube.resources import NODES, PODS
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.many_models import ManyModels
from tests.support.optional import present
from tests.support.plan_objects import Json, make_object

TEXTS = st.text(max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), min_size=1, max_size=8))
def test_any_objects_come_back_as_they_were(contents: list[Json]) -> None:
    packer = Packer()
    objects = [{**content, "metadata": {"name": "x"}} for content in contents]
    packed = [packer.pack(obj, str(number)) for number, obj in enumerate(objects)]
    for number, obj in enumerate(objects):
        unpacked = packed[number].unpack()
        assert unpacked["metadata"].pop("resourceVersion") == str(number)
        assert unpacked == obj


def test_a_models_objects_take_less_than_a_tenth_beside_those_of_others() -> None:
    world = ManyModels()
    for name in ("a", "b"):
        world.apply(name, source={"uri": f"https://models.example/{name}.onnx"})
    for job in world.running_jobs():
        world.job_succeeds(of=job["metadata"]["name"])
    for kind in ("Job", "ControllerRevision", "Deployment"):
        packer, (one, other) = Packer(), world.all(kind)
        packer.pack(one, "1")
        assert len(packer.pack(other, "2").content) < len(json.dumps(other)) / 10, kind


def test_a_dictionary_does_not_grow_without_end() -> None:
    packer = Packer()
    unlike = [
        {"metadata": {}, "text": f"{number:x}" * 50 + str(hash((number, number)))}
        for number in range(3000)
    ]
    packed = [packer.pack(obj, "1") for obj in unlike]
    dictionaries = {id(one.dictionary): sys.getsizeof(one.dictionary) for one in packed}
    assert max(dictionaries.values()) <= 33_000
    assert packed[0].unpack()["text"] == unlike[0]["text"]


def pod(number: int, **metadata: Any) -> Json:
    made = make_object("Pod", f"pod-{number}", "ns", status={"phase": "Running"})
    made["metadata"] |= {"uid": f"u{number}", "resourceVersion": "1", **metadata}
    return made


def test_only_objects_that_were_read_lately_are_held_unpacked() -> None:
    cache = ObjectCache()
    for number in range(3 * cache_module.UNPACKED):
        cache.observe(PODS, pod(number))
    first = present(cache.get(PODS, "ns", "pod-0"))
    assert cache.get(PODS, "ns", "pod-0") is first
    (view,) = cache.views(POD, (first,))
    assert cache.views(POD, (present(cache.get(PODS, "ns", "pod-0")),))[0] is view
    for _ in cache.all(PODS):
        pass
    again = present(cache.get(PODS, "ns", "pod-0"))
    assert again is not first
    assert (again, cache.views(POD, (again,))) == (first, (view,))


def test_a_heartbeat_makes_no_new_view() -> None:
    cache = ObjectCache()
    cache.observe(PODS, pod(0))
    (view,) = cache.views(POD, cache.all(PODS))
    assert cache.observe(PODS, pod(0, resourceVersion="2")) is None
    assert cache.views(POD, cache.all(PODS))[0] is view
    assert present(cache.get(PODS, "ns", "pod-0"))["metadata"]["resourceVersion"] == "2"


def test_an_object_is_packed_once_for_all_changes_before_it_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[str] = []
    pack = Packer.pack

    def count(self: Packer, obj: Mapping[str, Any], version: str) -> Packed:
        packed.append(obj["metadata"]["name"])
        return pack(self, obj, version)

    monkeypatch.setattr(Packer, "pack", count)
    cache = ObjectCache()
    for version in range(1, 6):
        cache.observe(PODS, pod(0, resourceVersion=str(version), labels={"at": str(version)}))
    assert packed == []
    for number in range(1, cache_module.UNPACKED + 2):
        cache.observe(PODS, pod(number))
    assert packed == ["pod-0", "pod-1"]
    kept = present(cache.get(PODS, "ns", "pod-0"))["metadata"]
    assert (kept["labels"], kept["resourceVersion"]) == ({"at": "5"}, "5")


def test_objects_of_the_cluster_stay_unpacked() -> None:
    cache = ObjectCache()
    node = make_object("Node", "node", labels={"zone": "a"})
    node["metadata"] |= {"uid": "n", "resourceVersion": "1"}
    cache.observe(NODES, node)
    before = cache.get(NODES, None, "node")
    for number in range(2 * cache_module.UNPACKED):
        cache.observe(PODS, pod(number))
    assert cache.get(NODES, None, "node") is before
