"""An operator that is killed at one of its writes.

The same over the API server in memory and over a real one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from enginewright.kube.api import JsonObject, KubeApi, Listing
from enginewright.kube.resources import Resource
from enginewright.manifests.field_managers import FIELD_MANAGER


class Killed(BaseException):
    """The operator's process ends here: no handler of errors may see it."""


class StoppingApi:
    """`KubeApi` that kills the operator: `left` writes are seen to succeed; None: all are.

    With `applied`, the write at which it is killed reaches the API server. `watched` is called after every write
    that does.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        left: int | None = None,
        applied: bool = False,
        watched: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._watched = watched
        self.left = left
        self.applied = applied
        self.writes = 0

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

    async def apply(
        self, obj: Mapping[str, Any], *, force: bool = True, manager: str = FIELD_MANAGER
    ) -> JsonObject:
        ends = self._ends()
        response = await self._api.apply(obj, force=force, manager=manager)
        self._applied(ends)
        return response

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        ends = self._ends()
        response = await self._api.apply_status(obj)
        self._applied(ends)
        return response

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        ends = self._ends()
        response = await self._api.delete(resource, namespace, name, uid=uid)
        self._applied(ends)
        return response

    def _ends(self) -> bool:
        """Count a write; returns whether the operator is killed at it. Raises Killed before it is sent."""
        self.writes += 1
        if self.left is None:
            return False
        self.left -= 1
        if self.left >= 0:
            return False
        self.left = None
        if not self.applied:
            raise Killed
        return True

    def _applied(self, ends: bool) -> None:
        self._watched()
        if ends:
            raise Killed
