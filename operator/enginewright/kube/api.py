"""What the controllers need from the API server: the client has it, and the in-memory fake of the unit tests."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from enginewright.kube.resources import Resource
from enginewright.manifests.field_managers import FIELD_MANAGER

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Listing:
    """A list at one `resource_version`, or a page of one."""

    items: tuple[JsonObject, ...]  # with apiVersion and kind, which items of a list do not have
    resource_version: str
    is_whole: bool = True  # complete, whatever pages came before


class Lists(Protocol):
    """Verb list. Raises `KubeError`."""

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Listing:
        """Return all objects that match the selectors; without a namespace, of all namespaces."""


class Creates(Protocol):
    """Verb create. Raises `KubeError`."""

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        """Create an object; Conflict if it exists."""


class KubeApi(Lists, Creates, Protocol):
    """The verbs that the operator uses. All of them raise `KubeError`."""

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> AsyncIterator[Listing]:
        """Yield what `list` returns page by page: thousands of objects at once take much memory."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        """Return one object; NotFound if it does not exist."""

    async def apply(
        self, obj: Mapping[str, Any], *, force: bool = True, manager: str = FIELD_MANAGER
    ) -> JsonObject:
        """Server-side apply all of `obj`; without `force`, Conflict if another manager owns a field."""

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        """Server-side apply the status of `obj`; NotFound when the object does not exist."""

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        """Delete the object with this uid, and its dependents in the background.

        Returns the object if it still exists (finalizers, grace period), else None. An object that
        is already gone is a success, one with another uid a Conflict.
        """
