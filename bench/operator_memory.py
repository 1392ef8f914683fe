"""How much memory the operator takes for each model: `python bench/operator_memory.py [MODELS]`.

The objects are those that the operator's own controllers write for one model over six revisions, with what Kubernetes
adds to them, and are listed page by page as from an API server.
"""

import asyncio
import gc
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import enginewright.main  # noqa: F401 - what the process has loaded
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.engine_uses import EngineUses
from enginewright.controller.fleet import Fleet
from enginewright.controller.informer import Informer, watches
from enginewright.controller.routing import ModelKey, Router, Sinks
from enginewright.controller.shared import utc_now
from enginewright.controller.single_flight import SingleFlight
from enginewright.kube.api import KubeApi, Listing
from enginewright.kube.resources import Resource
from enginewright.plan.types import Config, StoreConfig

PAGE: Final = 200  # as the client's
REVISIONS: Final = 6
REPLICAS: Final = 3
NAMESPACES: Final = 20
# what Kubernetes adds to each object, which is listed and not kept
MANAGED: Final[list[Any]] = [
    {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": "v1",
        "time": "2026-11-21T12:00:00Z",
        "fieldsV1": {f"f:field{number}": {"f:value": {}} for number in range(40)},
    }
    for manager in ("enginewright", "kube-controller-manager")
]


def make_objects() -> dict[str, list[str]]:
    """Return one model's objects by kind, as JSON with places for its name and for hashes."""
    from tests.support.many_models import ManyModels  # noqa: PLC0415 - no part of the operator's process
    from tests.support.plan_objects import KINDS, publish_model  # noqa: PLC0415 - likewise

    world = ManyModels()
    for number in range(REVISIONS):
        world.put("a", source={"uri": f"https://models.example/a{number}.onnx"}, replicas=REPLICAS)
        world.resync()
        world.job_succeeds(publish_model(f"{number:064x}", f"{number:064x}"))
        for deployment in world.serving_deployments():
            world.complete(deployment["metadata"]["name"])
        world.resync()
    if world.ready("a") != ("True", "Serving"):
        raise RuntimeError(f"the model does not serve: {world.ready('a')}")
    objects = {
        KINDS[kind].kind: [json.dumps(obj) for obj in world.all(kind)]
        for kind in KINDS
        if kind not in ("Node", "AcceleratorClass")
    }
    # earlier revisions' Jobs, and so their pods, have been cleaned away
    newest = objects["Job"][-1:]
    names = [json.loads(job)["metadata"]["name"] for job in newest]
    pods = [
        pod for pod in objects["Pod"] if '"Job"' not in pod or any(name in pod for name in names)
    ]
    return objects | {"Job": newest, "Pod": pods}


class Cluster:
    """An API server with many copies of one model's objects, made when they are listed."""

    def __init__(self, objects: dict[str, list[str]], models: int) -> None:
        self._objects = objects
        self._models = models

    async def pages(self, resource: Resource, *_: object, **__: object) -> AsyncIterator[Listing]:
        """Yield pages, parsed from JSON as the client does."""
        items: list[dict[str, Any]] = []
        is_first = True
        for text in self._texts(self._objects.get(resource.kind, [])):
            items.append(json.loads(text))
            items[-1]["metadata"]["managedFields"] = json.loads(json.dumps(MANAGED))
            if len(items) == PAGE:
                yield Listing(tuple(items), "9", is_whole=is_first)
                items, is_first = [], False
        yield Listing(tuple(items), "9", is_whole=is_first)

    def _texts(self, texts: list[str]) -> Iterator[str]:
        for number in range(self._models):
            for text in texts:
                yield _make_own(text, number)


def _make_own(text: str, number: int) -> str:
    """Return an object of another model: other names, uids and hashes."""

    def another(match: re.Match[str]) -> str:
        return sha256(f"{match[0]} {number}".encode()).hexdigest()[: len(match[0])]

    text = re.sub(r"\b[0-9a-f]{64}\b", another, text)
    text = re.sub(r'"uid": "([^"]*)"', rf'"uid": "\1-{number:032x}"', text)
    text = re.sub(r'"a(-[^"]*)?"', rf'"resnet-{number}\1"', text)
    text = text.replace('"shop"', f'"team-{number % NAMESPACES}"')
    return re.sub(r'"resourceVersion": "\d+"', '"resourceVersion": "8"', text)


def measure_rss() -> float:
    """Return the process's resident memory, in MiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


async def list_all(cluster: Cluster, config: Config) -> tuple[Informer, list[object]]:
    """List everything into what the operator keeps of it."""
    cache = ObjectCache()
    api = cast("KubeApi", cluster)  # of which nothing but listing is used
    kept = [
        EngineUses(cache, lambda *_: None),
        Fleet(cache, {}, config.fleet, queue=lambda _: None, stopped=lambda _: None),
        SingleFlight(cache, now=utc_now),
        PodCatchUp(api, cache),
    ]
    queue: dict[ModelKey, None] = {}

    def ignore(_key: object = None) -> None:
        pass

    sinks = Sinks(
        model=lambda key: queue.update({key: None}),
        engine=ignore,
        accelerator_class=ignore,
        image=ignore,
        proposals=ignore,
        collection=ignore,
    )
    router = Router(cache, sinks, config.store)
    informer = Informer(api, router, watches(config.store.claim))
    await informer.list_all()
    return informer, [*kept, queue]


async def measure(models: int, objects: dict[str, list[str]]) -> None:
    """Print what this process takes for so many models."""
    config = Config(
        namespace="enginewright",
        images={},
        image_pull_policy="IfNotPresent",
        image_pull_secrets=(),
        store=StoreConfig("enginewright-store", "20Gi", "ReadWriteMany", None),
    )
    before = measure_rss()
    cluster = Cluster(objects, models)
    kept = await list_all(cluster, config)
    after = measure_rss()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kind = {kind: len(texts) for kind, texts in objects.items() if texts}
    print(f"objects of a model: {kind}")
    print(
        f"{models} models: {before:.0f} MiB at the start, {after:.0f} MiB with all,"
        f" at most {peak:.0f} MiB"
    )
    print(f"KiB a model: {(after - before) / models * 1024:.1f}")
    del kept


def main() -> None:
    """Make the objects in one process and measure in another, which takes no memory for playing a cluster."""
    models = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    if len(sys.argv) > 2:
        asyncio.run(measure(models, json.loads(Path(sys.argv[2]).read_text())))
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(make_objects(), file)
        file.flush()
        sys.exit(subprocess.call([sys.executable, sys.argv[0], str(models), file.name]))


main()
