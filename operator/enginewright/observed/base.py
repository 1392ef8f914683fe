"""What all views have in common: the identity of the object, and its owners."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from enginewright.manifests.labels import CANARY, TRACK

Json = Mapping[str, Any]  # part of an object as the API server sends it


@dataclass(frozen=True, kw_only=True)
class ObservedObject:
    """Identity of an observed object."""

    name: str
    namespace: str  # empty for cluster-scoped kinds
    uid: str
    labels: Mapping[str, str]
    owners: Mapping[str, str]  # kind -> uid
    created: str  # RFC 3339
    deleted_at: str  # RFC 3339, if its deletion was requested

    @classmethod
    def from_object(cls, obj: Json) -> Self:
        """Return the view of an object of which nothing else is read."""
        return cls(**identity(obj))

    @property
    def deleting(self) -> bool:
        """Whether its deletion was requested."""
        return self.deleted_at != ""

    @property
    def is_canary(self) -> bool:
        """Whether it runs a new revision beside the serving one."""
        return self.label(TRACK) == CANARY

    def label(self, name: str) -> str:
        """Return a label's value; empty if the object does not have it."""
        return self.labels.get(name, "")


def identity(obj: Json) -> dict[str, Any]:
    """Return the fields of `ObservedObject`, as keyword arguments."""
    metadata = obj["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata.get("namespace") or "",
        "uid": metadata.get("uid") or "",
        "labels": metadata.get("labels") or {},
        "owners": {item["kind"]: item["uid"] for item in metadata.get("ownerReferences") or ()},
        "created": str(metadata.get("creationTimestamp") or ""),
        "deleted_at": str(metadata.get("deletionTimestamp") or ""),
    }


@dataclass(frozen=True)
class ObservedCondition:
    """A condition of a built-in kind."""

    type: str
    status: str
    reason: str
    message: str
    since: str  # RFC 3339, if set


def conditions(obj: Json) -> tuple[ObservedCondition, ...]:
    """Return the conditions of an object's status."""
    return tuple(
        ObservedCondition(
            type=str(item.get("type") or ""),
            status=str(item.get("status") or ""),
            reason=str(item.get("reason") or ""),
            message=str(item.get("message") or ""),
            since=str(item.get("lastTransitionTime") or ""),
        )
        for item in status(obj).get("conditions") or ()
    )


def status(obj: Json) -> Json:
    """Return the status, empty before a controller has written one."""
    return obj.get("status") or {}


def spec(obj: Json) -> Json:
    """Return the spec."""
    return obj.get("spec") or {}
