"""The objects below one address of a bucket: read, written and listed, with retries that continue where they can."""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

import obstore
from enginewright_contract.reasons import Reason
from enginewright_contract.schemes import BUCKETS, forms
from enginewright_contract.store_address import BUCKET_ADDRESS
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from enginewright_runtime.core.digests import CHUNK, Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.remote.bucket_client import BucketClient, RequestFailed
from enginewright_runtime.remote.buckets import bucket
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.object_errors import CONFLICTS
from enginewright_runtime.remote.retry import Unavailable, with_retries

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, UpdateVersion

    from enginewright_runtime.remote.bucket_schemes import Store

_log: Final = logging.getLogger(__name__)
_ADDRESS: Final = re.compile(BUCKET_ADDRESS)
_SETTING: Final = "store.bucket.secretRef"  # of the chart, for remedies
_RETRIES: Final = 3  # of a request; of a part, where an object is written in several
_PART: Final = 16 << 20  # bytes, at least
_MOST_PARTS: Final = 5000  # S3 takes 10,000
_PARTS_AT_A_TIME: Final = 4
_PAGE: Final = 1000  # objects that one request lists
_NOT_IMPLEMENTED: Final = "status code: 501"
_T = TypeVar("_T")


@dataclass(frozen=True)
class ObjectInfo:
    """What a bucket reports of an object."""

    name: str  # relative to the address
    size: int  # bytes
    modified: datetime  # timezone-aware
    version: "UpdateVersion"  # of its content, for conditional requests, if stated


@dataclass
class _Received:
    writer: BinaryIO | None
    size: int = 0  # bytes
    etag: str | None = None
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def options(self) -> "GetOptions":
        """Return how to ask for the rest; start over if that is not possible."""
        if self.size and self.etag:
            return {"range": {"offset": self.size}, "if_match": self.etag}
        if self.writer is not None:
            self.writer.seek(0)
            self.writer.truncate()
        self.size, self.digest = 0, hashlib.sha256()
        return {}

    def add(self, chunk: bytes) -> None:
        if self.writer is not None:
            self.writer.write(chunk)
        self.digest.update(chunk)
        self.size += len(chunk)


class Objects:
    """The objects below one `BUCKET_ADDRESS`; safe for concurrent processes; raises StageFailure: StoreUnavailable."""

    def __init__(self, uri: str, secret: Secret, *, by_hand: bool = False) -> None:
        if not _ADDRESS.fullmatch(uri):  # not repeated: it may contain credentials
            raise unavailable(
                "the address is not that of a bucket and a path in it, or has ?, #, @, a space, or an"
                " empty segment, . or .. in it",
                f"write {forms(BUCKETS)}",
            )
        try:
            place = bucket(uri, secret)
        except StageFailure as failure:
            raise unavailable(failure.cause, failure.finding.remedy) from None
        self._client = BucketClient(place, _RETRIES)
        self._by_hand = by_hand
        self._prefix = f"{place.path}/" if place.path else ""
        self.shown: Final = place.shown.rstrip("/")

    def info(self, name: str) -> ObjectInfo | None:
        """Return what the bucket reports of an object, if it exists."""

        async def once() -> ObjectInfo | None:
            with suppress(_Missing):
                key = self._key(name)
                return self._info(await self._ask(lambda store: obstore.head_async(store, key)))
            return None

        return self._run(f"read {name}", once)

    def get(self, name: str, largest: int) -> bytes | None:
        """Return an object, if it exists, empty if it is larger than `largest`."""

        async def once() -> bytes | None:
            with suppress(_Missing):
                got = await self._ask(lambda store: obstore.get_async(store, self._key(name)))
                is_larger = got.meta["size"] > largest
                return b"" if is_larger else bytes(await self._ask(lambda _: got.bytes_async()))
            return None

        return self._run(f"read {name}", once)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` to `end`, which both are in it."""
        key = self._key(name)
        content = self._run(
            f"read {name}",
            lambda: self._ask(
                lambda store: obstore.get_range_async(store, key, start=start, end=end)
            ),
        )
        return bytes(content)

    def put(self, name: str, content: bytes) -> None:
        """Write an object, or replace it."""
        key = self._key(name)
        self._run(
            f"write {name}",
            lambda: self._ask(lambda store: obstore.put_async(store, key, content)),
        )

    def put_if(self, name: str, content: bytes, present: ObjectInfo | None) -> bool:
        """Write an object if there is still none, or the `present` one; return whether it is in the bucket.

        A server without conditional requests gets it without condition.
        """
        key = self._key(name)
        mode: PutMode = "create" if present is None else present.version or "overwrite"
        tries = 0

        async def conditionally(store: "Store") -> bool | None:
            try:
                await obstore.put_async(store, key, content, mode=mode)
            except (AlreadyExistsError, PreconditionError) as error:
                if any(code in str(error) for code in CONFLICTS):
                    raise  # it may still be that there is none
                return False
            except GenericError as error:
                if _NOT_IMPLEMENTED not in str(error):
                    raise
                return None
            return True

        async def once() -> bool:
            nonlocal tries
            tries += 1
            is_put = await self._ask(conditionally)
            if is_put is None:
                _log.warning("%s has no conditional requests: %s is put without", self.shown, name)
                await self._ask(lambda store: obstore.put_async(store, key, content))
            return is_put is not False

        if self._run(f"write {name}", once):
            return True
        # an earlier try may have succeeded, and only its answer was lost
        return tries > 1 and self.get(name, len(content)) == content

    def put_file(self, name: str, source: Path, size: int, progress: TransferProgress) -> None:
        """Write a local file of `size` bytes; raises OSError too."""
        key = self._key(name)

        async def once() -> None:
            progress.restart()
            with source.open("rb") as reader:
                if size <= _PART:
                    content = reader.read()
                    await self._ask(lambda store: obstore.put_async(store, key, content))
                    return
                chunks = _chunks(reader, progress)
                await self._ask(
                    lambda store: obstore.put_async(
                        store,
                        key,
                        chunks,
                        use_multipart=True,
                        chunk_size=max(_PART, size // _MOST_PARTS),
                        max_concurrency=_PARTS_AT_A_TIME,
                    )
                )

        self._run(f"write {name}", once)

    def receive(
        self,
        name: str,
        size: int,
        writer: BinaryIO | None = None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> Copied | None:
        """Read an object of `size` bytes, if it exists, to `writer`, if given, whose OSError it raises.

        Returns its digest and size; one of another size is not read, and the digest is empty.
        """
        received = _Received(writer)

        async def rest() -> Copied:
            options, key = received.options(), self._key(name)
            got = await self._ask(
                lambda store: obstore.get_async(store, key, options=options), received
            )
            if got.meta["size"] != size:
                return Copied("", got.meta["size"])
            received.etag = got.meta["e_tag"]
            chunks = got.stream(min_chunk_size=CHUNK)
            while chunk := await self._ask(lambda _: anext(chunks, b""), received):
                received.add(bytes(chunk))
                if on_chunk is not None:
                    on_chunk(len(chunk))
            if received.size < size:
                raise Unavailable(f"{self.shown}: {name} ended after {received.size} bytes")
            return Copied(received.digest.hexdigest(), received.size)

        async def once() -> Copied | None:
            try:
                return await rest()
            except _Missing:
                return None
            except _Changed:
                received.etag = None
                raise Unavailable(f"{self.shown}: {name} was replaced meanwhile") from None

        return self._run(f"read {name}", once, lambda: received.size)

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        """Return all objects below a folder, a thousand per request."""

        async def all_pages(store: "Store") -> list[ObjectInfo]:
            pages = obstore.list(store, f"{self._key(folder)}/", chunk_size=_PAGE)
            return [self._info(meta) async for metas in pages for meta in metas]

        return self._run(f"list {folder}", lambda: self._ask(all_pages))

    def delete(self, name: str) -> None:
        """Delete an object; it need not exist."""

        async def once() -> None:
            with suppress(_Missing):
                await self._ask(
                    lambda store: obstore.delete_async(store, self._key(name)), right="delete"
                )

        self._run(f"delete {name}", once)

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        version: UpdateVersion = {}
        if etag := meta["e_tag"]:
            version["e_tag"] = etag
        if generation := meta["version"]:
            version["version"] = generation
        name = meta["path"].removeprefix(self._prefix)
        return ObjectInfo(name, meta["size"], meta["last_modified"], version)

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _run(
        self,
        what: str,
        attempt: Callable[[], Awaitable[_T]],
        received: Callable[[], int] = lambda: 0,
    ) -> _T:
        shown = f"{what} in {self.shown}"

        async def reject_lost_upload() -> _T:
            try:
                return await attempt()
            except (_Missing, _Changed):  # of an upload that a server has forgotten
                raise Unavailable(f"{self.shown}: the transfer was broken off") from None

        return asyncio.run(with_retries(shown, reject_lost_upload, received, failure=unavailable))

    async def _ask(
        self,
        action: "Callable[[Store], Awaitable[_T]]",
        received: _Received | None = None,
        right: str = "read and write",
    ) -> _T:
        try:
            return await self._client.request(action, lambda: received.size if received else 0)
        except RequestFailed as failed:
            message = f"{self.shown}: {failed.error.message}"
            match failed.error.kind:
                case "missing":
                    raise _Missing from None
                case "changed":
                    raise _Changed from None
                case "passes":
                    raise Unavailable(message) from None
                case _:
                    remedy = self._client.remedy(
                        failed.error, _SETTING, right, by_hand=self._by_hand
                    )
                    raise unavailable(message, remedy) from None


class _Missing(Exception):  # noqa: N818 - callers decide whether it is an error
    """An object does not exist."""


class _Changed(Exception):  # noqa: N818 - it is read again
    """An object was replaced while it was read."""


def _chunks(reader: BinaryIO, progress: TransferProgress) -> Iterator[bytes]:
    while chunk := reader.read(CHUNK):
        yield chunk
        progress.add(len(chunk))


def unavailable(cause: str, remedy: str | None = None) -> StageFailure:
    """Return the failure of a store that cannot be read or written."""
    return StageFailure(
        Reason.STORE_UNAVAILABLE, f"the store is unavailable: {cause}", remedy=remedy
    )
