"""The observed state: one slim copy of every object that the operator watches.

Three sources feed it: the first listing, kopf's watch events and the responses to our own writes.
They arrive in any order, so an older resource version or a deleted uid is ignored.

Objects are kept packed, all but those of the cluster, which every plan reads, and those that changed or were read last:
one that changes several times in a moment is packed once.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from enginewright.controller.indices import Index, list_indices
from enginewright.controller.observe import Kind, Viewed, name_of
from enginewright.controller.packing import Packed, Packer
from enginewright.controller.slim import slim, without_version
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import Resource
from enginewright.manifests import labels

_TOMBSTONES: Final = 4096  # deleted uids that are remembered, against late events
UNPACKED: Final = 512  # objects that were read last, of a dozen passes

_Name = tuple[str, str]  # namespace (empty for cluster-scoped kinds), name
_Listener = Callable[[_Name, JsonObject | None], None]


class Change(NamedTuple):
    """What an object was before, if it was there, and is now, if it is."""

    before: JsonObject | None
    now: JsonObject | None


class Unpacked(JsonObject):
    """An object that was read lately, with its view or the typed object that it was parsed to, once it has one."""

    __slots__ = ("view",)
    view: object


class _Objects:
    """The objects of one kind."""

    def __init__(self) -> None:
        self.packed: dict[str, dict[str, Packed]] = {}  # by namespace and name
        self.packer = Packer()
        # names in alphabetical order, so that plans are stable
        self.indices: dict[tuple[str, Index], tuple[str, ...]] = {}
        self.listeners: list[_Listener] = []

    def find(self, namespace: str, name: str) -> Packed | None:
        """Return an object, if there is one."""
        return self.packed.get(namespace, {}).get(name)

    def put(self, namespace: str, name: str, version: str) -> None:
        """Expect an object to be packed later."""
        self.packed.setdefault(namespace, {})[name] = Packed(version)

    def pack(self, namespace: str, name: str, obj: JsonObject) -> None:
        """Keep an object, unless it is kept since its last change."""
        held = self.packed[namespace][name]
        if not held.content:
            packed = self.packer.pack(without_version(obj), held.version)
            self.packed[namespace][name] = packed

    def remove(self, namespace: str, name: str) -> None:
        """Forget an object."""
        names = self.packed[namespace]
        del names[name]
        if not names:
            del self.packed[namespace]

    def reindex(
        self, namespace: str, name: str, old: frozenset[Index], new: frozenset[Index]
    ) -> None:
        """Find an object by what it is found by now, and no more by the rest of the `old`."""
        for index in old - new:
            key = namespace, index
            if left := tuple(other for other in self.indices[key] if other != name):
                self.indices[key] = left
            else:
                del self.indices[key]
        for index in new - old:
            key = namespace, index
            names = self.indices.get(key, ())
            place = bisect_left(names, name)
            self.indices[key] = (*names[:place], name, *names[place:])


class ObjectCache:
    """Objects by kind and name, and by what `list_indices` returns. Not thread-safe."""

    def __init__(self) -> None:
        self._kinds: dict[Resource, _Objects] = {}
        self._unpacked: OrderedDict[tuple[Resource, str, str], Unpacked] = OrderedDict()
        self._of_cluster: dict[tuple[Resource, str, str], Unpacked] = {}
        self._known: set[Resource] = set()  # kinds that the API server has
        self._tombstones: OrderedDict[str, None] = OrderedDict()

    def observe(
        self, resource: Resource, obj: Mapping[str, Any], *, deleted: bool = False
    ) -> Change | None:
        """Handle an event, or the response to a write; returns what has changed of the fields that are read."""
        if deleted:
            return self._forget(resource, obj)
        return self._take(resource, obj)

    def end_listing(
        self, resource: Resource, names: Collection[_Name], version: str
    ) -> list[JsonObject]:
        """Handle the names in a complete listing; returns the ghosts: what did not exist any more at its version."""
        as_of = _number(version)
        return [
            self._unpack(resource, *name)
            for name in self.names(resource)
            if name not in names and _number(self._get_version(resource, name)) <= as_of
        ]

    def listen(self, resource: Resource, listener: _Listener) -> None:
        """Call `listener` with name and object whenever one of a kind changes; without an object when it is deleted."""
        self._of(resource).listeners.append(listener)

    def is_known(self, resource: Resource) -> bool:
        """Return whether the API server has this kind."""
        return resource in self._known

    def know_kind(self, resource: Resource) -> bool:
        """Take note that the API server has a kind; returns whether that is new."""
        is_new = not self.is_known(resource)
        self._known.add(resource)
        return is_new

    def forget_kind(self, resource: Resource) -> bool:
        """Forget a kind that the API server does not have; returns whether it had."""
        for name in self.names(resource):  # they may come back as they were
            self._drop(resource, name)
        was_known = self.is_known(resource)
        self._known.discard(resource)
        return was_known

    def names_everywhere(self, resource: Resource, index: str, value: str) -> list[_Name]:
        """Return namespaces and names of the objects that an index has, in all namespaces."""
        return [
            (namespace, name)
            for namespace in self._of(resource).packed
            for name in self.find_names(resource, namespace, index, value)
        ]

    def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject | None:
        """Return an object, which must not be modified."""
        if self._of(resource).find(namespace or "", name) is None:
            return None
        return self._unpack(resource, namespace or "", name)

    def names(self, resource: Resource, namespace: str | None = None) -> list[_Name]:
        """Return namespaces and names of all objects of a kind, or of those in a namespace."""
        packed = self._of(resource).packed
        spaces = packed if namespace is None else packed.keys() & {namespace}
        return [(space, name) for space in spaces for name in packed[space]]

    def all(self, resource: Resource) -> Iterator[JsonObject]:
        """Yield all objects of a kind, one at a time: together they take much memory."""
        return self._yield_objects(resource, self.names(resource))

    def in_namespace(self, resource: Resource, namespace: str) -> tuple[JsonObject, ...]:
        """Return the objects of a kind in a namespace."""
        return tuple(self._yield_objects(resource, self.names(resource, namespace)))

    def views(self, kind: Kind[Viewed], objects: Iterable[JsonObject]) -> tuple[Viewed, ...]:
        """Return the views of cached objects; those of unchanged objects are reused while they are in use."""
        return tuple(_view(kind, obj) for obj in objects)

    def find(
        self, resource: Resource, namespace: str, index: str, value: str
    ) -> tuple[JsonObject, ...]:
        """Return the objects that an index has, by name so that plans are stable."""
        names = self.find_names(resource, namespace, index, value)
        return tuple(self._unpack(resource, namespace, name) for name in names)

    def find_names(
        self, resource: Resource, namespace: str, index: str, value: str
    ) -> tuple[str, ...]:
        """Return their names alone."""
        return self._of(resource).indices.get((namespace, (index, value)), ())

    def of_model(self, resource: Resource, namespace: str, model: str) -> tuple[JsonObject, ...]:
        """Return the objects that carry the model's label."""
        return self.find(resource, namespace, labels.MODEL, model)

    def of_engine(self, resource: Resource, namespace: str, engine: str) -> tuple[JsonObject, ...]:
        """Return the objects that carry the engine's label; of models, those that refer to it."""
        return self.find(resource, namespace, labels.ENGINE, engine)

    def _of(self, resource: Resource) -> _Objects:
        kind = self._kinds.get(resource)
        if kind is None:
            kind = self._kinds[resource] = _Objects()
        return kind

    def _yield_objects(self, resource: Resource, names: Iterable[_Name]) -> Iterator[JsonObject]:
        return (obj for name in names if (obj := self.get(resource, *name)) is not None)

    def _get_version(self, resource: Resource, name: _Name) -> str:
        packed = self._of(resource).find(*name)
        return packed.version if packed else ""

    def _unpack(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """Return an object that exists."""
        key = resource, namespace, name
        if not resource.namespaced:
            return self._of_cluster[key]
        obj = self._unpacked.get(key)
        if obj is None:
            obj = _make_unpacked(self._of(resource).packed[namespace][name].unpack())
            self._hold(key, obj)
        else:
            self._unpacked.move_to_end(key)
        return obj

    def _hold(self, key: tuple[Resource, str, str], obj: Unpacked) -> None:
        if not key[0].namespaced:
            self._of_cluster[key] = obj
            return
        self._unpacked[key] = obj
        self._unpacked.move_to_end(key)
        if len(self._unpacked) > UNPACKED:
            (resource, namespace, name), oldest = self._unpacked.popitem(last=False)
            self._of(resource).pack(namespace, name, oldest)

    def _take(self, resource: Resource, obj: Mapping[str, Any]) -> Change | None:
        name, kind = name_of(obj), self._of(resource)
        if obj["metadata"].get("uid", "") in self._tombstones:
            return None
        held = kind.find(*name)
        version = str(obj["metadata"].get("resourceVersion", ""))
        if held is not None and _number(version) <= _number(held.version):
            return None
        kept = _make_unpacked(slim(resource, obj))
        content = without_version(kept)
        before = self._unpack(resource, *name) if held is not None else None
        is_changed = before is None or without_version(before) != content
        if held is None or is_changed:
            kind.put(*name, version)
            old = list_indices(resource, before) if before is not None else frozenset()
            kind.reindex(*name, old, list_indices(resource, kept))
        else:
            held.version = version
            kept.view = cast("Unpacked", before).view
        self._hold((resource, *name), kept)
        if not is_changed:
            return None
        self._notify(resource, name, kept)
        return Change(before, kept)

    def _forget(self, resource: Resource, obj: Mapping[str, Any]) -> Change | None:
        uid = obj["metadata"].get("uid", "")
        self._tombstones[uid] = None
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)
        name = name_of(obj)
        before = self.get(resource, *name)
        if before is None or before["metadata"].get("uid", "") != uid:
            return None  # another object has taken the name
        self._drop(resource, name)
        return Change(before, None)

    def _drop(self, resource: Resource, name: _Name) -> None:
        """Forget an object that exists."""
        kind, before = self._of(resource), self._unpack(resource, *name)
        kind.remove(*name)
        kind.reindex(*name, list_indices(resource, before), frozenset())
        for held in (self._unpacked, self._of_cluster):
            held.pop((resource, *name), None)
        self._notify(resource, name, None)

    def _notify(self, resource: Resource, name: _Name, obj: JsonObject | None) -> None:
        for listener in self._of(resource).listeners:
            listener(name, obj)


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


def _make_unpacked(obj: JsonObject) -> Unpacked:
    unpacked = Unpacked(obj)
    unpacked.view = None
    return unpacked


def _view(kind: Kind[Viewed], obj: JsonObject) -> Viewed:
    """Return the view of an object; one kind has one view."""
    if not isinstance(obj, Unpacked):
        return kind.view(obj)
    if obj.view is None:
        obj.view = kind.view(obj)
    return cast("Viewed", obj.view)


def _number(version: str) -> int:
    """Return a resource version as a number; comparing them is allowed since Kubernetes 1.35 (KEP-5504)."""
    return int(version) if version.isdecimal() else 0
