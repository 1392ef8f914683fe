"""The writes of a plan: apply, delete, write the status.

An object is not written if it is already as intended: its annotation has the hash of the intent, and its
content still matches, or is what the API server returned for our last apply. So a restart writes nothing, an
edit is reverted, and an API server that rewrites our values cannot cause endless writes.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from enginewright_contract.base import canonical_json
from enginewright_contract.keys import sha256_text

from enginewright.controller.cache import ObjectCache
from enginewright.controller.drift import Path, differences, holds
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import Conflict, KubeError, NotFound
from enginewright.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    Resource,
    resource_of,
)
from enginewright.manifests import labels
from enginewright.manifests.field_managers import (
    FIELD_MANAGER,
    HANDOVER_MANAGER,
    METADATA_MANAGER,
)
from enginewright.plan.types import MetadataIntent, ObjectRef, ReplicasHandover
from enginewright.plan.writes import STUCK_REMEDY

INTENT_ANNOTATION: Final = "enginewright.dev/intent"
_REMEMBERED: Final = 16384
_NAMED_FIELDS: Final = 3  # of those that were edited
_OWNER_KINDS: Final = {entry.kind: entry for entry in (INFERENCE_MODELS, INFERENCE_ENGINES)}

_logger = logging.getLogger(__name__)


class NameTaken(KubeError):  # noqa: N818 - says what is wrong
    """An object that Enginewright does not manage has the name that is needed."""


class StillTerminating(KubeError):  # noqa: N818 - says what is wrong
    """An object that is being deleted has the name that is needed; `since` is empty where its owner is gone."""

    remedy = STUCK_REMEDY

    def __init__(self, message: str, since: str = "") -> None:
        super().__init__(message)
        self.since = since


class Executor:
    """Writes for all controllers; remembers the API server's responses."""

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        *,
        written: Callable[[Resource, JsonObject], None] = lambda _resource, _obj: None,
    ) -> None:
        """Initialize; `written` is called with every object that was written: its watch event queues nothing."""
        self._api = api
        self._cache = cache
        self._written = written
        self._responses: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def apply(
        self,
        intent: Mapping[str, Any],
        on_revert: Callable[[str], None] = lambda _message: None,
    ) -> bool:
        """Bring one object to its intended state; returns whether anything was written.

        `on_revert` is called with a message if this reverts another manager's edit. Raises KubeError;
        StillTerminating and NameTaken if the name belongs to another object.
        """
        intent = _stamp(intent)
        resource = resource_of(intent["apiVersion"], intent["kind"])
        metadata = intent["metadata"]
        observed = self._cache.get(resource, metadata.get("namespace"), metadata["name"])
        if observed is None:
            response = await self._first_apply(resource, intent)
        else:
            if _is_terminating(observed, intent):
                if owner := self._living_owner(observed):
                    raise NameTaken(f"{_name(intent)} is owned by {owner}: rename one of the two")
                raise StillTerminating(
                    "it is still being deleted", observed["metadata"].get("deletionTimestamp") or ""
                )
            # A Job's template is immutable: its name contains a hash of everything that decides it.
            if resource == JOBS or self._is_settled(intent, observed):
                return False
            # an edit since our last apply of the same intent
            same = _intent(intent) == _intent(observed)
            edited = list(differences(intent, observed)) if same else []
            editor = await self._editor(resource, observed, edited) if edited else ""
            response = await self._api.apply(intent)
            # fields that the API server or a webhook rewrites each time are not edits
            rewritten = set(differences(intent, response))
            if edited := [pair for pair in edited if pair not in rewritten]:
                on_revert(
                    f"reverted {editor}'s change of {_show_fields(edited)} in {_name(intent)}:"
                    " edit or scale the InferenceModel instead"
                )
        self._keep(resource, response)
        self._remember((response["metadata"]["uid"], "content"), _content(response))
        _logger.info("applied %s", _name(intent))
        return True

    async def set_metadata(self, intent: MetadataIntent) -> bool:
        """Set labels and annotations of an observed object; returns whether anything was written."""
        resource = resource_of(intent.api_version, intent.kind)
        observed = self._cache.get(resource, intent.namespace, intent.name)
        if observed is None or observed["metadata"]["uid"] != intent.uid:
            return False
        metadata = observed["metadata"]
        if metadata.get("deletionTimestamp") or (
            intent.labels.items() <= (metadata.get("labels") or {}).items()
            and intent.annotations.items() <= (metadata.get("annotations") or {}).items()
        ):
            return False
        try:
            response = await self._api.apply(intent.manifest(), manager=METADATA_MANAGER)
        except (Conflict, NotFound):  # it was deleted meanwhile
            return False
        self._keep(resource, response)
        _logger.info("set labels and annotations of %s", _name(observed))
        return True

    async def hand_over(self, handover: ReplicasHandover) -> bool:
        """Have a second manager own a Deployment's count unless it was changed; returns whether it does."""
        body = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {
                "namespace": handover.namespace,
                "name": handover.name,
                "uid": handover.uid,
            },
            "spec": {"replicas": handover.replicas},
        }
        try:
            response = await self._api.apply(body, force=False, manager=HANDOVER_MANAGER)
        except (Conflict, NotFound):  # it was scaled or deleted meanwhile
            return False
        self._keep(DEPLOYMENTS, response)
        _logger.info("shared the ownership of the replicas of %s", _name(response))
        return True

    async def delete(self, ref: ObjectRef) -> bool:
        """Delete the observed object with this name, never a later one."""
        resource = resource_of(ref.api_version, ref.kind)
        observed = self._cache.get(resource, ref.namespace, ref.name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            return False
        uid = observed["metadata"]["uid"]
        remains = await self._api.delete(resource, ref.namespace, ref.name, uid=uid)
        self._cache.observe(resource, remains or observed, deleted=remains is None)
        _logger.info("deleted %s", _name(observed))
        return True

    async def write_status(self, observed: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Write the complete status if it differs from the observed one; returns whether anything was written.

        Never to a later object of this name, which the cache may not have yet. The API server ignores a
        status's uid, but refuses it with a version that is not the latest one.
        """
        status = _without_nulls(status)
        before = observed.get("status") or {}
        if status == before:
            return False
        uid, name = observed["metadata"]["uid"], observed["metadata"]["name"]
        if self._is_remembered((uid, "status"), canonical_json([status, before])):
            return False
        resource = resource_of(observed["apiVersion"], observed["kind"])
        namespace = observed["metadata"].get("namespace")
        latest = self._cache.get(resource, namespace, name)
        if latest is None or latest["metadata"]["uid"] != uid:
            return False
        try:
            try:
                response = await self._api.apply_status(_with_status(latest, observed, status))
            except Conflict:
                latest = await self._api.get(resource, namespace, name)
                if latest["metadata"]["uid"] != uid:
                    return False
                response = await self._api.apply_status(_with_status(latest, observed, status))
        except NotFound:
            return False
        self._keep(resource, response)
        self._remember((uid, "status"), canonical_json([status, response.get("status") or {}]))
        _logger.info("wrote the status of %s", _name(observed))
        return True

    def _keep(self, resource: Resource, response: JsonObject) -> None:
        self._cache.observe(resource, response)
        self._written(resource, response)

    async def _first_apply(self, resource: Resource, intent: Mapping[str, Any]) -> JsonObject:
        """Apply an object that is not in the cache, without taking over another manager's."""
        try:
            return await self._api.apply(intent, force=False)
        except Conflict:
            metadata = intent["metadata"]
            live = await self._api.get(resource, metadata.get("namespace"), metadata["name"])
            if not _same_owner(intent, live):
                owner = next(iter(_owners(intent)), INFERENCE_MODELS.kind)
                raise NameTaken(
                    f"{_name(intent)} exists and is not managed by Enginewright:"
                    f" delete it or rename the {owner}"
                ) from None
            return await self._api.apply(intent)

    async def _editor(
        self, resource: Resource, observed: Mapping[str, Any], fields: Sequence[Path]
    ) -> str:
        """Return who owns a field of `observed` besides us, from its managed fields."""
        metadata = observed["metadata"]
        try:
            live = await self._api.get(resource, metadata.get("namespace"), metadata["name"])
        except KubeError:
            return "another client"
        owners = [
            str(item.get("manager") or "")
            for item in live["metadata"].get("managedFields") or ()
            if item.get("manager") != FIELD_MANAGER
            and item.get("subresource") != "status"
            and any(_owns(item.get("fieldsV1") or {}, field) for field in fields)
        ]
        return " and ".join(sorted(filter(None, owners))) or "another client"

    def _living_owner(self, observed: Mapping[str, Any]) -> str | None:
        metadata = observed["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        for item in metadata.get("ownerReferences") or ():
            if kind := _OWNER_KINDS.get(item["kind"]):
                owner = self._cache.get(kind, metadata.get("namespace"), item["name"])
                if owner and owner["metadata"]["uid"] == item["uid"]:
                    return f"{item['kind']} {item['name']}"
        return None

    def _is_settled(self, intent: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
        if _intent(intent) != _intent(observed):
            return False
        if not holds(intent["metadata"], observed["metadata"]):
            return False
        body = {k: v for k, v in intent.items() if k != "metadata"}
        return holds(body, observed) or self._is_remembered(
            (observed["metadata"]["uid"], "content"), _content(observed)
        )

    def _remember(self, key: tuple[str, str], value: str) -> None:
        self._responses[key] = sha256_text(value)
        self._responses.move_to_end(key)
        if len(self._responses) > _REMEMBERED:
            self._responses.popitem(last=False)

    def _is_remembered(self, key: tuple[str, str], value: str) -> bool:
        return self._responses.get(key) == sha256_text(value)


def _with_status(
    latest: Mapping[str, Any], observed: Mapping[str, Any], status: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what writes a status to this version of an object, and to no other one."""
    names = ("name", "namespace", "resourceVersion")
    return {
        "apiVersion": observed["apiVersion"],
        "kind": observed["kind"],
        "metadata": {key: latest["metadata"][key] for key in names if key in latest["metadata"]},
        "status": status,
    }


def _show_fields(fields: Sequence[Path]) -> str:
    """Return the first fields as kubectl explain writes them."""
    shown = [".".join(field).replace(".[", "[") for field in fields[:_NAMED_FIELDS]]
    return ", ".join(shown)


def _owns(fields: Mapping[str, Any], path: Path) -> bool:
    """Return whether managed fields (FieldsV1) contain a path; lists are not descended into."""
    for part in path:
        if part.startswith("["):
            return True
        if f"f:{part}" not in fields:
            return False
        fields = fields[f"f:{part}"]
    return True


def _stamp(intent: Mapping[str, Any]) -> JsonObject:
    """Return `intent` with its own hash, which shows later that a field was dropped."""
    metadata = intent["metadata"]
    digest = sha256_text(canonical_json(intent))
    annotations = {**(metadata.get("annotations") or {}), INTENT_ANNOTATION: digest}
    return {**intent, "metadata": {**metadata, "annotations": annotations}}


def _intent(obj: Mapping[str, Any]) -> str | None:
    intent: str | None = (obj["metadata"].get("annotations") or {}).get(INTENT_ANNOTATION)
    return intent


def _owners(obj: Mapping[str, Any]) -> dict[str, str]:
    return {item["kind"]: item["uid"] for item in obj["metadata"].get("ownerReferences") or ()}


def _content(obj: Mapping[str, Any]) -> str:
    """Return all but metadata and status, which others write."""
    return canonical_json({k: v for k, v in obj.items() if k not in ("metadata", "status")})


def _is_terminating(observed: Mapping[str, Any], intent: Mapping[str, Any]) -> bool:
    """Return whether it is being deleted, or will be because its owner was deleted."""
    if observed["metadata"].get("deletionTimestamp"):
        return True
    old, new = _owners(observed), _owners(intent)
    return any(old[kind] != new[kind] for kind in old.keys() & new.keys())


def _same_owner(intent: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether a live object that was not in the cache is the intended one."""
    if owners := _owners(intent):
        return owners.items() <= _owners(live).items()
    managers = [
        (obj["metadata"].get("labels") or {}).get(labels.MANAGED_BY) for obj in (intent, live)
    ]
    return managers[0] is not None and managers[0] == managers[1]


def _name(obj: Mapping[str, Any]) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value
