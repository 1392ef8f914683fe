"""Gathers the state of a cluster, read-only. What may not be read is reported, and assumed."""

import json
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final, TypeVar

from enginewright.controller.settings import CONFIG_VARIABLE
from enginewright.controller.slim import slim
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import Forbidden, NotFound
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIM_TEMPLATES,
    CLAIMS,
    DEPLOYMENTS,
    HTTP_ROUTES,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    NODES,
    PODS,
    Resource,
    resource_of,
)
from enginewright.manifests.labels import ENGINE, MODEL, model_value

from enginewright_cli import images
from enginewright_cli.plan.cluster_state import CHART_STORE, CHILDREN, ClusterState
from enginewright_cli.plan.manifest import Applied

_OPERATOR: Final = "app.kubernetes.io/name=enginewright,app.kubernetes.io/component=operator"
_NO_IMAGE: Final = "unknown.invalid/enginewright-runtime-cpu"

Found = TypeVar("Found")


async def gather(api: KubeApi, models: Iterable[tuple[str, Applied]]) -> ClusterState:
    """Return the part of the cluster's state that concerns these models and their namespaces. Raises KubeError."""
    return await _Gathering(api).all(list(models))


class _Gathering:
    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._assumed: list[str] = []

    async def all(self, models: list[tuple[str, Applied]]) -> ClusterState:
        objects = list((await self._api.list(ACCELERATOR_CLASSES)).items)
        nodes = await self._nodes()
        image_facts = await self._read_if_allowed(images.list_images(self._api), "runtime images")
        config, namespace = await self._config(image_facts or {})
        claim = str(config["store"]["claim"])
        live_models: dict[tuple[str, str], JsonObject] = {}
        namespaces = list(dict.fromkeys(where for where, _ in models))
        for item in namespaces:
            objects += (await self._api.list(INFERENCE_ENGINES, item)).items
            objects += await self._one(CLAIMS, item, claim)
            for obj in (await self._api.list(INFERENCE_MODELS, item)).items:
                live_models[item, obj["metadata"]["name"]] = obj
        planned = {(where, model.name) for where, model in models} & live_models.keys()
        used = {(pair[0], name) for pair in planned for name in _engines(live_models[pair])}
        objects += [
            live
            for key, live in live_models.items()
            if key in planned or any((key[0], name) in used for name in _engines(live))
        ]
        for where, model in models:
            live = live_models.get((where, model.name), {})
            for kind in CHILDREN:
                objects += await self._list_labelled(kind, where, MODEL, model_value(model.name))
            for engine in _engines(live):
                objects += await self._list_labelled(PODS, where, ENGINE, engine)
        routed = {where for where, model in models if _asks_for_route(model)}
        return ClusterState(
            namespace=namespace,
            config=config,
            images=image_facts or {},
            objects=tuple(
                slim(resource_of(entry["apiVersion"], entry["kind"]), entry)
                for entry in (*objects, *(nodes or ()))
            ),
            assumed=tuple(self._assumed),
            nodes_known=nodes is not None,
            has_routes=all([await self._has(HTTP_ROUTES, item) for item in routed]),
            has_device_claims=all([await self._has(CLAIM_TEMPLATES, item) for item in namespaces]),
        )

    async def _nodes(self) -> tuple[JsonObject, ...] | None:
        listing = await self._read_if_allowed(self._api.list(NODES), "nodes")
        return None if listing is None else listing.items

    async def _has(self, resource: Resource, namespace: str) -> bool:
        """Return whether the cluster has a kind; assumed where its objects may not be read."""
        try:
            await self._read_if_allowed(
                self._api.list(resource, namespace), f"{resource.plural} of {namespace}"
            )
        except NotFound:
            return False
        return True

    async def _one(self, resource: Resource, namespace: str, name: str) -> list[JsonObject]:
        try:
            obj = await self._read_if_allowed(
                self._api.get(resource, namespace, name), f"{resource.plural} of {namespace}"
            )
        except NotFound:
            obj = None
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [] if obj is None else [{**obj, **kind}]

    async def _list_labelled(
        self, resource: Resource, namespace: str, label: str, value: str
    ) -> list[JsonObject]:
        listing = await self._read_if_allowed(
            self._api.list(resource, namespace, labels=f"{label}={value}"),
            f"{resource.plural} of {namespace}",
        )
        return [] if listing is None else list(listing.items)

    async def _config(self, image_facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the operator's settings and namespace, from its Deployment."""
        listing = await self._read_if_allowed(
            self._api.list(DEPLOYMENTS, labels=_OPERATOR), "Deployments of all namespaces"
        )
        for item in listing.items if listing else ():
            if (text := _variable(item)) is not None:
                return text, str(item["metadata"]["namespace"])
        if listing is not None:
            self._assumed.append(
                "the operator's Deployment was not found: applied models would not be reconciled"
            )
        self._assumed.append(
            "the operator's settings are not known; assumed: the images that it has probed, and"
            " the chart's default store"
        )
        variants = {facts.variant: reference for reference, facts in sorted(image_facts.items())}
        # the plan waits for an image that was not probed, as the operator would
        return {
            "images": variants or {"cpu": _NO_IMAGE},
            "store": CHART_STORE,
        }, images.CHART_NAMESPACE

    async def _read_if_allowed(self, reading: Awaitable[Found], what: str) -> Found | None:
        """Return the result; where access is forbidden, record an assumption and return None."""
        try:
            return await reading
        except Forbidden:
            refusal = f"you may not read {what}"
            if refusal not in self._assumed:
                self._assumed.append(refusal)
            return None


def _engines(model: JsonObject) -> list[str]:
    return [str(item["name"]) for item in (model.get("status") or {}).get("engines") or ()]


def _asks_for_route(model: Applied) -> bool:
    spec = model.body.get("spec")
    serving = spec.get("serving") if isinstance(spec, Mapping) else None
    return isinstance(serving, Mapping) and serving.get("route") is not None


def _variable(deployment: JsonObject) -> dict[str, Any] | None:
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        for item in container.get("env") or ():
            if item.get("name") == CONFIG_VARIABLE and item.get("value"):
                return _json(item["value"])
    return None


def _json(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
