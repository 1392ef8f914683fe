"""Asking a pod something over HTTP: by its address, or through the API server where we run outside.

Pods belong to users. What they answer may be slow, endless, a redirect or no answer at all, so
every request is short, reads a bounded number of bytes, follows nothing and carries no credentials
to the pod.
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

MAX_BODY: Final = 256 * 1024  # bytes
TIMEOUT: Final = 2.0  # seconds, from connecting to the last byte

_CHUNK: Final = 64 * 1024
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_SERVER_ERROR: Final = 500


class NoAnswer(Exception):  # noqa: N818 - says what is the matter
    """Nobody answered in time: the pod starts, stops, or cannot be reached."""


class BadAnswer(Exception):  # noqa: N818 - says what is the matter
    """Somebody answered, but not as one of our pods does; the same is to be expected again."""


@dataclass(frozen=True)
class PodAddress:
    """Where a pod listens."""

    namespace: str
    name: str
    ip: str
    port: int


class PodHttp(Protocol):
    """GET, in one of two ways."""

    async def get(self, pod: PodAddress, path: str) -> bytes:
        """Return the body of a 200, at most `MAX_BODY` bytes. Raises NoAnswer and BadAnswer."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def pod_http() -> PodHttp:
    """Return the way that fits where this process runs; decided as `load_connection` decides."""
    return DirectPodHttp() if inside_cluster() else ProxiedPodHttp(load_connection)


class DirectPodHttp:
    """By the pod's own address; no connection is kept between two requests."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get(self, pod: PodAddress, path: str) -> bytes:
        """Return the body of a 200. Raises NoAnswer and BadAnswer."""
        if self._session is None:
            self._session = _session(aiohttp.TCPConnector(force_close=True, limit=0))
        url = URL.build(scheme="http", host=pod.ip, port=pod.port, path=path)
        status, body = await _get(self._session, url)
        return _checked(status, body)

    async def close(self) -> None:
        """Close the connections; requests under way fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None


@dataclass(frozen=True)
class _Connection:
    configuration: Configuration
    session: aiohttp.ClientSession


class ProxiedPodHttp:
    """Through the API server, which wants the right `get` on `pods/proxy`.

    A 401 ends the connection; the next request loads it again.
    """

    def __init__(self, load: Callable[[], Awaitable[Configuration]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self._connection: _Connection | None = None

    async def get(self, pod: PodAddress, path: str) -> bytes:
        """Return the body of a 200. Raises NoAnswer and BadAnswer."""
        connection = await self._connected()
        configuration = connection.configuration
        target = (
            f"/api/v1/namespaces/{quote(pod.namespace, safe='')}"
            f"/pods/{quote(pod.name, safe='')}:{pod.port}/proxy{path}"
        )
        url = URL(f"{configuration.host}{target}", encoded=True)
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
                f"the API server answered {status}: outside the cluster, the operator asks pods"
                " through it and needs the verb get on pods/proxy"
            )
        return _checked(status, body)

    async def close(self) -> None:
        """Close the connections; requests under way fail."""
        if self._connection is not None:
            session = self._connection.session
            self._connection = None
            await session.close()

    async def _connected(self) -> _Connection:
        async with self._loading:
            if self._connection is None:
                try:
                    configuration = await self._load()
                except ConnectionNotConfigured as error:
                    raise NoAnswer(str(error)) from error
                # For its reading of the TLS settings; its requests would follow redirects.
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
        auto_decompress=False,  # a small body must not grow
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
    """Return status and body; raises NoAnswer and, for a body without end, BadAnswer."""
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
                    raise BadAnswer(f"the answer is longer than {MAX_BODY} bytes")
            return response.status, bytes(body)
    except TimeoutError as error:
        raise NoAnswer(f"no answer within {TIMEOUT:.0f} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error


def _checked(status: int, body: bytes) -> bytes:
    if status == _OK:
        return body
    if status >= _SERVER_ERROR:
        raise NoAnswer(f"it answered {status}")  # so does the API server for a pod that is silent
    raise BadAnswer(f"it answered {status} instead of 200")
