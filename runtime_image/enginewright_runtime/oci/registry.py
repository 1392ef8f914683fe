"""Writes to one repository of an OCI registry (OCI distribution specification 1.1): blobs as streams, then the manifest."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Final, TypeVar
from urllib.parse import urljoin, urlsplit

import aiohttp

from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.oci.deadline import PushDeadline
from enginewright_runtime.oci.layout import MANIFEST_TYPE, digest_of
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.retry import with_retries
from enginewright_runtime.sources.base import Missing
from enginewright_runtime.sources.registry_login import Login, endpoint, login
from enginewright_runtime.sources.web import Body, Web, WebResponse, read_body, show_url

_REMEDY: Final = (
    "check the account in store.images.secretRef, and that it may push to this repository"
)
_SUCCEEDED: Final = frozenset({200, 201, 202})
_LARGEST_RESPONSE: Final = 4 << 20  # as registries limit manifests
_T = TypeVar("_T")


class RegistryWriter(Web):
    """A client that may push to a repository, HOST/NAME; `secret` is as of a source."""

    def __init__(self, repository: str, secret: Secret, deadline: PushDeadline) -> None:
        host, _, name = repository.partition("/")
        at = endpoint(secret, host, name)
        super().__init__(
            secret,
            Login(login(secret, host), name, plain=at.plain, actions="pull,push"),
            _REMEDY,
            peers=None,
        )
        self._url = at.url
        self._repository = repository
        self._deadline = deadline

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest with a tag or digest, if there is one."""
        url = f"{self._url}/manifests/{name}"
        try:
            return self._once(url, "GET", {"Accept": MANIFEST_TYPE}).body
        except Missing:
            return None

    def has_blob(self, digest: str, size: int) -> bool:
        """Return whether the repository has a blob and states its size."""
        try:
            answer = self._once(f"{self._url}/blobs/{digest}", "HEAD", {})
        except Missing:
            return False
        return answer.headers.get("Content-Length") == str(size)

    def put_blob(
        self,
        digest: str,
        size: int,
        chunks: Callable[[], Iterator[bytes]],
        progress: TransferProgress,
    ) -> None:
        """Store a blob, again from its beginning after an interruption; raises StageFailure: SourceUnreachable."""
        sent = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal sent
            sent = 0
            progress.restart()
            rest = chunks()
            while chunk := await _next(rest):
                yield chunk
                sent += len(chunk)
                progress.add(len(chunk))

        async def attempt(session: aiohttp.ClientSession) -> None:
            begun = f"{self._url}/blobs/uploads/"
            answer = await self._send(session, "POST", begun, {"Content-Length": "0"})
            place = self._upload_place(begun, answer.headers.get("Location", ""))
            url = f"{place}{'&' if urlsplit(place).query else '?'}digest={digest}"
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            await self._send(session, "PUT", url, headers, body, encoded=True)

        self._run(f"{self._url}/blobs/{digest}", attempt, lambda: sent)

    def put_manifest(self, tag: str, content: bytes) -> None:
        """Store a manifest under a tag; raises StageFailure, SourceUnreachable, also if it is not stored then."""
        self._once(f"{self._url}/manifests/{tag}", "PUT", {"Content-Type": MANIFEST_TYPE}, content)
        if self.manifest(digest_of(content)) != content:
            raise unreachable(
                f"{self._repository}: the registry accepted the image's manifest and does not return it",
                "check that store.images.repository names a registry, and any proxy before it",
            )

    def _once(
        self, url: str, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> WebResponse:
        return self._run(url, lambda session: self._send(session, method, url, headers, body))

    def _run(
        self,
        url: str,
        attempt: Callable[[aiohttp.ClientSession], Awaitable[_T]],
        sent: Callable[[], int] = lambda: 0,
    ) -> _T:
        async def one() -> _T:
            async with self._exchange(url, sent) as session:
                return await attempt(session)

        async def run_in_time() -> _T:
            async with asyncio.timeout(self._deadline.count_seconds()):
                return await with_retries(f"reach {show_url(url)}", one, sent)

        try:
            return asyncio.run(run_in_time())
        except TimeoutError:
            raise self._deadline.describe_end() from None

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None = None,
        *,
        encoded: bool = False,
    ) -> WebResponse:
        async with self._request(session, method, url, headers, body, encoded=encoded) as response:
            self._check(response, _SUCCEEDED)
            content = await read_body(response, url, _LARGEST_RESPONSE) if method == "GET" else b""
            return WebResponse(response.headers, content)

    def _upload_place(self, begun: str, location: str) -> str:
        """Return where to upload a blob: on this registry only, since no other may get the credentials."""
        try:
            place = urljoin(begun, location)
            ours, theirs = urlsplit(begun), urlsplit(place)
        except ValueError:
            place, location, ours, theirs = begun, "", urlsplit(begun), urlsplit(begun)
        if not location or (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc):
            raise unreachable(
                f"{self._repository}: the registry names {show_url(location) or 'no address'} to upload"
                " to, which is not its own address",
                "configure the registry, or the proxy before it, with the address that clients use",
            )
        return place


async def _next(chunks: Iterator[bytes]) -> bytes:
    """Return the next chunk, empty at the end; reads in a thread, so that the deadline counts meanwhile.

    A cancelled read completes first, because another try reads the same file.
    """
    reading = asyncio.ensure_future(asyncio.to_thread(next, chunks, b""))
    try:
        return await asyncio.shield(reading)
    finally:
        if not reading.done():
            await asyncio.wait([reading])
