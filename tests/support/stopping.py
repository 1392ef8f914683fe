"""An operator that is killed at one of its writes.

The same over the API server in memory and over a real one.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from enginewright.kube.api import JsonObject, KubeApi, Listing
from enginewright.kube.resources import Resource, resource_of
from enginewright.manifests.field_managers import FIELD_MANAGER


class Killed(BaseException):
    """The operator's process ends here: no handler of errors may see it."""


class StoppingApi:
    """`KubeApi` that kills the operator: `left` writes are seen to succeed, or all of them.

    With `applied`, the write at which it is killed reaches the API server. `watched` is called after every write
    that does, with the object and whether it is deleted. `log` names all writes, also the one at which it is killed.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        left: int | None = None,
        applied: bool = False,
        watched: Callable[[Resource, JsonObject, bool], None] = lambda *_: None,
    ) -> None:
        self._api = api
        self._watched = watched
        self.left = left
        self.applied = applied
        self.log: list[str] = []

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        return await self._api.get(resource, namespace, name)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Listing:
        return await self._api.list(resource, namespace, labels=labels, fields=fields)

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> AsyncIterator[Listing]:
        return self._api.pages(resource, namespace, labels=labels, fields=fields)

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        ends = self._ends(f"create {_name_write(obj)}")
        response = await self._api.create(obj)
        self._apply(response, ends)
        return response

    async def apply(
        self, obj: Mapping[str, Any], *, force: bool = True, manager: str = FIELD_MANAGER
    ) -> JsonObject:
        ends = self._ends(f"apply {_name_write(obj)} as {manager}")
        response = await self._api.apply(obj, force=force, manager=manager)
        self._apply(response, ends)
        return response

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        ends = self._ends(f"apply the status of {_name_write(obj)}")
        response = await self._api.apply_status(obj)
        self._apply(response, ends)
        return response

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        ends = self._ends(f"delete {resource.kind} {name}")
        remains = await self._api.delete(resource, namespace, name, uid=uid)
        if remains is None:
            identity = {"namespace": namespace, "name": name, "uid": uid}
            self._watched(resource, {"metadata": identity}, True)
            self._kill(ends)
        else:
            self._apply(remains, ends)
        return remains

    def _ends(self, write: str) -> bool:
        """Log a write; returns whether the operator is killed at it. Raises Killed before it is sent."""
        self.log.append(write)
        if self.left is None:
            return False
        self.left -= 1
        if self.left >= 0:
            return False
        self.left = None
        self._kill(not self.applied)
        return True

    def _apply(self, obj: JsonObject, ends: bool) -> None:
        self._watched(resource_of(obj["apiVersion"], obj["kind"]), obj, False)
        self._kill(ends)

    @staticmethod
    def _kill(ends: bool) -> None:
        if ends:
            raise Killed


def _name_write(obj: Mapping[str, Any]) -> str:
    # an Event's name is a hash of uids
    return f"{obj['kind']} {obj['reason'] if obj['kind'] == 'Event' else obj['metadata']['name']}"
