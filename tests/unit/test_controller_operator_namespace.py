"""What the operator makes in its own namespace goes with its Deployment."""

import logging
from collections.abc import Awaitable, Callable

import pytest
from enginewright.controller.election import Election, LeaseClaim, steady_clock
from enginewright.controller.images import CONFIG_MAP as IMAGES
from enginewright.controller.proposals import CONFIG_MAP as PROPOSALS
from enginewright.controller.proposals import KEY
from enginewright.manifests.probe_job import image_hash

from tests.support.controller_world import World
from tests.support.plan_objects import CPU_IMAGE, make_object
from tests.support.plan_world import CONFIG

DEPLOYMENT = make_object("Deployment", "enginewright", CONFIG.namespace)


def with_deployment(name: str | None = "enginewright") -> World:
    """Return the operator's own namespace, with its Deployment; `name` is the one it was configured with."""
    world = World(namespace=CONFIG.namespace, deployment=name)
    world.put(DEPLOYMENT)
    return world


def owners(world: World) -> dict[str, list[str]]:
    """Return the uids of the owners of all that there is besides the Deployment."""
    return {
        name: [item["uid"] for item in obj["metadata"].get("ownerReferences") or ()]
        for (kind, _, name), obj in world.kube.objects.items()
        if kind != "Deployment"
    }


async def _images(world: World) -> None:
    await world.images.load()
    await world.images.reconcile(image_hash(CPU_IMAGE))


async def _proposals(world: World) -> None:
    await world.proposals.reconcile(KEY)


async def _lease(world: World) -> None:
    claim = LeaseClaim(
        (CONFIG.namespace, "enginewright"), "me", frozenset({"*"}), world.home.set_owner
    )
    election = Election(
        world.kube, claim, lost=lambda _why: None, refused=lambda _why: None, clock=steady_clock
    )
    assert await election._campaign()


@pytest.mark.parametrize("make", [_images, _lease])
async def test_new_objects_are_owned(make: Callable[[World], Awaitable[None]]) -> None:
    world = with_deployment()
    await world.home.load()
    await make(world)
    assert list(owners(world).values()) == [[world.the("Deployment")["metadata"]["uid"]]]


@pytest.mark.parametrize(("name", "make"), [(IMAGES, _images), (PROPOSALS, _proposals)])
async def test_objects_of_older_operators_become_owned(
    name: str, make: Callable[[World], Awaitable[None]]
) -> None:
    world = with_deployment()
    world.kube.put(make_object("ConfigMap", name, CONFIG.namespace, data={}))
    await world.home.load()
    await make(world)
    assert owners(world)[name] == [world.the("Deployment")["metadata"]["uid"]]
    version = world.get("ConfigMap", name)["metadata"]["resourceVersion"]
    world.restart()
    await world.home.load()
    await make(world)
    assert world.get("ConfigMap", name)["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("deployment", [None, "gone"])
async def test_nothing_is_owned_without_deployment(
    deployment: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = with_deployment(deployment)
    with caplog.at_level(logging.WARNING):
        await world.home.load()
    missing = f"Deployment {CONFIG.namespace}/gone not found"
    assert (missing in caplog.text) is (deployment is not None)
    world.kube.put(make_object("ConfigMap", IMAGES, CONFIG.namespace, data={}))
    await _images(world)
    assert set(map(tuple, owners(world).values())) == {()}
