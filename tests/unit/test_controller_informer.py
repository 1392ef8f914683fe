"""Listings: complete before anything is decided, patient, and the end of ghosts."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.informer import LACKING, Informer, Watch, WatchedPlace, watches
from enginewright.controller.routing import ModelKey, Router, Sinks
from enginewright.kube.api import Listing
from enginewright.kube.errors import Forbidden, NotFound
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    HTTP_ROUTES,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    PODS,
    Resource,
)

from tests.support.fake_kube import PAGE, FakeKube
from tests.support.plan_objects import NAMESPACE, make_object


class Informed:
    """An informer over the fake, and the models that it wakes."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.cache = ObjectCache()
        self.models: list[ModelKey] = []
        sinks = Sinks(
            model=self.models.append,
            engine=_ignore,
            accelerator_class=_ignore,
            image=_ignore,
            proposals=lambda: None,
            collection=_ignore,
        )
        watched = (
            Watch(ACCELERATOR_CLASSES),
            Watch(JOBS, labels="managed=yes"),
            Watch(HTTP_ROUTES, optional=True),
            Watch(INFERENCE_MODELS),
        )
        self.informer = Informer(self.kube, Router(self.cache, sinks), watched)

    def add(self, kind: str, name: str, **labels: str) -> None:
        self.kube.put(make_object(kind, name, NAMESPACE, labels=labels))


def _ignore(_key: object) -> None:
    pass


@pytest.fixture
def world() -> Informed:
    return Informed()


async def test_every_kind_is_listed_with_its_selector(world: Informed) -> None:
    world.add("Job", "ours", managed="yes")
    world.add("Job", "theirs")
    world.add("InferenceModel", "m")
    await world.informer.list_all()
    assert world.informer.synced
    assert [job["metadata"]["name"] for job in world.cache.all(JOBS)] == ["ours"]
    assert world.models == [ModelKey(NAMESPACE, "m")]


async def test_failed_listing_is_logged_once(
    world: Informed, caplog: pytest.LogCaptureFixture
) -> None:
    world.kube.fail["list"] = [
        NotFound("404 page not found"),
        NotFound("404 page not found"),
        Forbidden("it is forbidden"),
    ]
    with caplog.at_level(logging.WARNING):
        await world.informer.check()
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the API server does not know acceleratorclasses.enginewright.dev:")
    assert "install Enginewright's CRDs" in first
    assert second.startswith("cannot list acceleratorclasses: it is forbidden")


async def test_what_cannot_be_listed_is_told_by_readiness(world: Informed) -> None:
    world.kube.fail["list"] = [Forbidden("it is forbidden")]
    checking = asyncio.create_task(world.informer.check())
    await asyncio.sleep(1)
    assert world.informer.problem == "cannot list acceleratorclasses: it is forbidden"
    await checking
    assert world.informer.problem is None


async def test_a_leader_lists_once_and_nothing_before_it_leads(world: Informed) -> None:
    world.add("InferenceModel", "m")
    await world.informer.check()
    assert not list(world.cache.all(INFERENCE_MODELS))
    assert not world.informer.wanted.is_set()
    beginning = asyncio.create_task(world.informer.begin())
    relisting = asyncio.create_task(world.informer.relist_forever())
    await world.informer.wanted.wait()
    calls = world.kube.calls["list"]
    for place in world.informer.places:
        assert not world.informer.synced
        _list_as_kopf_does(world, place)
    await asyncio.wait_for(beginning, 1)
    assert world.models == [ModelKey(NAMESPACE, "m")]
    await asyncio.sleep(600)
    relisting.cancel()
    assert world.kube.calls["list"] == calls


def _list_as_kopf_does(world: Informed, place: WatchedPlace) -> None:
    resource = place.watch.resource
    for obj in world.kube.listing(resource).items:
        world.informer.on_event(resource, obj, deleted=False)
    world.informer.on_listed(place)


async def test_missed_deletion_is_found_within_an_hour(world: Informed) -> None:
    world.add("InferenceModel", "m")
    await world.informer.list_all()
    world.models.clear()
    world.kube.remove("InferenceModel", NAMESPACE, "m")
    relisting = asyncio.create_task(world.informer.relist_forever())
    await asyncio.sleep(4000)
    relisting.cancel()
    assert world.cache.get(INFERENCE_MODELS, NAMESPACE, "m") is None
    assert world.models == [ModelKey(NAMESPACE, "m")]


async def test_deletion_before_a_watch_restarted_is_found_in_seconds(world: Informed) -> None:
    """Also where no object of the kind is left, which kopf could report."""
    world.add("InferenceModel", "m")
    await world.informer.list_all()
    relisting = asyncio.create_task(world.informer.relist_forever())
    await asyncio.sleep(100)
    world.models.clear()
    world.kube.remove("InferenceModel", NAMESPACE, "m")
    listed = world.kube.calls["list"]
    for place in world.informer.places * 9:  # as each watch begins again
        world.informer.on_listed(place)
    await asyncio.sleep(10)
    assert world.models == [ModelKey(NAMESPACE, "m")]
    await asyncio.sleep(600)
    assert world.kube.calls["list"] - listed == 4, "one listing for each kind"
    relisting.cancel()


async def test_a_listing_is_read_page_by_page(world: Informed) -> None:
    names = [f"m{number}" for number in range(2 * PAGE + 1)]
    for name in names:
        world.add("InferenceModel", name)
    await world.informer.list_all()
    assert [key.name for key in world.models] == names
    world.kube.remove("InferenceModel", NAMESPACE, names[-1])
    await world.informer.list_all()
    assert [name for _, name in world.cache.names(INFERENCE_MODELS)] == names[:-1]


async def test_a_listing_that_begins_again_is_the_whole_of_what_exists(
    world: Informed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of a page that has expired may have been deleted since."""
    for name in ("a", "b"):
        world.add("InferenceModel", name)
    both = world.kube.listing(INFERENCE_MODELS)
    world.kube.remove("InferenceModel", NAMESPACE, "a")

    async def pages(resource: Resource, *_: object, **__: object) -> AsyncIterator[Listing]:
        if resource == INFERENCE_MODELS:
            yield Listing(both.items, both.resource_version, is_whole=True)
        yield world.kube.listing(resource)

    monkeypatch.setattr(world.kube, "pages", pages)
    await world.informer.list_all()
    assert [name for _, name in world.cache.names(INFERENCE_MODELS)] == ["b"]


async def test_a_listing_that_fails_is_tried_again_in_seconds(world: Informed) -> None:
    """As of an API server that has only begun."""
    world.add("InferenceModel", "m")
    await world.informer.list_all()
    relisting = asyncio.create_task(world.informer.relist_forever())
    world.kube.remove("InferenceModel", NAMESPACE, "m")
    world.kube.fail["list"] = [Forbidden("not yet")] * 7
    world.informer.on_listed(world.informer.places[0])
    await asyncio.sleep(60)
    relisting.cancel()
    assert world.cache.get(INFERENCE_MODELS, NAMESPACE, "m") is None


async def test_a_kind_that_the_cluster_may_lack_is_found_once_it_is_installed() -> None:
    world = Informed()
    world.kube.lacks = {"HTTPRoute"}
    world.add("InferenceModel", "m")
    await world.informer.list_all()
    assert not world.cache.is_known(HTTP_ROUTES)
    (place,) = (one for one in world.informer.places if one.watch.resource == HTTP_ROUTES)
    wait = world.informer.on_failed(place, "404 page not found", is_missing=True)
    assert wait == LACKING, "nothing but this kind waits for it"
    world.models.clear()
    world.informer.on_listed(place)
    assert world.cache.is_known(HTTP_ROUTES)
    assert world.models == [ModelKey(NAMESPACE, "m")]


async def test_a_kind_that_is_removed_is_forgotten_and_every_model_is_planned_again() -> None:
    world = Informed()
    world.add("InferenceModel", "m")
    world.add("HTTPRoute", "r")
    await world.informer.list_all()
    assert world.cache.get(HTTP_ROUTES, NAMESPACE, "r")
    world.models.clear()
    world.kube.lacks = {"HTTPRoute"}
    await world.informer.list_all()
    assert not world.cache.is_known(HTTP_ROUTES)
    assert world.cache.get(HTTP_ROUTES, NAMESPACE, "r") is None
    assert world.models == [ModelKey(NAMESPACE, "m")]
    world.kube.lacks = set()  # the same objects, as after an API server that could not tell
    await world.informer.list_all()
    assert world.cache.get(HTTP_ROUTES, NAMESPACE, "r")


def test_models_are_listed_last_and_the_claim_by_name() -> None:
    watched = watches("store")
    assert watched[-1].resource == INFERENCE_MODELS
    by_kind = {watch.resource: watch for watch in watched}
    assert by_kind[CLAIMS].fields == "metadata.name=store"
    assert by_kind[PODS].labels == "app.kubernetes.io/managed-by=enginewright"
    assert by_kind[INFERENCE_ENGINES].labels is None  # also those written by hand
