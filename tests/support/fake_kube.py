"""An API server in memory: names, uids, resource versions, ownership of fields, no schemas.

Only for unit tests; the same behaviour is tested on a real API server in tests/apiserver.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from enginewright.controller.cache import ObjectCache
from enginewright.controller.events import EventRecorder
from enginewright.kube.api import JsonObject, Listing
from enginewright.kube.errors import Conflict, KubeError, NotFound
from enginewright.kube.resources import EVENTS, Resource, resource_of
from enginewright.plan.types import Config, StoreConfig

from tests.support.copies import copied

CONFIG: Final = Config(
    namespace="system",
    images={"cpu": "example.com/cpu:1"},
    image_pull_policy="Always",
    image_pull_secrets=(),
    store=StoreConfig("store", "1Gi", "ReadWriteMany", None),
)

_Key = tuple[Resource, str, str]


class FakeKube:
    """`KubeApi`; `calls` counts verbs, `fail` makes the next call of a verb raise."""

    def __init__(self) -> None:
        self.objects: dict[_Key, JsonObject] = {}
        self.calls: Counter[str] = Counter()
        self.fail: dict[str, list[KubeError]] = {}
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)

    @property
    def writes(self) -> int:
        return sum(
            self.calls[verb] for verb in ("apply", "apply_status", "create", "replace", "delete")
        )

    def put(self, obj: Mapping[str, Any]) -> JsonObject:
        """Have somebody else write `obj` whole."""
        resource = resource_of(obj["apiVersion"], obj["kind"])
        stored = copied(dict(obj))
        metadata = stored["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        known = self.objects.get(key)
        metadata.setdefault("uid", known["metadata"]["uid"] if known else f"u{next(self._uids)}")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[key] = stored
        return copied(stored)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        self._count("get")
        try:
            return copied(self.objects[(resource, namespace or "", name)])
        except KeyError:
            raise NotFound(f"{resource.plural} {name!r} not found", code=404) from None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Listing:
        self._count("list")
        wanted = dict(pair.split("=") for pair in (labels or "").split(",") if pair)
        name = (fields or "").removeprefix("metadata.name=")
        items = [
            copied(obj)
            for (kind, space, _), obj in self.objects.items()
            if kind == resource
            and namespace in (None, space)
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
            and name in ("", obj["metadata"]["name"])
        ]
        return Listing(tuple(items), str(next(self._versions)))

    async def apply(self, obj: Mapping[str, Any], *, force: bool = True) -> JsonObject:
        self._count("apply")
        resource = resource_of(obj["apiVersion"], obj["kind"])
        metadata = obj["metadata"]
        known = self.objects.get((resource, metadata.get("namespace", ""), metadata["name"]))
        if known is not None and not force and not _owned_alike(known, obj):
            raise Conflict(f"Apply failed with 1 conflict: {metadata['name']}", code=409)
        merged = _merge(known or {}, obj)
        if merged == known:
            return copied(merged)
        return self.put(merged)

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        self._count("apply_status")
        metadata = obj["metadata"]
        resource = resource_of(obj["apiVersion"], obj["kind"])
        known = self.objects.get((resource, metadata.get("namespace", ""), metadata["name"]))
        if known is None:
            raise NotFound(f"{metadata['name']} not found", code=404)
        if metadata.get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
            raise Conflict("the UID in the precondition is another one", code=409)
        changed = {**known, "status": copied(obj["status"])}
        return copied(known) if changed == known else self.put(changed)

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        self._count("create")
        if self._key(obj) in self.objects:
            raise Conflict(f"{obj['metadata']['name']} already exists", code=409)
        return self.put(obj)

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        self._count("replace")
        known = self.objects.get(self._key(obj))
        if known is None:
            raise NotFound(f"{obj['metadata']['name']} not found", code=404)
        if known["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified", code=409)
        return self.put(obj)

    @staticmethod
    def _key(obj: Mapping[str, Any]) -> _Key:
        metadata = obj["metadata"]
        resource = resource_of(obj["apiVersion"], obj["kind"])
        return resource, metadata.get("namespace", ""), metadata["name"]

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        self._count("delete")
        known = self.objects.get((resource, namespace or "", name))
        if known is None:
            return None
        if known["metadata"]["uid"] != uid:
            raise Conflict("the UID in the precondition is another one", code=409)
        if known["metadata"].get("finalizers"):
            known["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self.put(known)
        del self.objects[(resource, namespace or "", name)]
        return None

    def _count(self, verb: str) -> None:
        self.calls[verb] += 1
        if errors := self.fail.get(verb):
            raise errors.pop(0)


def _owned_alike(known: Mapping[str, Any], obj: Mapping[str, Any]) -> bool:
    uids = [
        {owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()}
        for one in (known, obj)
    ]
    return uids[0] == uids[1] and bool(uids[0])


def _merge(known: Any, wanted: Any) -> Any:
    if isinstance(known, Mapping) and isinstance(wanted, Mapping):
        merged = {key: _merge(known.get(key), value) for key, value in wanted.items()}
        return {**known, **merged}
    return copied(wanted)


class FakeCluster:
    """An API server in memory, and what a process of the operator has observed of it."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.restart()

    def restart(self) -> None:
        """A new process: its memory is gone, the listings bring back what is there."""
        self.cache = ObjectCache()
        self.recorder = EventRecorder(self.kube)
        for (resource, _, _), stored in self.kube.objects.items():
            self.cache.observe(resource, stored)

    def put(self, obj: Mapping[str, Any]) -> JsonObject:
        """Have somebody else write `obj` whole, and the watch show it."""
        stored = self.kube.put(obj)
        self.cache.observe(resource_of(obj["apiVersion"], obj["kind"]), stored)
        return stored

    async def events(self) -> list[str]:
        """Return the reasons of all Events so far."""
        writer = asyncio.create_task(self.recorder.run())
        await asyncio.wait_for(self.recorder.drain(), 5)
        writer.cancel()
        return [
            event["reason"] for (kind, _, _), event in self.kube.objects.items() if kind == EVENTS
        ]


def pod_of(job: Mapping[str, Any], status: Mapping[str, Any], **metadata: str) -> JsonObject:
    """Return a pod as the Job controller makes it, on a node."""
    known = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": known["name"], "uid": known["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{known['name']}-x",
            "namespace": known["namespace"],
            "labels": {**known["labels"], "batch.kubernetes.io/job-name": known["name"]},
            "ownerReferences": [owner],
            **metadata,
        },
        "spec": {"nodeName": "node-1"},
        "status": dict(status),
    }
