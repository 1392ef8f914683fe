"""HTTP requests to pods: to their addresses or, outside the cluster, through the API server.

Pods belong to users. A response may be slow, endless or a redirect, or never come, so every request
has a timeout, reads a bounded number of bytes, follows no redirect and sends no credentials to the
pod.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from enginewright.kube.client import USER_AGENT
from enginewright.kube.connection import (
    ConnectionNotConfigured,
    authorization_of,
    inside_cluster,
    load_connection,
)

MAX_BODY: Final = 512 * 1024  # bytes
TIMEOUT: Final = 2.0  # seconds, from connecting to the last byte

_CHUNK: Final = 64 * 1024
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_SERVER_ERROR: Final = 500


class NoAnswer(Exception):  # noqa: N818 - says what is wrong
    """No response in time: the pod starts, stops, or cannot be reached."""


class BadAnswer(Exception):  # noqa: N818 - says what is wrong
    """A response that is not one of our pods'; another request would get the same."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status  # HTTP; 0: another cause


@dataclass(frozen=True)
class PodAddress:
    """Where a pod listens."""

    namespace: str
    name: str
    ip: str
    port: int


class PodHttp(Protocol):
    """GET requests to pods."""

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:
        """Return the body of a 200, at most `MAX_BODY` bytes. Raises NoAnswer and BadAnswer."""

    async def close(self) -> None:
        """Close the connections."""


def pod_http() -> PodHttp:
    """Return direct access inside the cluster, else access through the API server."""
    return DirectPodHttp() if inside_cluster() else ProxiedPodHttp(load_connection)


class DirectPodHttp:
    """Requests to the pod's address; connections are not reused."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:
        """Return the body of a 200. Raises NoAnswer and BadAnswer."""
        if self._session is None:
            self._session = _session(aiohttp.TCPConnector(force_close=True, limit=0))
        url = URL.build(scheme="http", host=pod.ip, port=pod.port, path=path, query_string=query)
        status, body = await _get(self._session, url)
        return _check(status, body)

    async def close(self) -> None:
        """Close the connections; requests in progress fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None


@dataclass(frozen=True)
class _Connection:
    configuration: Configuration
    session: aiohttp.ClientSession


class ProxiedPodHttp:
    """Requests through the API server, which require the verb `get` on `pods/proxy`; a 401 reloads the connection."""

    def __init__(self, load: Callable[[], Awaitable[Configuration]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self._connection: _Connection | None = None

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:
        """Return the body of a 200. Raises NoAnswer and BadAnswer."""
        connection = await self._connect()
        configuration = connection.configuration
        target = (
            f"/api/v1/namespaces/{quote(pod.namespace, safe='')}"
            f"/pods/{quote(pod.name, safe='')}:{pod.port}/proxy{path}"
        )
        asked = f"?{query}" if query else ""
        url = URL(f"{configuration.host}{target}{asked}", encoded=True)
        authorization = await authorization_of(configuration)
        status, body = await _get(
            connection.session,
            url,
            headers={"Authorization": authorization} if authorization else {},
            proxy=configuration.proxy,
            server_hostname=configuration.tls_server_name,
        )
        if status == _UNAUTHORIZED and self._connection is connection:
            await self.close()
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            raise BadAnswer(
                f"the API server responded with {status}: outside the cluster, the operator reaches pods"
                " through it and needs the verb get on pods/proxy",
                status,
            )
        return _check(status, body)

    async def close(self) -> None:
        """Close the connections; requests in progress fail."""
        if self._connection is not None:
            session = self._connection.session
            self._connection = None
            await session.close()

    async def _connect(self) -> _Connection:
        async with self._loading:
            if self._connection is None:
                try:
                    configuration = await self._load()
                except ConnectionNotConfigured as error:
                    raise NoAnswer(str(error)) from error
                # Only for the TLS context: its requests would follow redirects.
                tls = RESTClientObject(configuration).ssl_context
                session = _session(aiohttp.TCPConnector(ssl=tls, limit=0), trust_env=True)
                self._connection = _Connection(configuration, session)
            return self._connection


def _session(connector: aiohttp.TCPConnector, *, trust_env: bool = False) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=trust_env,
        timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # a small body could expand beyond the limit
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
    )


async def _get(
    session: aiohttp.ClientSession,
    url: URL,
    *,
    headers: Mapping[str, str] | None = None,
    proxy: str | None = None,
    server_hostname: str | None = None,
) -> tuple[int, bytes]:
    """Return status and body; raises NoAnswer and, for a body that is too long, BadAnswer."""
    body = bytearray()
    try:
        async with session.get(
            url,
            headers=headers,
            proxy=proxy,
            server_hostname=server_hostname,
            allow_redirects=False,
        ) as response:
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > MAX_BODY:
                    raise BadAnswer(f"the response is longer than {MAX_BODY} bytes")
            return response.status, bytes(body)
    except TimeoutError as error:
        raise NoAnswer(f"no response within {TIMEOUT:.0f} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error


def _check(status: int, body: bytes) -> bytes:
    if status == _OK:
        return body
    if status >= _SERVER_ERROR:
        # the API server's for a pod that does not respond
        raise NoAnswer(f"the status is {status}")
    raise BadAnswer(f"the status is {status} instead of 200", status)
