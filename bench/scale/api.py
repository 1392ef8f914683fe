"""Requests to the API server: kubectl would take more processor time than what is measured."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

Json = dict[str, Any]

_APPLY = "application/apply-patch+yaml"
_PAGE = 500  # objects of a list
_LINE = 2**24  # bytes of an event at most


@dataclass(frozen=True)
class Kind:
    """Where the objects of a kind are."""

    group: str  # of the URL: api/v1, or apis/GROUP/VERSION
    plural: str

    def path(self, namespace: str | None = None, name: str = "") -> str:
        """Return the URL's path; without a namespace, of all namespaces."""
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"/{self.group}{within}/{self.plural}{f'/{name}' if name else ''}"


NAMESPACES = Kind("api/v1", "namespaces")
NODES = Kind("api/v1", "nodes")
PODS = Kind("api/v1", "pods")
ACCOUNTS = Kind("api/v1", "serviceaccounts")
MODELS = Kind("apis/enginewright.dev/v1alpha1", "inferencemodels")
CLASSES = Kind("apis/enginewright.dev/v1alpha1", "acceleratorclasses")


class Api:
    """An API server, as the user of a kubeconfig with a token. Raises RuntimeError for what it refuses."""

    _session: aiohttp.ClientSession

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())  # the local cluster writes JSON
        (cluster,), (user,) = document["clusters"], document["users"]
        self._url = cluster["cluster"]["server"]
        self._authority = Path(cluster["cluster"]["certificate-authority"])
        self._token = user["user"]["token"]

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=self._authority)
        self._session = aiohttp.ClientSession(
            self._url,
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(ssl=context, limit=64),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=300),
            read_bufsize=_LINE,
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def _send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        sending = self._session.request(method, path, json=body, params=query, headers=headers)
        async with sending as response:
            if not response.ok:
                text = await response.text()
                raise RuntimeError(f"{method} {path}: {response.status} {text[:500]}")
            document: Json = await response.json()
            return document

    async def apply(self, kind: Kind, obj: Json) -> Json:
        """Create an object, or make it what it is to be."""
        metadata = obj["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        headers = {"Content-Type": _APPLY}
        query = {"fieldManager": "bench", "force": "true"}
        return await self._send("PATCH", path, obj, query=query, headers=headers)

    async def create(self, kind: Kind, obj: Json) -> Json:
        """Create an object."""
        return await self._send("POST", kind.path(obj["metadata"].get("namespace")), obj)

    async def watch(
        self, kind: Kind, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield all objects as ADDED, and then each change, without end: (type, object)."""
        chosen = dict(query or {})
        going_on = ""
        while True:
            page = {"limit": str(_PAGE), **({"continue": going_on} if going_on else {})}
            listed = await self._send("GET", kind.path(), query={**chosen, **page})
            for item in listed["items"]:
                yield "ADDED", item
            going_on = listed["metadata"].get("continue", "")
            if not going_on:
                break
        version = listed["metadata"]["resourceVersion"]
        watching = {**chosen, "watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"}
        async with self._session.get(kind.path(), params=watching) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise RuntimeError(f"the watch of {kind.plural} failed: {event['object']}")
                yield event["type"], event["object"]
