"""The pods of a finished Job: listed once, and looked for among its own."""

from typing import Any

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.observe import JOB
from enginewright.kube.resources import JOBS, PODS
from enginewright.observed.pods import JOB_NAME

from tests.support.fake_kube import FakeKube, at_once
from tests.support.plan_objects import make_object, owner_reference

ENDED = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}


class Finished:
    """Jobs that have ended, of each of which one pod has."""

    def __init__(self, *jobs: str) -> None:
        self.kube, self.cache = FakeKube(), ObjectCache()
        self.catch_up = PodCatchUp(self.kube, self.cache)
        for name in jobs:
            self.add(name)

    def add(self, name: str) -> None:
        job = self.kube.put(make_object("Job", name, "ns", status=ENDED))
        pod = make_object("Pod", f"{name}-0", "ns", labels={JOB_NAME: name})
        pod["metadata"]["ownerReferences"] = [owner_reference(job)]
        self.kube.put({**pod, "status": {"phase": "Succeeded"}})
        self.cache.observe(JOBS, job)

    def watch_pods(self) -> None:
        for pod in self.kube.all("Pod"):
            self.cache.observe(PODS, pod)

    def plan(self, *jobs: str) -> None:
        """Do what precedes a plan with these Jobs."""
        observed = (self.cache.get(JOBS, "ns", name) for name in jobs)
        at_once(self.catch_up.catch_up(self.cache.views(JOB, filter(None, observed))))


def test_pods_that_the_watch_lacks_are_listed_once() -> None:
    world = Finished("a", "b")
    world.plan("a")
    assert world.cache.get(PODS, "ns", "a-0")
    assert not world.cache.get(PODS, "ns", "b-0")
    world.plan("a")
    world.plan("a", "b")
    assert world.kube.calls["list"] == 2


def test_a_later_job_of_the_same_name_is_looked_at_again() -> None:
    world = Finished("a")
    world.plan("a")
    world.cache.observe(JOBS, world.kube.all("Job")[0], deleted=True)
    world.kube.remove("Job", "ns", "a")
    world.add("a")
    world.plan("a")
    assert world.kube.calls["list"] == 2


def test_pods_of_others_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"job-{number}" for number in range(50)]
    world = Finished(*names)
    world.watch_pods()
    read: list[str] = []
    original = ObjectCache.find

    def find(self: ObjectCache, *place: Any) -> Any:
        objects = original(self, *place)
        read.extend(obj["metadata"]["name"] for obj in objects)
        return objects

    monkeypatch.setattr(ObjectCache, "find", find)
    monkeypatch.delattr(ObjectCache, "all")
    for name in names:
        world.plan(name)
    assert read == [f"{name}-0" for name in names]
    assert world.kube.calls["list"] == 0
