"""Models in object stores."""

import asyncio
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError
from typing_extensions import override

from enginewright_runtime.core.digests import CHUNK, Copied
from enginewright_runtime.remote.bucket_client import BucketClient, RequestFailed
from enginewright_runtime.remote.buckets import bucket
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.object_errors import StoreError
from enginewright_runtime.remote.peers import Peers
from enginewright_runtime.remote.retry import Unavailable, with_retries
from enginewright_runtime.sources.base import (
    MOST_FILES,
    Entry,
    Missing,
    ModelSource,
    join_path,
    parent_of,
)
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.transfer import Transfer, transfer_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from obstore import GetOptions, ObjectMeta

    from enginewright_runtime.remote.bucket_schemes import Store

_T = TypeVar("_T")


class ObjectSource(ModelSource):
    """An object, or the objects below a prefix, each with its own version."""

    def __init__(self, uri: str, secret: Secret, *, anonymous: bool = False) -> None:
        self._bucket = bucket(uri, secret, anonymous=anonymous, of_source=True)
        self._client = BucketClient(self._bucket, peers=Peers())
        self._folder = self._bucket.path  # prefix that paths are relative to, once found
        self._validator: str | None = None  # of the object at the address, once found
        self.shown = self._bucket.shown

    @override
    def head(self, path: str) -> str | None:
        """Return the ETag of an object, of the one at the address as `find` has read it."""
        key = join_path(self._folder, path)
        if key == self._bucket.path:
            return self._validator

        async def once() -> str | None:
            meta = await self._request(lambda store: obstore.head_async(store, key))
            return _head_validator(meta)

        try:
            return asyncio.run(with_retries(f"read {self.shown}", once))
        except Missing:
            return None

    @override
    def find(self) -> str | None:
        path = self._bucket.path
        if not path:
            return None
        if asyncio.run(with_retries(f"read {self.shown}", lambda: self._request(self._is_object))):
            self._folder = parent_of(path)
            return PurePosixPath(path).name
        if not self._list(deep=True, most=1):
            raise unreachable(f"{self.shown}: there is no such file or folder")
        return None

    @override
    def _entries(self, *, deep: bool) -> list[Entry]:
        return self._list(deep=deep, most=MOST_FILES + 1)

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        key = join_path(self._folder, path)
        shown = f"{self._bucket.scheme.prefix}{self._bucket.name}/{key}"

        async def attempt(transfer: Transfer) -> None:
            await self._request(lambda store: self._receive(store, key, transfer), transfer, shown)

        name = PurePosixPath(path).name
        return asyncio.run(transfer_file(shown, name, target, quota, attempt))

    async def _is_object(self, store: "Store") -> bool:
        try:
            self._validator = _head_validator(await obstore.head_async(store, self._bucket.path))
        except FileNotFoundError:
            return False  # or the bucket does not exist, which listing it reports
        except BaseError:
            # unlike a HEAD's, the response of a GET has a body, with the reason
            try:
                await obstore.get_async(store, self._bucket.path)
            except FileNotFoundError:
                return False
        return True

    async def _receive(self, store: "Store", key: str, transfer: Transfer) -> None:
        options: GetOptions = {}
        if transfer.resumes():
            options = {"range": {"offset": transfer.size}, "if_match": transfer.validator}
        got = await obstore.get_async(store, key, options=options)
        transfer.validator = got.meta["e_tag"]
        transfer.version = _version(got.meta)
        transfer.head_validator = _head_validator(got.meta)
        start, end = got.range
        transfer.expect(end - start)
        async for chunk in got.stream(min_chunk_size=CHUNK):
            transfer.receive(memoryview(chunk))

    def _list(self, *, deep: bool, most: int) -> list[Entry]:
        prefix = f"{self._folder}/" if self._folder else ""

        async def once(store: "Store") -> list[Entry]:
            entries: list[Entry] = []

            def add(metas: "Sequence[ObjectMeta]") -> None:
                entries.extend(
                    Entry(meta["path"].removeprefix(prefix), meta["size"], _head_validator(meta))
                    for meta in metas
                    if meta["path"].startswith(prefix) and not meta["path"].endswith("/")
                )

            if deep:
                async for metas in obstore.list(store, prefix or None):
                    add(metas)
                    if len(entries) >= most:
                        break
            else:
                listed = await obstore.list_with_delimiter_async(store, prefix or None)
                add(listed["objects"])
            return entries[:most]

        try:
            return asyncio.run(with_retries(f"list {self.shown}", lambda: self._request(once)))
        except Missing:  # not every server says in a document of errors what it does not have
            raise unreachable(f"{self.shown}: there is no such bucket") from None

    async def _request(
        self,
        action: "Callable[[Store], Awaitable[_T]]",
        transfer: Transfer | None = None,
        shown: str | None = None,
    ) -> _T:
        try:
            return await self._client.request(action, lambda: transfer.size if transfer else 0)
        except RequestFailed as failed:
            if transfer is not None and failed.error.kind == "changed":
                transfer.validator = None
            raise self._failure(failed.error, shown or self.shown) from None

    def _failure(self, error: StoreError, shown: str) -> Exception:
        message = f"{shown}: {error.message}"
        match error.kind:
            case "passes" | "changed":
                return Unavailable(message)
            case "missing":
                return Missing(message)
            case _:
                return unreachable(message, self._client.remedy(error, "secretRef", "read"))


def _version(meta: "ObjectMeta") -> str | None:
    if version := meta["version"]:
        return f"version {version}"
    return f"etag {etag}" if (etag := meta["e_tag"]) else None


def _head_validator(meta: "ObjectMeta") -> str | None:
    """Return the ETag, which lists have too, unlike versions; some list it without its quotes."""
    if not (etag := meta["e_tag"]):
        return None
    return f"etag {etag}" if etag.startswith(('"', "W/")) else f'etag "{etag}"'
