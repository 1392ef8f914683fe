"""What the controllers need of the API server.

A Protocol, because it has two sides: the client, and the in-memory fake of the unit tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from enginewright.kube.resources import Resource

JsonObject: TypeAlias = dict[str, Any]

FIELD_MANAGER: Final = "enginewright"  # as which the operator applies


@dataclass(frozen=True)
class Listing:
    """A list as of one moment, `resource_version`."""

    items: tuple[JsonObject, ...]  # with apiVersion and kind, which the API server leaves out
    resource_version: str


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
        ...


class KubeApi(Lists, Protocol):
    """Verbs in the API server's sense. All of them raise `KubeError`."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        """Return one object; NotFound when there is none."""
        ...

    async def apply(self, obj: Mapping[str, Any], *, force: bool = True) -> JsonObject:
        """Server-side apply `obj` whole; without `force`, Conflict where another writer owns."""
        ...

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        """Server-side apply the status of `obj`; NotFound when the object does not exist."""
        ...

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        """Delete the object with this uid, and what it owns in the background.

        Returns the object where it stays for a while (finalizers, grace period), else None; an
        object that is gone already is a success, one with another uid a Conflict.
        """
        ...
