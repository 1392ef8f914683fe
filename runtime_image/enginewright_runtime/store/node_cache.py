"""Files of artefacts from and to the cache of this node, which only saves time.

Whatever goes wrong, the file comes from the store. This process stops using a cache that is unreachable, slow or
breaks off. A separate thread sends files to it while they are read from the store, because a pod does not wait for
what only the node's next pod needs.
"""

import hashlib
import http.client
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.manifest import ArtifactFile
from enginewright_contract.node_cache import file_path

from enginewright_runtime.core.digests import CHUNK
from enginewright_runtime.store.offer import GivenUp, Offer, SendingTime

_log: Final = logging.getLogger(__name__)
_CONNECT_SECONDS: Final = 2.0
_GRACE_SECONDS: Final = 5.0  # until the first byte, and without any
_OFFER_SECONDS: Final = 10.0  # of sending, in all
_SLOWEST: Final = 16 << 20  # bytes per second, on average after that


class NodeCache:
    """The cache at one address, HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_usable = True
        self._damaged: set[str] = set()  # paths of what was not what it should be
        self._offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self._budget = SendingTime(_OFFER_SECONDS)
        self._sending: Offer | None = None
        self._sender: threading.Thread | None = None
        self.bytes_read = 0

    def read(
        self, scope: str, file: ArtifactFile, writer: BinaryIO, on_chunk: Callable[[int], None]
    ) -> bool:
        """Write a file to an empty `writer`; return whether it was there and matches its digest; else `writer` is empty.

        `scope` is that of the artefact; `on_chunk` gets the size of every chunk. Raises OSError of `writer`.
        """
        if not self._is_usable:
            return False
        path = file_path(scope, file.sha256)
        digest, size = hashlib.sha256(), 0
        try:
            for chunk in self._chunks(path, file.size_bytes):
                writer.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                on_chunk(len(chunk))
            if (digest.hexdigest(), size) == (file.sha256, file.size_bytes):
                self.bytes_read += size
                return True
            self._damaged.add(path)
            _log.warning("%s is damaged in the node's cache: it is read from the store", file.path)
        except _NotCached:
            return False
        except _CacheUnusable as error:
            self._give_up(error)
        writer.seek(0)
        writer.truncate()
        return False

    @contextmanager
    def offer(
        self, scope: str, file: ArtifactFile, source: Path, on_chunk: Callable[[int], None]
    ) -> Iterator[Callable[[int], None]]:
        """Send a file to the cache while it is read to `source`; yields what to call with the size of every chunk."""
        offer = Offer(file_path(scope, file.sha256), file.size_bytes, source, self._budget)
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, name="offers", daemon=True)
            self._sender.start()
        self._offers.put(offer)

        def count(size: int) -> None:
            on_chunk(size)
            offer.count_written(size)

        try:
            yield count
        except BaseException:
            offer.give_up("it was not read")
            raise
        offer.is_whole()

    def finish(self) -> None:
        """Wait for files that are being sent, for a limited time; the rest is given up."""
        if self._sender is None:
            return
        self._offers.put(None)
        self._sender.join(max(self._budget.seconds, 0.0))
        if self._sender.is_alive():
            self._is_usable = False
            if offer := self._sending:
                offer.give_up("the pod does not wait for it")

    def _send_all(self) -> None:
        while offer := self._offers.get():
            self._sending = offer
            if not self._is_usable:
                continue
            try:
                if not self._put(offer):
                    _log.info("the node's cache has %s already, or no room for it", offer.path)
            except _CacheUnusable as error:
                self._give_up(error)
            except GivenUp as error:
                _log.warning("the node's cache does not get %s: %s", offer.path, error)
            except OSError as error:  # the file's
                _log.info("the node's cache does not get %s: %s", offer.path, error)

    def _give_up(self, error: "_CacheUnusable") -> None:
        self._is_usable = False
        _log.warning("the node's cache %s is not used: %s", self._address, error)

    def _chunks(self, path: str, size: int) -> Iterator[bytes]:
        """Yield what the cache sends; raise _NotCached or _CacheUnusable."""
        with _usable(), self._connect() as connection:
            pace = _LeastPace()
            response = _head(connection, lambda: connection.request("GET", path))
            if response.status == http.client.NOT_FOUND:
                raise _NotCached
            if response.status != http.client.OK:
                raise _CacheUnusable(f"it answers {response.status}")
            if response.length != size:
                return  # damaged
            received = 0
            while received < size and (chunk := response.read1(CHUNK)):
                received += len(chunk)
                yield chunk
                pace.check(received)
            if received < size:
                raise _CacheUnusable(f"it ended after {received} of {size} bytes")

    def _put(self, offer: Offer) -> bool:
        """Send a file; return whether the cache has taken it; raise _CacheUnusable, GivenUp, or the file's OSError."""
        with _usable(), self._connect() as connection:
            connection.putrequest("PUT", offer.path)
            connection.putheader("Content-Length", str(offer.size))
            if offer.path not in self._damaged:
                connection.putheader("If-None-Match", "*")
            try:
                connection.endheaders()
                for chunk in offer.chunks():
                    connection.send(chunk)
                return _head(connection, lambda: None).status == http.client.CREATED
            except (BrokenPipeError, ConnectionResetError):
                return False  # it receives nothing of what it refuses

    @contextmanager
    def _connect(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(self._address, timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.settimeout(_GRACE_SECONDS)
            yield connection
        finally:
            connection.close()


class _NotCached(Exception):  # noqa: N818 - not an error
    """The cache does not hold the file."""


class _CacheUnusable(Exception):  # noqa: N818 - read as a sentence
    """The cache cannot be used; the message says why."""


class _LeastPace:
    """Ends transfers that are slower than they are worth."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def check(self, done: int) -> None:
        """Raise _CacheUnusable if `done` bytes are too few by now."""
        took = time.monotonic() - self._began
        if took > _GRACE_SECONDS + done / _SLOWEST:
            raise _CacheUnusable(f"it is slow, {done} bytes in {took:.0f} s")


@contextmanager
def _usable() -> Iterator[None]:
    """Raise _CacheUnusable for every error of a connection."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _CacheUnusable(str(error) or type(error).__name__) from None


def _head(
    connection: http.client.HTTPConnection, send: Callable[[], None]
) -> http.client.HTTPResponse:
    """Send, and return the response once its head is there, within a time limit."""
    end = threading.Timer(_GRACE_SECONDS, _shut, (connection.sock,))
    end.daemon = True
    end.start()
    try:
        send()
        return connection.getresponse()
    finally:
        end.cancel()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
