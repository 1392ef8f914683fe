"""The client: `kubernetes.aio`'s transport and credentials, plain dicts, retries, metrics.

The generated models of the library are not used: they reject unknown fields, cost a conversion each
way, and do not include our resources.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from enginewright.kube.api import JsonObject, Listing
from enginewright.kube.connection import authorization_of
from enginewright.kube.errors import (
    Expired,
    Forbidden,
    NotFound,
    NotSent,
    Transient,
    error_from,
)
from enginewright.kube.metrics import FAILED, RestMetrics
from enginewright.kube.resources import PODS, Resource, resource_of
from enginewright.manifests.field_managers import FIELD_MANAGER

USER_AGENT: Final = "enginewright-operator"

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_ATTEMPTS: Final = 4
_FIRST_BACKOFF: Final = 0.2  # seconds, doubled each time
_LONGEST_WAIT: Final = 5.0  # a longer Retry-After is left to the work queue
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, connect=10)
_PAGE: Final = 200  # objects, which may take 20 MiB until the next ones are there
_PAGING: Final = ("limit", "continue")
_WARNINGS_REMEMBERED: Final = 100

_logger = logging.getLogger(__name__)

_Content = TypeVar("_Content")


def _parse(content: bytes) -> JsonObject:
    try:
        parsed: JsonObject = json.loads(content)
    except ValueError as error:
        raise Transient(
            "the response is not JSON: a proxy may have sent it instead of the API server"
        ) from error
    return parsed


class KubeClient:
    """`KubeApi` over one connection pool, which `load` opens again after a 401; `may_write` precedes writes."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Configuration]],
        metrics: RestMetrics,
        *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._load = load
        self._may_write = may_write
        self._metrics = metrics
        self._transport: RESTClientObject | None = None
        self._configuration = Configuration()
        self._reloading = asyncio.Lock()
        self._warnings: set[str] = set()

    async def close(self) -> None:
        """Close the connections; requests in progress fail."""
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        """Return one object; NotFound if it does not exist."""
        return await self._request("GET", resource.path(namespace, name))

    async def read_log(
        self, namespace: str, pod: str, container: str, *, tail: int, previous: bool = False
    ) -> str:
        """Return the last `tail` lines of a container's log, with `previous` of its run before."""
        query = {"container": container, "tailLines": str(tail)}
        if previous:
            query["previous"] = "true"
        path = PODS.path(namespace, pod, "log")
        content = await self._send("GET", path, query=query, read=bytes)
        return content.decode(errors="replace")

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Listing:
        """Return all matching objects, read in pages; the resource version is the last page's."""
        items: tuple[JsonObject, ...] = ()
        version = ""
        async for page in self.pages(resource, namespace, labels=labels, fields=fields):
            items = page.items if page.is_whole else (*items, *page.items)
            version = page.resource_version
        return Listing(items, version)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> AsyncIterator[Listing]:
        """Yield all matching objects in pages; one that is whole replaces those before it, which have expired."""
        query = {"limit": str(_PAGE)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        path = resource.path(namespace)
        is_first, token = True, ""
        while is_first or token:
            try:
                page = await self._request("GET", path, query=query)
            except Expired:
                is_first = True
                query = {name: value for name, value in query.items() if name not in _PAGING}
                page = await self._request("GET", path, query=query)
            for item in page.get("items") or ():
                item["apiVersion"] = resource.api_version
                item["kind"] = resource.kind
            metadata = page["metadata"]
            items = tuple(page.get("items") or ())
            yield Listing(items, metadata["resourceVersion"], is_whole=is_first)
            is_first, token = False, metadata.get("continue") or ""
            query |= {"continue": token}
            del page, items  # before the next ones are there

    async def apply(
        self, obj: Mapping[str, Any], *, force: bool = True, manager: str = FIELD_MANAGER
    ) -> JsonObject:
        """Server-side apply all of `obj`; without `force`, Conflict if another manager owns a field."""
        return await self._apply(obj, None, force=force, manager=manager)

    async def apply_status(self, obj: Mapping[str, Any]) -> JsonObject:
        """Server-side apply the status of `obj`; NotFound when the object does not exist."""
        return await self._apply(obj, "status", force=True, manager=FIELD_MANAGER)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        changes: Mapping[str, Any],
        *,
        manager: str,
    ) -> JsonObject:
        """Merge `changes` (RFC 7386) into an object and return it; Conflict if they have another uid."""
        return await self._request(
            "PATCH",
            resource.path(namespace, name),
            query={"fieldManager": manager},
            body=changes,
            content_type=_MERGE,
        )

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        """Create `obj`; Conflict if its name is taken."""
        resource = resource_of(obj["apiVersion"], obj["kind"])
        path = resource.path(obj["metadata"].get("namespace"))
        return await self._request("POST", path, body=obj)

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        """Replace `obj`; Conflict if its resource version is no longer the current one."""
        resource = resource_of(obj["apiVersion"], obj["kind"])
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return await self._request("PUT", path, body=obj)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str
    ) -> JsonObject | None:
        """Delete in the background; return the object if it still exists, else None."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            response = await self._request("DELETE", resource.path(namespace, name), body=options)
        except NotFound:
            return None
        return None if response.get("kind") == "Status" else response

    async def _apply(
        self, obj: Mapping[str, Any], subresource: str | None, *, force: bool, manager: str
    ) -> JsonObject:
        resource = resource_of(obj["apiVersion"], obj["kind"])
        metadata = obj["metadata"]
        return await self._request(
            "PATCH",
            resource.path(metadata.get("namespace"), metadata["name"], subresource),
            query={"fieldManager": manager, "force": "true" if force else "false"},
            body=obj,
            content_type=_APPLY,
        )

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> JsonObject:
        """Return what the API server answers; raises `KubeError`."""
        return await self._send(
            method, path, query=query, body=body, content_type=content_type, read=_parse
        )

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        read: Callable[[bytes], _Content],
    ) -> _Content:
        """Send until it succeeds, fails permanently or `_ATTEMPTS` are used up; `read` may raise Transient."""
        target = f"{path}?{urlencode(query)}" if query else path
        reloaded = False
        attempt = 0
        while True:
            attempt += 1
            transport = await self._connect()
            try:
                return read(await self._attempt(transport, method, target, body, content_type))
            except Forbidden as error:
                if error.code != 401 or reloaded:
                    raise
                reloaded = True
                await self._reload(stale=transport)
            except Transient as error:
                wait = self._wait_before_next(attempt, error)
                if wait is None:
                    raise
                _logger.debug("%s %s failed, retrying: %s", method, path, error.message)
                await asyncio.sleep(wait)

    @staticmethod
    def _wait_before_next(attempt: int, error: Transient) -> float | None:
        """Return seconds to wait, or None to give up: no attempts left, or too long for a worker."""
        if attempt >= _ATTEMPTS:
            return None
        # Jitter: requests rejected at the same time must not be repeated at the same time.
        backoff = _FIRST_BACKOFF * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        wait = max(backoff, error.retry_after or 0.0)
        return wait if wait <= _LONGEST_WAIT else None

    async def _attempt(
        self,
        transport: RESTClientObject,
        method: str,
        target: str,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> bytes:
        headers = {"Accept": _JSON, "Content-Type": content_type, "User-Agent": USER_AGENT}
        if authorization := await authorization_of(self._configuration):
            headers["Authorization"] = authorization
        if method != "GET" and not self._may_write():
            raise NotSent("not sent: this process is not the leader")
        started = time.monotonic()
        code = FAILED
        try:
            response = await transport.request(
                method,
                f"{self._configuration.host}{target}",
                headers=headers,
                body=body,
                _request_timeout=_TIMEOUT,
            )
            content: bytes = await response.read()
            code = str(response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            detail = str(error) or type(error).__name__
            raise Transient(f"no response from the API server: {detail}") from error
        finally:
            self._metrics.requests.labels(method, code).inc()
            self._metrics.duration.labels(method).observe(time.monotonic() - started)
        if not 200 <= response.status < 300:
            raise error_from(response.status, content, response.headers)
        self._log_warnings(response.headers.getall("Warning", ()))
        return content

    def _log_warnings(self, warnings: tuple[str, ...]) -> None:
        """Log each warning of the API server once: the only sign that an old CRD drops fields."""
        for warning in warnings:
            if warning not in self._warnings and len(self._warnings) < _WARNINGS_REMEMBERED:
                self._warnings.add(warning)
                _logger.warning("the API server warns: %s", warning)

    async def _connect(self) -> RESTClientObject:
        if self._transport is None:
            await self._reload(stale=None)
        if self._transport is None:
            raise NotSent("the client is closed")
        return self._transport

    async def _reload(self, stale: RESTClientObject | None) -> None:
        """Load the connection again, once for all requests that got a 401."""
        async with self._reloading:
            if self._transport is not stale:
                return
            self._configuration = await self._load()
            self._transport = RESTClientObject(self._configuration)
            if stale is not None:
                await stale.close()
