"""The observed state: one slim copy of every object that the operator watches.

Three sources feed it: the first listing, kopf's watch events and the responses to our own writes.
They arrive in any order, so an older resource version or a deleted uid is ignored.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from enginewright.controller.observe import Kind, Viewed, Views, name_of
from enginewright.controller.slim import slim, without_version
from enginewright.kube.api import JsonObject, Listing
from enginewright.kube.resources import Resource
from enginewright.manifests import labels

_TOMBSTONES: Final = 4096  # deleted uids that are remembered, against late events

_OWNERS: Final = (labels.MODEL, labels.ENGINE)

_Name = tuple[str, str]  # namespace (empty for cluster-scoped kinds), name
_Listener = Callable[[_Name, JsonObject | None], None]
_Owner = tuple[str, str, str]  # label, namespace, name


class ObjectCache:
    """Objects by kind and name, children also by the label of their owner. Not thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[Resource, dict[_Name, JsonObject]] = {}
        self._children: dict[Resource, dict[_Owner, dict[str, JsonObject]]] = {}
        self._listeners: dict[Resource, list[_Listener]] = {}
        self._listed: set[Resource] = set()  # kinds that the API server has
        self._changes: Counter[Resource] = Counter()
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._views = Views()

    def observe(
        self, resource: Resource, obj: Mapping[str, Any], *, deleted: bool = False
    ) -> JsonObject | None:
        """Handle an event, or the response to a write; returns the object if a field that is read has changed."""
        if deleted:
            return self._forget(resource, obj)
        return self._take(resource, obj)

    def replace(self, resource: Resource, listing: Listing) -> list[JsonObject]:
        """Handle a complete listing, which newer objects outlive; returns what was changed or deleted."""
        self._listed.add(resource)
        changed = [taken for obj in listing.items if (taken := self._take(resource, obj))]
        listed = {name_of(obj) for obj in listing.items}
        as_of = _version(listing.resource_version)
        ghosts = [
            obj
            for name, obj in self._objects.get(resource, {}).items()
            if name not in listed and _version_of(obj) <= as_of
        ]
        changed += [gone for obj in ghosts if (gone := self._forget(resource, obj))]
        return changed

    def listen(self, resource: Resource, listener: _Listener) -> None:
        """Call `listener` with name and object whenever one of a kind changes; without an object when it is deleted."""
        self._listeners.setdefault(resource, []).append(listener)

    def is_known(self, resource: Resource) -> bool:
        """Return whether the API server had this kind at its last listing."""
        return resource in self._listed

    def forget_kind(self, resource: Resource) -> bool:
        """Forget a kind that the API server does not have; returns whether it had."""
        for obj in self.all(resource):
            self._forget(resource, obj)
        was_known = self.is_known(resource)
        self._listed.discard(resource)
        return was_known

    def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject | None:
        """Return an object, which must not be modified."""
        return self._objects.get(resource, {}).get((namespace or "", name))

    def all(self, resource: Resource) -> Iterable[JsonObject]:
        """Return a copy of the list of all objects of a kind."""
        return tuple(self._objects.get(resource, {}).values())

    def in_namespace(self, resource: Resource, namespace: str) -> tuple[JsonObject, ...]:
        """Return the objects of a kind in a namespace."""
        return tuple(
            obj for (where, _), obj in self._objects.get(resource, {}).items() if where == namespace
        )

    def changes(self, resource: Resource) -> int:
        """Return how often objects of a kind were created, changed or deleted."""
        return self._changes[resource]

    def views(self, kind: Kind[Viewed], objects: Iterable[JsonObject]) -> tuple[Viewed, ...]:
        """Return the views of cached objects; those of unchanged objects are reused."""
        return self._views.of(kind, objects)

    def of_model(self, resource: Resource, namespace: str, model: str) -> tuple[JsonObject, ...]:
        """Return the objects that carry the model's label, by name so that plans are stable."""
        return self._of((labels.MODEL, namespace, model), resource)

    def of_engine(self, resource: Resource, namespace: str, engine: str) -> tuple[JsonObject, ...]:
        """Return the objects that carry the engine's label, by name likewise."""
        return self._of((labels.ENGINE, namespace, engine), resource)

    def _of(self, owner: _Owner, resource: Resource) -> tuple[JsonObject, ...]:
        children = self._children.get(resource, {}).get(owner, {})
        return tuple(children[name] for name in sorted(children))

    def _take(self, resource: Resource, obj: Mapping[str, Any]) -> JsonObject | None:
        name = name_of(obj)
        before = self._objects.setdefault(resource, {}).get(name)
        if obj["metadata"].get("uid", "") in self._tombstones:
            return None
        if before is not None and _version_of(obj) <= _version_of(before):
            return None
        kept = slim(resource, obj)
        self._index(resource, before, kept)
        self._objects[resource][name] = kept
        self._notify(resource, name, kept)
        if before is not None and without_version(before) == without_version(kept):
            return None
        return kept

    def _forget(self, resource: Resource, obj: Mapping[str, Any]) -> JsonObject | None:
        uid = obj["metadata"].get("uid", "")
        self._tombstones[uid] = None
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)
        before = self.get(resource, *name_of(obj))
        if before is None or before["metadata"].get("uid", "") != uid:
            return None  # another object has taken the name
        del self._objects[resource][name_of(obj)]
        self._views.forget(resource, before)
        self._index(resource, before, None)
        self._notify(resource, name_of(obj), None)
        return before

    def _notify(self, resource: Resource, name: _Name, obj: JsonObject | None) -> None:
        self._changes[resource] += 1
        for listener in self._listeners.get(resource, ()):
            listener(name, obj)

    def _index(self, resource: Resource, old: JsonObject | None, new: JsonObject | None) -> None:
        index = self._children.setdefault(resource, {})
        for label in _OWNERS:
            if old is not None and (owner := _owner_by_label(old, label)):
                siblings = index[(label, *owner)]
                del siblings[old["metadata"]["name"]]
                if not siblings:
                    del index[(label, *owner)]
            if new is not None and (owner := _owner_by_label(new, label)):
                index.setdefault((label, *owner), {})[new["metadata"]["name"]] = new


def model_of(obj: Mapping[str, Any]) -> _Name | None:
    """Return namespace and name of the model whose label `obj` carries."""
    return _owner_by_label(obj, labels.MODEL)


def engine_of(obj: Mapping[str, Any]) -> _Name | None:
    """Return namespace and name of the InferenceEngine whose label `obj` carries."""
    return _owner_by_label(obj, labels.ENGINE)


def _owner_by_label(obj: Mapping[str, Any], label: str) -> _Name | None:
    metadata = obj["metadata"]
    owner = (metadata.get("labels") or {}).get(label)
    return (metadata.get("namespace") or "", owner) if owner else None


def _version_of(obj: Mapping[str, Any]) -> int:
    return _version(obj["metadata"].get("resourceVersion", ""))


def _version(text: str) -> int:
    """Return a resource version as a number; comparing them is allowed since Kubernetes 1.35 (KEP-5504)."""
    return int(text) if text.isdecimal() else 0
