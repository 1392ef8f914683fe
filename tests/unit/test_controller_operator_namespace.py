"""What the operator makes in its own namespace goes with its Deployment."""

import logging
from collections.abc import Awaitable, Callable

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.election import Election, LeaseClaim
from enginewright.controller.execute import Executor
from enginewright.controller.images import CONFIG_MAP as IMAGES
from enginewright.controller.images import ImageReconciler
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.proposals import CONFIG_MAP as PROPOSALS
from enginewright.controller.proposals import KEY, ProposalReconciler
from enginewright.kube.resources import CONFIG_MAPS
from enginewright.manifests.probe_job import image_hash

from tests.support.fake_kube import CONFIG, FakeKube

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "enginewright", "namespace": "system"},
}


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.uid = self.kube.put(DEPLOYMENT)["metadata"]["uid"]
        self.home = OperatorNamespace(self.kube, "system", "enginewright")

    def images(self) -> ImageReconciler:
        cache = ObjectCache()
        return ImageReconciler(
            self.kube,
            cache,
            PodCatchUp(self.kube, cache),
            Executor(self.kube, cache),
            CONFIG,
            self.home,
            changed=lambda: None,
        )

    def proposals(self) -> ProposalReconciler:
        return ProposalReconciler(
            self.kube,
            ObjectCache(),
            CONFIG,
            self.home,
        )

    def put_config_map(self, name: str) -> None:
        metadata = {"name": name, "namespace": "system"}
        self.kube.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}})

    def owners(self) -> dict[str, list[str]]:
        """Return the uids of the owners of all that there is besides the Deployment."""
        return {
            name: [each["uid"] for each in obj["metadata"].get("ownerReferences") or ()]
            for (_, _, name), obj in self.kube.objects.items()
            if name != "enginewright" or obj["kind"] != "Deployment"
        }


async def _images(world: World) -> None:
    images = world.images()
    await images.load()
    await images.reconcile(image_hash(CONFIG.images["cpu"]))


async def _proposals(world: World) -> None:
    await world.proposals().reconcile(KEY)


async def _lease(world: World) -> None:
    claim = LeaseClaim(("system", "enginewright"), "me", frozenset({"*"}), world.home.owned)
    election = Election(world.kube, claim, lost=lambda _why: None, refused=lambda _why: None)
    assert await election._campaign()


@pytest.mark.parametrize("make", [_images, _lease])
async def test_what_is_made_is_owned(make: Callable[[World], Awaitable[None]]) -> None:
    world = World()
    await world.home.load()
    await make(world)
    assert list(world.owners().values()) == [[world.uid]]


@pytest.mark.parametrize(("name", "make"), [(IMAGES, _images), (PROPOSALS, _proposals)])
async def test_what_an_older_operator_has_made_is_owned_from_now_on(
    name: str, make: Callable[[World], Awaitable[None]]
) -> None:
    world = World()
    world.put_config_map(name)
    await world.home.load()
    await make(world)
    assert world.owners()[name] == [world.uid]
    version = world.kube.objects[(CONFIG_MAPS, "system", name)]["metadata"]["resourceVersion"]
    await make(world)
    stored = world.kube.objects[(CONFIG_MAPS, "system", name)]
    assert stored["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("deployment", [None, "gone"])
async def test_without_a_deployment_nothing_is_owned(
    deployment: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.home = OperatorNamespace(world.kube, "system", deployment)
    with caplog.at_level(logging.WARNING):
        await world.home.load()
    assert ("Deployment system/gone not found" in caplog.text) is (deployment is not None)
    world.put_config_map(IMAGES)
    await _images(world)
    assert set(map(tuple, world.owners().values())) == {()}
