"""Requests to an API server over a connection that stays open: a kubectl process costs 0.1 s of processor time."""

import functools
import http.client
import json
import math
import select
import ssl
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import yaml

APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

Json = dict[str, Any]
Connection = tuple[http.client.HTTPSConnection, dict[str, str]]  # and the headers of its requests


class RefusedError(AssertionError):
    """The API server refused a request; the text is its message."""


class NotFoundError(RefusedError):
    """There is no such object or kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of object of an API server."""

    prefix: str  # of its paths: /api/v1
    api_version: str
    name: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the URL's path; without a namespace, of all namespaces."""
        within = ["namespaces", namespace] if self.namespaced and namespace else []
        parts = [*within, self.plural, name, subresource]
        return "/".join([self.prefix, *(quote(part, safe="") for part in parts if part)])


class ApiRequests:
    """Requests to the API server of a kubeconfig whose user has a token; any thread may send them."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._threads = threading.local()
        self._kinds: dict[str, Kind] = {}

    def kind(self, word: str) -> Kind:
        """Find a kind by what kubectl accepts: plural, singular, short name, or plural.group."""
        if word not in self._kinds:
            self._kinds = self._discover()
        if word not in self._kinds:
            raise NotFoundError(f"the API server has no kind {word}")
        return self._kinds[word]

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str | int] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = 60,
    ) -> Json:
        """Send a request and return the response's object.

        Raises:
            RefusedError: The API server refused it.
            OSError: There is no connection to the API server.
        """
        headers = {"User-Agent": "tests", "Content-Type": content_type, "Accept": accept}
        data = None if body is None else json.dumps(body)
        target = f"{path}?{urlencode(query)}" if query else path
        while True:
            response, content = self._exchange(method, target, data, headers, seconds)
            if response.status < http.HTTPStatus.BAD_REQUEST:
                return dict(json.loads(content))
            if response.status == http.HTTPStatus.NOT_FOUND:
                raise NotFoundError(f"{method} {target}: {_message(content)}")
            again = response.getheader("Retry-After")  # as while it prepares a new kind's storage
            if response.status != http.HTTPStatus.TOO_MANY_REQUESTS or again is None:
                raise RefusedError(f"{method} {target}: {_message(content)}")
            time.sleep(float(again))

    def _exchange(
        self, method: str, target: str, data: str | None, headers: dict[str, str], seconds: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request over this thread's connection; return the response and its content."""
        connection, authorization = self._connection(seconds)
        self._threads.connection = None  # unless the response is read to its end
        try:
            connection.request(method, target, data, {**headers, **authorization})
            response = connection.getresponse()
            content = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {target}: {error!r}") from error
        self._threads.connection = connection, authorization
        return response, content

    def watch(self, path: str, *, name: str, seconds: float) -> Generator[Json, None, None]:
        """Yield an object's current state and every change, for at most `seconds`.

        It ends earlier when the API server ends the watch. Raises as `send`, also when the time is over.
        """
        query: dict[str, str | int] = {"fieldSelector": f"metadata.name={name}"}
        response = self.send("GET", path, query=query, seconds=seconds)
        yield from response["items"]
        query |= {
            "watch": 1,
            "resourceVersion": response["metadata"]["resourceVersion"],
            "timeoutSeconds": math.ceil(seconds),
        }
        connection, headers = self._connect(seconds)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=headers)
            for line in connection.getresponse():
                event = json.loads(line)
                if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
                    return
                yield event["object"]
        except (http.client.HTTPException, ValueError) as error:  # in the middle of a line
            raise ConnectionError(f"the watch of {name}: {error!r}") from error
        finally:
            connection.close()

    def _connection(self, seconds: float) -> Connection:
        kept: Connection | None = getattr(self._threads, "connection", None)
        if kept is None or _has_ended(kept[0]):
            return self._connect(seconds)
        kept[0].sock.settimeout(seconds)
        return kept

    def _connect(self, seconds: float) -> Connection:
        config = yaml.safe_load(self._kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        context = _trusting(cluster["certificate-authority"])
        address = urlsplit(cluster["server"]).netloc
        connection = http.client.HTTPSConnection(address, timeout=seconds, context=context)
        return connection, {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}

    def _discover(self) -> dict[str, Kind]:
        """Return the preferred version of each kind, by all its names."""
        kinds: dict[str, Kind] = {}
        for root in ("/api", "/apis"):
            for group in self.send("GET", root, accept=_DISCOVERY)["items"]:
                title = group["metadata"].get("name", "")
                for version in group["versions"]:
                    api_version = f"{title}/{version['version']}" if title else version["version"]
                    for item in version.get("resources", ()):
                        kind = Kind(
                            prefix=f"{root}/{api_version}",
                            api_version=api_version,
                            name=item["responseKind"]["kind"],
                            plural=item["resource"],
                            namespaced=item["scope"] == "Namespaced",
                        )
                        names = [
                            kind.plural,
                            f"{kind.plural}.{title}",
                            f"{kind.name}.{api_version}",
                        ]
                        names += [item.get("singularResource", ""), *item.get("shortNames", ())]
                        for name in names:
                            kinds.setdefault(name, kind)
        return kinds


@functools.cache
def requests_to(kubeconfig: Path) -> ApiRequests:
    """Return the same requests for the same kubeconfig, since they share a connection."""
    return ApiRequests(kubeconfig)


def _trusting(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


def _has_ended(connection: http.client.HTTPSConnection) -> bool:
    """Return whether the API server has closed a connection on which it owes no response."""
    ready = select.poll()
    if connection.sock is not None:
        ready.register(connection.sock, select.POLLIN)
    return connection.sock is None or bool(ready.poll(0))


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError):
        return content.decode()
