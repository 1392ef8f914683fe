"""The cache of a node: its process, killed and full and asked by several, and pods that read through it."""

import asyncio
import io
import os
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from enginewright.node_cache import server
from enginewright.node_cache.folder import CacheFolder, NoRoom
from enginewright.node_cache.metrics import CacheMetrics
from enginewright.node_cache.server import CacheServer
from enginewright_contract.node_cache import scope
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.store import NodeCache, Store, node_cache
from enginewright_runtime.store.bucket import BucketMedium
from enginewright_runtime.store.offer import GivenUp, Offer, SendingTime, is_worthwhile
from prometheus_client import CollectorRegistry
from typing_extensions import override

from tests.e2e.harness import eventually
from tests.support.manifests import manifest
from tests.support.node_cache import SCOPE, CacheProcess, path_of, sha256
from tests.support.node_cache import node_cache as running
from tests.support.ports import free_port
from tests.support.preparing import Workplace
from tests.support.source_cutter import Cutter
from tests.support.source_servers import SourceServers
from tests.support.store_places import Place, no_waiting
from tests.support.store_process import FILES, publish
from tests.unit.test_store_volume import KEY, content

pytestmark = pytest.mark.timeout(900)  # the servers may have to be built first
MIB = 1 << 20
LARGE = np.random.default_rng(5).bytes(8 * MIB)
OTHER_SCOPE = "0d" * 32
FAILURE = b"HTTP/1.1 500 Internal\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[CacheProcess]:
    with running(tmp_path / "cache") as started:
        yield started


def several(number: int, size: int = 10 * MIB) -> list[bytes]:
    return [bytes([index]) * size for index in range(number)]


# The process


def test_a_stored_file_is_served_with_the_scope(cache: CacheProcess) -> None:
    assert not cache.get(LARGE)
    assert cache.put(LARGE)
    assert cache.put(b"")
    assert cache.get(LARGE)
    assert cache.get(b"")
    assert not cache.get(LARGE, OTHER_SCOPE), "the digest alone is not enough"
    assert not cache.put(LARGE)
    counts = cache.metrics()
    assert (counts["reads_total hit"], counts["reads_total miss"]) == (2, 2)
    assert (counts["writes_total stored"], counts["writes_total present"]) == (2, 1)
    assert counts["read_bytes_total"] == len(LARGE)
    assert (counts["files"], counts["capacity_bytes"]) == (2, int(64 * MIB * 0.95))
    assert len(LARGE) < counts["bytes"] < len(LARGE) + MIB


def test_content_with_another_digest_is_not_stored(cache: CacheProcess) -> None:
    for body in (b"other", LARGE[:-1], LARGE + b"x", LARGE[:-1] + b"\0"):
        assert cache.ask("PUT", path_of(LARGE), body)[0] == 400
    assert cache.files() == []
    assert not cache.get(LARGE)
    assert cache.metrics()["writes_total damaged"] == 4


def test_other_names_and_methods_are_refused(cache: CacheProcess) -> None:
    for method, path, status in (
        ("GET", "/files/../../etc/passwd", 404),
        ("GET", f"/files/{SCOPE}/..%2f..%2fetc%2fpasswd", 404),
        ("GET", f"/files/{SCOPE}/{'A' * 64}", 404),
        ("GET", f"/files/{SCOPE}/{'a' * 64}/", 404),
        ("PUT", f"/files/{SCOPE}/{'a' * 63}", 404),
        ("PUT", "/files/partial/x", 404),
        ("GET", "/files/", 404),
        ("GET", "/" + "a" * 5000, 400),
        ("DELETE", path_of(b""), 405),
        ("HEAD", path_of(b""), 405),
    ):
        assert cache.ask(method, path, b"" if method == "PUT" else None)[0] == status, path
    assert cache.files() == []


def test_a_body_of_unknown_size_is_refused(cache: CacheProcess) -> None:
    with socket.create_connection(("127.0.0.1", cache.port), 10) as client:
        head = f"PUT {path_of(b'x')} HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 411")


# fault: Store | a node's cache is full | the least recently used files make room, but none that is being read; what
#   never fits is refused | prevented
def test_a_full_cache_evicts_the_least_recently_used(cache: CacheProcess) -> None:
    files = several(6)
    for file in files:
        assert cache.put(file)
    assert cache.get(files[0])
    assert cache.put(LARGE)
    assert [cache.get(file) for file in files] == [True, False, True, True, True, True]
    assert cache.metrics()["evicted_bytes_total"] == 10 * MIB
    with socket.create_connection(("127.0.0.1", cache.port), 10) as client:
        client.sendall(head_of(b"huge", 65 * MIB))
        assert client.recv(100).startswith(b"HTTP/1.1 507")
    assert cache.get(files[2]), "what never fits evicts nothing"
    assert cache.metrics()["bytes"] <= 64 * MIB


# fault: Store | others fill the disk of a node with a cache | the cache evicts the least recently used files, but none
#   that is being read, before the kubelet removes images | within 10 s
async def test_the_disk_of_the_node_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, free = tmp_path / "cache", 100 * MIB
    metrics = CacheMetrics(CollectorRegistry())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=200 * MIB))
    folder = CacheFolder(root, 1 << 60, metrics, 0.25)

    async def add(whole: bytes) -> str:
        async def body() -> AsyncIterator[bytes]:
            yield whole

        name = f"{SCOPE}-{sha256(whole)}"
        await folder.write(name, sha256(whole), len(whole), body())
        return name

    names = [await add(bytes([index]) * MIB) for index in range(3)]
    folder.trim()
    assert len(folder.entries) == 3
    free = 49 * MIB  # 25% are 50 MiB
    with folder.open_file(names[0]):
        folder.trim()
        assert {path.name for path in root.glob("*-*")} == {names[0], names[2]}
        free = 0
        folder.trim()
        assert [path.name for path in root.glob("*-*")] == [names[0]], "it is being read"
        with pytest.raises(NoRoom):
            await add(b"x")
    folder.trim()
    assert [*root.rglob("*")] == [root / "partial"]


def head_of(content: bytes, size: int) -> bytes:
    """Return the head of a request that offers a file."""
    return f"PUT {path_of(content)} HTTP/1.1\r\nHost: c\r\nContent-Length: {size}\r\n\r\n".encode()


def begin_put(cache: CacheProcess, whole: bytes, sent: int) -> socket.socket:
    """Send a part of a file."""
    client = socket.create_connection(("127.0.0.1", cache.port), 10)
    client.sendall(head_of(whole, len(whole)) + whole[:sent])
    partial = cache.folder / "partial"
    eventually(lambda: [*partial.iterdir()], 10, "the part", interval=0.01)
    return client


# fault: Store | a pod or the cache of its node is killed while a file is stored there | what is incomplete is
#   removed, and never served | at once; when the cache starts
@pytest.mark.parametrize("killed", ["pod", "cache"])
def test_incomplete_files_are_removed(killed: str, cache: CacheProcess) -> None:
    assert cache.put(b"before")
    (before,) = cache.files()
    with begin_put(cache, LARGE, len(LARGE) // 2):
        assert not cache.get(LARGE)
        assert not cache.put(LARGE), "it is being received"
        if killed == "cache":
            cache.kill()
    if killed == "cache":
        (cache.folder / f"{SCOPE}-{'0' * 64}").symlink_to("/etc/passwd")
        cache.start()
        assert cache.ask("GET", f"/files/{SCOPE}/{'0' * 64}")[0] == 404, "no link is followed"
        (cache.folder / f"{SCOPE}-{'0' * 64}").unlink()
    eventually(lambda: cache.files() == [before], 10, "only what is complete", interval=0.01)
    assert cache.get(b"before"), "it outlives the process"
    assert cache.put(LARGE)
    assert cache.get(LARGE)


def test_the_order_of_use_outlives_the_process(cache: CacheProcess) -> None:
    files = several(6)
    for at, file in enumerate(files):
        assert cache.put(file)
        os.utime(cache.folder / f"{SCOPE}-{sha256(file)}", (at, at))
    assert cache.get(files[0])
    assert cache.stop() == 0
    cache.size = "22Mi"
    cache.start()
    assert [cache.get(file) for file in files] == [True, False, False, False, False, True]


# fault: Store | several pods of a node store one file in its cache at once | one of them does; the others have their
#   own already | prevented
def test_of_several_writers_one_stores_the_file(cache: CacheProcess) -> None:
    together = threading.Barrier(4, timeout=20)

    def write(_: int) -> bool:
        together.wait()
        return cache.put(LARGE)

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(write, range(4))) == 1
    assert len(cache.files()) == 1
    assert cache.get(LARGE)


def test_connections_of_one_pod_are_bounded(cache: CacheProcess) -> None:
    def has_ended(client: socket.socket) -> bool:
        with suppress(ConnectionResetError):
            return client.recv(1) == b""
        return True

    most = range(server.MOST_OF_ONE_PEER)
    held = [socket.create_connection(("127.0.0.1", cache.port), 20) for _ in most]
    with socket.create_connection(("127.0.0.1", cache.port), 20) as one_more:
        assert has_ended(one_more)
    for item in held:
        item.close()
    eventually(lambda: cache.put(b"x"), 10, "a connection", interval=0.05)


async def test_slow_pods_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, port = CollectorRegistry(), free_port()
    folder = CacheFolder(tmp_path / "cache", 1 << 30, CacheMetrics(registry), kept_free=0.0)
    monkeypatch.setattr(server, "_GRACE_SECONDS", 0.2)
    caching = CacheServer(folder, port, registry, CacheMetrics(CollectorRegistry()))
    await caching.start()
    process = CacheProcess(tmp_path / "cache", port, "")
    whole = bytes(64 * MIB)  # more than the buffers of a connection
    readers = folder.entries._readers
    try:
        with await asyncio.to_thread(begin_put, process, b"slow", 1) as client:
            answer = await asyncio.to_thread(client.recv, 100)
            assert answer.startswith(b"HTTP/1.1 408")
        assert process.files() == []
        assert await asyncio.to_thread(process.put, whole)
        monkeypatch.setattr(server, "_SLOWEST", 1 << 40)
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(f"GET {path_of(whole)} HTTP/1.1\r\nHost: c\r\n\r\n".encode())
            await asyncio.to_thread(eventually, lambda: readers, 10, "a reader", 0.01)
            await asyncio.to_thread(eventually, lambda: not readers, 10, "its end", 0.01)
    finally:
        await caching.stop()


# Pods that read through it


@pytest.fixture
def place(servers: SourceServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store with an artefact."""
    no_waiting(monkeypatch)
    servers.put_s3("store", {})
    store_place = Place(f"s3://store/{tmp_path.name}", servers.s3())
    folder = content(tmp_path / "published")
    (folder / Path(FILES[1]).name).write_bytes(LARGE)
    publish(
        store_place.store(),
        KEY,
        folder,
        lambda files: manifest(key=KEY, model=FILES[0], files=files, varying=()),
    )
    return store_place


def read(place: Place, address: str, target: Path, **changes: str) -> NodeCache:
    """Read the artefact as a new pod does, and check it."""
    shutil.rmtree(target, ignore_errors=True)
    cache = NodeCache(address)
    medium = BucketMedium(place.uri, Secret({**place.secret, **changes}))
    for file in Store(medium, cache=cache).read(KEY, target).files:
        assert sha256((target / file.path).read_bytes()) == file.sha256
    cache.finish()
    return cache


def total(place: Place) -> int:
    return sum(file.size_bytes for file in place.manifest().files)


def test_the_second_pod_of_a_node_takes_no_file_from_the_bucket(
    place: Place, cache: CacheProcess, tmp_path: Path
) -> None:
    with Cutter(place.secret["AWS_ENDPOINT_URL"]) as cutter:
        to = {"AWS_ENDPOINT_URL": cutter.url}
        assert read(place, cache.address, tmp_path / "first", **to).bytes_read == 0
        assert [request for request in cutter.requests if "/files/" in request] != []
        cutter.requests.clear()
        assert read(place, cache.address, tmp_path / "second", **to).bytes_read == total(place)
        (only,) = cutter.requests
        assert only.endswith("/manifest.json"), "which is never cached"
    counts = cache.metrics()
    assert (counts["reads_total hit"], counts["reads_total miss"]) == (3, 3)
    cache.kill()
    cache.start()
    place.put(place.file(FILES[1]), None)
    read(place, cache.address, tmp_path / "third")
    with pytest.raises(StageFailure):
        place.store().read(KEY, tmp_path / "third")


def test_the_container_of_a_pod_reads_through_the_cache(
    place: Place, cache: CacheProcess, tmp_path: Path
) -> None:
    given = {"ENGINEWRIGHT_STORE": place.uri, "ENGINEWRIGHT_CACHE": cache.address}
    pod = Workplace(tmp_path, environment=given)
    pod.give(place.secret, "store-credentials")
    first, second = pod.fetch_artifact(KEY), pod.fetch_artifact(KEY)
    assert "8.0 MiB, 0 B of it from the node's cache, all digests match" in first.message
    assert "8.0 MiB, 8.0 MiB of it from the node's cache, all digests match" in second.message


def damage(path: Path) -> None:
    with path.open("r+b") as writer:
        writer.write(b"\0" if path.read_bytes()[:1] != b"\0" else b"\1")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


# fault: Store | a file is damaged in the cache of a node | its digest; it is read from the store, and replaced in the
#   cache | when it is read
@pytest.mark.parametrize("how", [damage, cut, Path.unlink])
def test_a_damaged_file_is_read_from_the_store(
    how: Callable[[Path], None],
    place: Place,
    cache: CacheProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    read(place, cache.address, tmp_path / "first")
    for path in cache.folder.glob("*-*"):
        how(path)
    assert read(place, cache.address, tmp_path / "second").bytes_read == 0
    assert ("is damaged in the node's cache" in caplog.text) is (how is not Path.unlink)
    third = read(place, cache.address, tmp_path / "third")
    assert third.bytes_read == total(place), "it was replaced"


@contextmanager
def listening(receive: Callable[[socket.socket], None] | None = None) -> Iterator[str]:
    """Accept connections, if there is something to do with them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while receive is not None:
                    receive(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def speaking(answer: bytes, pause: float = 0.0) -> AbstractContextManager[str]:
    """Answer every request with these bytes, each after a pause."""

    def receive(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(10_000)
            for byte in (answer,) if not pause else map(bytes, zip(answer)):
                client.sendall(byte)
                time.sleep(pause)

    return listening(receive)


@contextmanager
def cutting(cache: CacheProcess) -> Iterator[str]:
    with Cutter(f"http://{cache.address}", after=MIB, times=1) as cutter:
        yield f"127.0.0.1:{cutter.port}"
        assert cutter.cuts == 1


@contextmanager
def kill_on_read(cache: CacheProcess) -> Iterator[str]:
    with Cutter(f"http://{cache.address}", after=MIB, times=1, on_cut=cache.kill) as cutter:
        yield f"127.0.0.1:{cutter.port}"
        assert cutter.cuts == 1


# fault: Store | the cache of a node is absent, slow or killed, breaks off, or answers nonsense | files come from the
#   store; the log says why, once | at once; 5 s without progress
@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(lambda _: nullcontext(f"127.0.0.1:{free_port()}"), id="nothing"),
        pytest.param(lambda _: nullcontext("no-such-cache.invalid:80"), id="unknown"),
        pytest.param(lambda _: nullcontext("cache:no-port"), id="no address"),
        pytest.param(lambda _: listening(), id="silent"),
        pytest.param(lambda _: speaking(b"\x16\x03\x01 no HTTP\r\n\r\n"), id="garbage"),
        pytest.param(lambda _: speaking(FAILURE), id="failing"),
        pytest.param(
            lambda _: speaking(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, 0.05), id="slow"
        ),
        cutting,
        kill_on_read,
    ],
)
def test_a_cache_in_trouble_costs_only_time(
    trouble: Callable[[CacheProcess], AbstractContextManager[str]],
    place: Place,
    cache: CacheProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node_cache, "_GRACE_SECONDS", 0.3)
    read(place, cache.address, tmp_path / "first")
    caplog.clear()
    with trouble(cache) as address:
        read(place, address, tmp_path / "second")
    assert caplog.text.count("is not used: ") == 1


@contextmanager
def swallowing() -> Iterator[str]:
    """Have no file, and receive nothing of what is offered."""
    held: list[socket.socket] = []

    def refuse(client: socket.socket) -> None:
        held.append(client)
        if client.recv(4, socket.MSG_PEEK).startswith(b"GET"):
            client.recv(10_000)
            client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            client.close()

    with listening(refuse) as address:
        yield address
        for item in held:
            item.close()


# fault: Store | the disk of a node is slower than the bucket | its cache does not get the file, and the pod does not
#   wait for it | 0.5 s of sending; 10 s in all at most
def test_a_pod_does_not_wait_for_a_slow_cache(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_cache, "_OFFER_SECONDS", 0.2)
    monkeypatch.setattr(node_cache, "_GRACE_SECONDS", 600.0)
    with swallowing() as address:
        pod_cache = read(place, address, tmp_path / "pod")
        assert pod_cache._sender is not None
        assert pod_cache._sender.is_alive(), "it hangs, and the pod goes on"
    pod_cache._sender.join(20)
    assert "is not used" not in caplog.text


def test_only_written_bytes_are_sent(tmp_path: Path) -> None:
    source, whole = tmp_path / "file", LARGE[: 5 * MIB]
    offer = Offer("/files/x", len(whole), source, SendingTime(600.0))
    received: list[bytes] = []
    with source.open("wb") as writer:
        reader = threading.Thread(target=lambda: received.extend(offer.chunks()))
        reader.start()
        for start in range(0, len(whole), MIB - 7):
            part = whole[start : start + MIB - 7]
            writer.write(part)
            offer.count_written(len(part))
    offer.is_whole()
    reader.join(20)
    assert b"".join(received) == whole


def test_bytes_flushed_after_a_read_are_sent(tmp_path: Path) -> None:
    source = tmp_path / "file"
    writer = source.open("wb")
    offer = Offer("/files/x", 2, source, SendingTime(600.0))

    class Late(io.FileIO):
        @override
        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size) or b""
            writer.close()
            offer.is_whole()
            return content

    offer.source = Mock(open=lambda _: Late(source))
    writer.write(b"xy")
    offer.count_written(2)
    assert b"".join(offer.chunks()) == b"xy"


@pytest.mark.parametrize("end", ["given up", "short"])
def test_an_incomplete_read_is_not_sent_to_its_end(tmp_path: Path, end: str) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"x")
    offer = Offer("/files/x", 2, source, SendingTime(600.0))
    offer.count_written(1)
    chunks = offer.chunks()
    assert next(chunks) == b"x"
    if end == "short":
        offer.is_whole()
    else:
        offer.give_up("it was not read")
    with pytest.raises(GivenUp):
        next(chunks)


@pytest.mark.parametrize(
    ("sent", "seconds", "more", "expected"),
    [
        (0, 0.0, 1 << 40, True),
        (MIB, 0.4, 1 << 40, True),  # too early to tell
        (100 * MIB, 1.0, 499 * MIB, True),
        (100 * MIB, 1.0, 501 * MIB, False),
        (100 * MIB, 60.0, 0, True),
    ],
)
def test_a_file_is_sent_if_there_is_time_for_all_of_it(
    sent: int, seconds: float, more: int, expected: bool
) -> None:
    assert is_worthwhile(sent, seconds, more, left=5.0) is expected


def test_a_file_that_never_fits_is_no_problem(place: Place, tmp_path: Path) -> None:
    with running(tmp_path / "cache", "5Mi") as cache:
        read(place, cache.address, tmp_path / "first")
        again = read(place, cache.address, tmp_path / "second")
        assert 0 < again.bytes_read < total(place), "the large file never fits"


# fault: Store | a pod of another tenant knows the digest of a file | it has to know all of the artefact's manifest,
#   which is in the store only | prevented
def test_the_part_of_an_artefact_follows_from_its_whole_manifest(
    place: Place, cache: CacheProcess, tmp_path: Path
) -> None:
    read(place, cache.address, tmp_path / "first")
    published = place.manifest()
    other = published.model_copy(update={"nodes": published.nodes + 1})
    assert cache.get(LARGE, scope(published))
    assert not cache.get(LARGE, scope(other))
