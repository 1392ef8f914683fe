"""Sends requests to a bucket; finds its region and whether it needs credentials."""

import logging
from typing import TYPE_CHECKING, Final, TypeVar

import aiohttp
from obstore.exceptions import BaseError

from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.remote.buckets import Bucket
from enginewright_runtime.remote.forwarder import Forwarder
from enginewright_runtime.remote.object_errors import StoreError, store_error
from enginewright_runtime.remote.peers import Peers, RefusedPeerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from enginewright_runtime.remote.bucket_schemes import Store

_log: Final = logging.getLogger(__name__)
# reports it in a header, also to anonymous requests
_REGION_OF: Final = "https://{bucket}.s3.amazonaws.com"
_REGION_SECONDS: Final = 10.0
# of obstore, for invalid settings that are not checked before, such as the environment's; the second is no Exception
_PANICS: Final = frozenset({"RustPanic", "PanicException"})
_PANICKED: Final = StoreError(
    "the store's client ended on a setting or a credential that it cannot read", "identity"
)
_T = TypeVar("_T")


class RequestFailed(Exception):  # noqa: N818 - callers decide whether it is an error
    """A request failed; `error` is what that means."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(error.message)
        self.error = error


class BucketClient:
    """Sends requests to one bucket, with `retries` of each request that the store may get twice; with `peers`, only to them."""

    def __init__(self, bucket: Bucket, retries: int = 0, peers: Peers | None = None) -> None:
        self._bucket = bucket
        self._retries = retries
        self._peers = peers
        self._forwarder: Forwarder | None = None  # once there is a request
        self._store: Store | None = None  # kept, since it holds connections and tokens
        self.shown: Final = bucket.shown

    async def request(
        self,
        action: "Callable[[Store], Awaitable[_T]]",
        received: "Callable[[], int]" = lambda: 0,
    ) -> _T:
        """Await one request; repeat it in the bucket's region or anonymously if that may help.

        Raises RequestFailed, whose message states the bytes `received` so far, and StageFailure, SourceRefused.
        """
        if self._peers and self._forwarder is None:
            self._forwarder = Forwarder(self._peers)
        forwarder = self._forwarder
        for _ in range(3):  # as configured, in another region, anonymously
            try:
                proxy = forwarder.url if forwarder else None
                self._store = self._store or self._bucket.open(self._retries, proxy)
                return await action(self._store)
            except (BaseError, OSError, ValueError) as error:
                cause = forwarder.take_failure() if forwarder else None
                if self._peers and isinstance(cause, RefusedPeerError) and self._peers.refusal:
                    raise self._peers.refusal from None
                meaning = store_error(error, self._bucket.name, format_bytes(received()), cause)
                if not await self._reopen(meaning):
                    raise RequestFailed(meaning) from None
            except BaseException as error:
                if type(error).__name__ not in _PANICS:
                    raise
                raise RequestFailed(_PANICKED) from None
        raise RequestFailed(StoreError("the bucket's region is unknown", "broken"))

    def remedy(
        self, error: StoreError, secret: str, right: str, *, by_hand: bool = False
    ) -> str | None:
        """Return how to give the pod a right that it lacks, or None if another cause failed the request.

        Args:
            error: the failure.
            secret: the field that names the Secret.
            right: "read", or "read and write".
            by_hand: on a command line, which takes credentials from its environment unless it runs in a pod
                with the Secret.
        """
        by_hand = by_hand and self._bucket.identity != "secret"
        if error.kind == "region":
            return f"put AWS_REGION into the {'environment' if by_hand else 'Secret'}"
        if error.kind not in {"refused", "identity"}:
            return None
        if by_hand:
            return f"set {self._bucket.scheme.variables} in the environment, of an identity that may {right} it"
        keys = self._bucket.scheme.keys
        match self._bucket.identity:
            case "secret":
                remedy = f"correct the Secret in {secret} (keys {keys}), and what it may {right}"
            case "withheld":
                remedy = (
                    "the request had no credentials, as the pod's own identity is not shown to a server that"
                    f" the Secret or the address names: put {keys} into the Secret in {secret}"
                )
            case "anonymous":
                remedy = (
                    f"the request had no credentials: name a Secret in {secret} (keys {keys}),"
                    " or give the pod's service account an identity of the cloud"
                )
            case _:
                remedy = (
                    f"let the pod's own identity {right} it, or name a Secret in {secret}"
                    f" (keys {keys})"
                )
        return remedy

    async def _reopen(self, error: StoreError) -> bool:
        if error.kind == "region":
            region = error.region or await _region_of(self._bucket)
            if region is None or region == self._bucket.settings.get("region"):
                return False
            _log.info("%s is in region %s", self.shown, region)
            self._bucket, self._store = self._bucket.in_region(region), None
            return True
        if error.kind == "identity" and self._bucket.identity == "metadata":
            _log.info("%s: %s; trying without credentials", self.shown, error.message)
            self._bucket, self._store = self._bucket.anonymous(), None
            return True
        return False


async def _region_of(bucket: Bucket) -> str | None:
    if "endpoint" in bucket.settings:
        return None
    timeout = aiohttp.ClientTimeout(total=_REGION_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.head(_REGION_OF.format(bucket=bucket.name), allow_redirects=False) as response,
        ):
            return response.headers.get("x-amz-bucket-region")
    except (aiohttp.ClientError, TimeoutError):
        return None
