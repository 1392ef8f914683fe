"""An API server in memory: names, uids, versions, ownership of fields, garbage collection, no schemas.

Only for unit tests; the same behaviour is tested on a real API server in tests/apiserver.
"""

import copy
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

from enginewright.kube.api import JsonObject, Listing
from enginewright.kube.errors import Conflict, Invalid, KubeError, NotFound, Transient
from enginewright.kube.resources import Resource, resource_of
from enginewright.manifests.field_managers import FIELD_MANAGER

from tests.support.copies import copy_json

T = TypeVar("T")
Key = tuple[str, str, str]  # kind, namespace (empty for cluster-scoped kinds), name

START: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
PAGE: Final = 2  # objects
ANOTHER_CLIENT: Final = "kubectl"
_WRITES: Final = ("apply", "apply_status", "create", "replace", "delete")
_IMMUTABLE: Final = {
    "ControllerRevision": ("data",),
    "PersistentVolumeClaim": ("spec",),
    "Deployment": ("spec", "selector"),
    "Job": ("spec", "template"),
}


class FakeKube:
    """`KubeApi`; `calls` counts verbs, `fail` makes the next calls of a verb raise.

    After `refused_after` writes, if set, one fails. Writes in `refuses` fail for as long as they are there.
    `rewrite` changes what is applied, as a webhook or a schema may. No method ever waits.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: START) -> None:
        self.objects: dict[Key, JsonObject] = {}
        self.calls: Counter[str] = Counter()
        self.fail: dict[str, list[KubeError]] = {}
        self.lacks: set[str] = set()  # kinds whose CRD is not installed
        self.refused_after: int | None = None
        self.refuses: dict[tuple[str, str], KubeError] = {}  # by verb and kind
        self.rewrite: Callable[[JsonObject], object] = lambda _obj: None
        self._now = now
        # last applied configurations by manager, without status
        self._applied: dict[Key, dict[str, JsonObject]] = {}
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy, quickly: most of it is objects."""
        new = copy.copy(self)
        memo[id(self)] = new
        for name, value in vars(self).items():
            is_json = name in ("objects", "_applied")
            setattr(new, name, copy_json(value) if is_json else copy.deepcopy(value, memo))
        return new

    @property
    def writes(self) -> int:
        return sum(self.calls[verb] for verb in _WRITES)

    def all(self, kind: str) -> list[JsonObject]:
        """Return the stored objects of a kind, by namespace and name, without copying."""
        return [obj for key, obj in sorted(self.objects.items()) if key[0] == kind]

    def put(self, obj: Mapping[str, Any]) -> JsonObject:
        """Replace `obj` as another client."""
        stored, existing = copy_json(dict(obj)), self.objects.get(_key(obj))
        if existing is not None and _count(existing) != _count(stored):
            self._applied.setdefault(_key(obj), {})[ANOTHER_CLIENT] = {
                "spec": {"replicas": _count(stored)}
            }
            fields = stored["metadata"].get("managedFields")
            if fields == existing["metadata"].get("managedFields"):
                self._owns_count(ANOTHER_CLIENT, stored)
        return self._store(stored)

    def _store(self, stored: JsonObject) -> JsonObject:
        key = _key(stored)
        metadata, existing = stored["metadata"], self.objects.get(key)
        if existing is None:
            metadata.setdefault("uid", f"uid-{next(self._uids):04}")
            metadata.setdefault("generation", 1)
            metadata.setdefault("creationTimestamp", timestamp(self._now()))
        else:
            for field in ("uid", "creationTimestamp"):
                metadata.setdefault(field, existing["metadata"][field])
            changed = existing.get("spec") != stored.get("spec")
            metadata["generation"] = existing["metadata"]["generation"] + changed
        self.objects[key] = stored
        self.count_change(stored)
        return copy_json(stored)

    def count_change(self, stored: JsonObject) -> None:
        """Count that a kept object was changed in place."""
        stored["metadata"]["resourceVersion"] = str(next(self._versions))

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object with all that it owns."""
        uid = self.objects.pop((kind, namespace, name))["metadata"]["uid"]
        self._applied.pop((kind, namespace, name), None)
        for key, obj in list(self.objects.items()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if key in self.objects and any(owner["uid"] == uid for owner in owners):
                self.remove(*key)

    def listing(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Listing:
        """Return copies of the currently stored objects of a kind."""
        if resource.kind in self.lacks:
            raise NotFound("404 page not found", code=404)
        selector = dict(pair.split("=") for pair in (labels or "").split(",") if pair)
        selected = dict(pair.split("=") for pair in (fields or "").split(",") if pair)
        items = [
            copy_json(obj)
            for (kind, space, _), obj in self.objects.items()
            if kind == resource.kind
            and namespace in (None, space)
            and selector.items() <= (obj["metadata"].get("labels") or {}).items()
            and all(_read_field(obj, path) == value for path, value in selected.items())
        ]
        return Listing(tuple(items), str(next(self._versions)))

    # the operator's verbs

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        self._count("get")
        return copy_json(self._get_existing((resource.kind, namespace or "", name)))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Listing:
        self._count("list")
        return self.listing(resource, namespace, labels, fields)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> AsyncIterator[Listing]:
        whole = await self.list(resource, namespace, labels=labels, fields=fields)
        for number in range(0, max(1, len(whole.items)), PAGE):
            items = whole.items[number : number + PAGE]
            yield Listing(items, whole.resource_version, is_whole=number == 0)

    async def apply(
        self, obj: Mapping[str, Any], *, force: bool = True, manager: str = FIELD_MANAGER
    ) -> JsonObject:
        self._count("apply")
        self._admit("apply", obj["kind"])
        key = _key(obj)
        existing = self.objects.get(key)
        if existing is None:
            self._admit("create", obj["kind"])
        _refuse_another_uid(existing, obj)
        if existing is not None and not force:
            first = manager == FIELD_MANAGER and not _is_owned_alike(existing, obj)
            if first or _count(obj) not in (None, _count(existing)):
                raise Conflict(f"Apply failed with 1 conflict: {key[2]}", code=409)
        applied = self._applied.setdefault(key, {})
        others = [entry for name, entry in applied.items() if name != manager]
        merged = _merge(existing or {}, applied.get(manager, {}), obj, others)
        if existing is not None:
            _refuse_immutable(existing, merged)
        self.rewrite(merged)
        applied[manager] = _get_owned(obj)
        if obj["kind"] == "Deployment":
            merged["spec"].setdefault("replicas", 1)  # as the API server defaults it
            changed = existing is not None and _count(merged) != _count(existing)
            self._owns_count(manager if changed else "", merged)
        return (
            copy_json(existing)
            if existing is not None and merged == existing
            else self._store(merged)
        )

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        self._count("apply_status")
        existing = self._get_existing(_key(obj))
        version = existing["metadata"]["resourceVersion"]
        if obj["metadata"].get("resourceVersion", version) != version:  # a uid is not looked at
            raise Conflict("the object has been modified", code=409)
        changed = copy_json({**existing, "status": obj["status"]})
        self.rewrite(changed)
        return copy_json(existing) if changed == existing else self._store(changed)

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        self._count("create")
        if _key(obj) in self.objects:
            raise Conflict(f"{obj['metadata']['name']} already exists", code=409)
        return self.put(obj)

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        self._count("replace")
        existing = self._get_existing(_key(obj))
        if existing["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified", code=409)
        return self.put(obj)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        self._count("delete")
        self._admit("delete", resource.kind)
        key = (resource.kind, namespace or "", name)
        existing = self.objects.get(key)
        if existing is None:
            return None
        _refuse_another_uid(existing, {"metadata": {"uid": uid}})
        if existing["metadata"].get("finalizers"):
            existing["metadata"]["deletionTimestamp"] = timestamp(self._now())
            return self.put(existing)
        self.remove(*key)
        return None

    def _owns_count(self, only: str, stored: JsonObject) -> None:
        """Note in managedFields who owns spec.replicas: `only` one, or all that applied it."""
        applied = self._applied[_key(stored)]
        for manager, entry in applied.items():
            if only not in ("", manager):
                entry.get("spec", {}).pop("replicas", None)
        stored["metadata"]["managedFields"] = [
            {"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
            for manager, entry in sorted(applied.items())
            if "replicas" in entry.get("spec", {})
        ]

    def _get_existing(self, key: Key) -> JsonObject:
        if key not in self.objects:
            raise NotFound(f"{key[0]} {key[2]!r} not found", code=404)
        return self.objects[key]

    def _admit(self, verb: str, kind: str) -> None:
        if error := self.refuses.get((verb, kind)):
            raise error

    def _count(self, verb: str) -> None:
        self.calls[verb] += 1
        if errors := self.fail.get(verb):
            raise errors.pop(0)
        if self.refused_after is not None and verb in _WRITES:
            self.refused_after -= 1
            if self.refused_after < 0:
                self.refused_after = None
                raise Transient("the server is currently unable to handle the request", code=503)


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only uses the fake, which never suspends."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typeshed's StopIteration holds Any
    call.close()
    raise AssertionError("it waits")


def _read_field(obj: Mapping[str, Any], path: str) -> Any:
    """Return the value that a field selector names."""
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) or {}
    return value


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(obj: Mapping[str, Any]) -> Key:
    metadata = obj["metadata"]
    resource = resource_of(obj["apiVersion"], obj["kind"])
    return resource.kind, metadata.get("namespace") or "", metadata["name"]


def _count(obj: Mapping[str, Any]) -> int | None:
    return obj.get("spec", {}).get("replicas") if obj["kind"] == "Deployment" else None


def _refuse_another_uid(existing: Mapping[str, Any] | None, obj: Mapping[str, Any]) -> None:
    uid = obj["metadata"].get("uid")
    if uid is not None and (existing is None or uid != existing["metadata"]["uid"]):
        raise Conflict("the UID in the precondition is another one", code=409)


def _refuse_immutable(existing: JsonObject, desired: JsonObject) -> None:
    path = _IMMUTABLE.get(existing["kind"], ())
    old: Any = existing
    new: Any = desired
    for step in path:
        old, new = old.get(step, {}), new.get(step, {})
    if path and old != new:
        raise Invalid(f"{existing['kind']} {'.'.join(path)}: field is immutable", code=422)


def _is_owned_alike(existing: Mapping[str, Any], obj: Mapping[str, Any]) -> bool:
    uids = [
        {owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()}
        for one in (existing, obj)
    ]
    return uids[0] == uids[1] and bool(uids[0])


def _get_owned(obj: Mapping[str, Any]) -> JsonObject:
    """Return a copy of the fields that the applier of `obj` owns."""
    metadata = {
        field: obj["metadata"][field]
        for field in ("labels", "annotations", "ownerReferences")
        if field in obj["metadata"]
    }
    return copy_json({**{k: v for k, v in obj.items() if k != "status"}, "metadata": metadata})


def _merge(existing: Any, before: Any, desired: Any, others: Sequence[Any]) -> Any:
    """Return `existing` with the desired fields, without those applied `before` that no manager desires any more."""
    if not isinstance(existing, Mapping) or not isinstance(desired, Mapping):
        return copy_json(desired)
    applied = before if isinstance(before, Mapping) else {}
    theirs = [item for item in others if isinstance(item, Mapping)]
    kept = {
        key: item
        for key, item in existing.items()
        if key not in applied or any(key in their for their in theirs)
    }
    return {
        **kept,
        **{
            key: _merge(
                existing.get(key), applied.get(key), item, [other.get(key) for other in theirs]
            )
            for key, item in desired.items()
        },
    }
