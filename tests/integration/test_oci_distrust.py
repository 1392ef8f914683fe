"""Registries, repositories and Secrets that are not as they should be, and images that are pushed all the same, or not."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from enginewright_runtime import oci
from enginewright_runtime.oci import layout
from enginewright_runtime.oci.deadline import PushDeadline
from enginewright_runtime.oci.record import PushRecord
from enginewright_runtime.store import Store
from typing_extensions import override

from tests.support.optional import present
from tests.support.pushing import CONTENT, KEY, fill_store, push
from tests.support.source_servers import SourceServers
from tests.support.source_web import Answer, ScriptedServer, Seen
from tests.support.store_places import Place
from tests.support.store_process import FILES

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("hasty"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill_store(tmp_path / "ours/store", tmp_path / "ours/files")


def push_to(
    answer: Callable[[Seen], Answer], store: Store, root: Path, seconds: float = 300
) -> oci.Pushed:
    with ScriptedServer(answer) as server:
        repository = f"{server.url.removeprefix('http://')}/team/images"
        return push(store, root, repository, seconds=seconds)


# fault: Store | who may push to the repository of OCI images gives another namespace's tag to an image of other files,
#   of equal sizes | what is there counts only if a Job of this store has recorded it; else it is pushed again | prevented
def test_an_image_that_another_has_put_under_the_tag_is_replaced(
    servers: SourceServers, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = present(store.find(KEY))
    tag = layout.tag_of(artifact)
    repository = f"{servers.host('registry')}/team/replaced"
    reverse = {name: data[::-1] for name, data in CONTENT.items()}
    others = fill_store(tmp_path / "others/store", tmp_path / "others/files", reverse)
    with monkeypatch.context() as patched:
        patched.setattr("enginewright_runtime.oci.ensure.tag_of", lambda _: tag)
        theirs = push(others, tmp_path, repository).reference
    ours = present(push(store, tmp_path, repository).reference)
    assert ours != theirs
    with monkeypatch.context() as patched:
        patched.setattr("enginewright_runtime.oci.ensure.tag_of", lambda _: tag)
        (tmp_path / "others/store/caches").rename(tmp_path / "lost")
        assert push(others, tmp_path, repository).reference == theirs
    assert push(store, tmp_path, repository).reference == ours


def test_a_server_that_says_yes_to_everything_is_no_registry(store: Store, tmp_path: Path) -> None:
    def answer(seen: Seen) -> Answer:
        return 202, {"Location": seen.path}, b"<html>"

    def empty(seen: Seen) -> Answer:
        return 200, {"Location": seen.path}, b""

    for item in (answer, empty):
        pushed = push_to(item, store, tmp_path)
        assert pushed.reference is None
        assert "accepted the image's manifest and does not return it" in str(pushed.failure)


class InParts(BaseHTTPRequestHandler):
    """Has the image, and sends its manifest in two parts."""

    image: layout.Image
    sizes: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        self._begin(len(self.image.manifest))
        self.wfile.write(self.image.manifest[:100])
        time.sleep(0.1)
        self.wfile.write(self.image.manifest[100:])

    def do_HEAD(self) -> None:
        self._begin(self.sizes[self.path.rpartition("/")[2]])

    def _begin(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_manifest_that_arrives_in_parts_is_read_whole(store: Store, tmp_path: Path) -> None:
    artifact = present(store.find(KEY))
    layers = layout.layers_of(artifact)
    digests = [f"sha256:{number:064}" for number, _ in enumerate(layers)]
    InParts.image = layout.image_of(artifact, layers, digests)
    InParts.sizes = {digest: layer.size for digest, layer in zip(digests, layers, strict=True)}
    InParts.sizes[InParts.image.config_digest] = len(InParts.image.config)
    with ThreadingHTTPServer(("127.0.0.1", 0), InParts) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        repository = f"127.0.0.1:{server.server_port}/team/images"
        PushRecord(store, repository, layout.tag_of(artifact)).write(digests)
        reference = push(store, tmp_path, repository).reference
        assert reference == f"{repository}@{InParts.image.digest}"
        server.shutdown()


def challenge(realm: str) -> Answer:
    return 401, {"WWW-Authenticate": f'Bearer realm="{realm}"'}, b""


@pytest.mark.parametrize(
    ("realm", "reported"),
    [
        ("http://[x", "token service 'http://[x' has no address"),
        ("http://127.0.0.1:99999/", "it does not answer as a web server should (InvalidUrl"),
        ("", "it does not answer as a web server should (InvalidUrl"),
    ],
)
def test_a_token_service_without_an_address(
    realm: str, reported: str, store: Store, tmp_path: Path
) -> None:
    pushed = push_to(lambda _: challenge(realm), store, tmp_path)
    assert reported in str(pushed.failure)


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b'{"token": "a\\nb"}', "sends no token"),
        (b'{"token": "\\ud800"}', "sends no token"),
        (b'{"token": 5}', "sends no token"),
        (b'{"token": {}, "access_token": ["x"]}', "sends no token"),
        (b"[]", "sends no token"),
        (b"[" * 100_000, "sends no token"),
        (b"x" * (3 << 20), "/token answers with more than 1.0 MiB"),
    ],
)
def test_a_token_that_is_none(body: bytes, reported: str, store: Store, tmp_path: Path) -> None:
    def answer(seen: Seen) -> Answer:
        if seen.path.startswith("/token"):
            return 200, {}, body
        return challenge(f"http://{seen.headers['Host']}/token")

    assert reported in str(push_to(answer, store, tmp_path).failure)


def test_a_manifest_that_nothing_can_read_is_replaced(store: Store, tmp_path: Path) -> None:
    def answer(seen: Seen) -> Answer:
        return (200, {}, b"[" * 100_000) if seen.method == "GET" else (404, {}, b"")

    assert "404" in str(push_to(answer, store, tmp_path).failure)


# fault: Store | the push of an OCI image fails with an unexpected error | the artefact stays published, the
#   error's name is in the report, and pods read the store | with the next Job
def test_no_error_of_a_push_fails_the_stage(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("wr0ng")

    monkeypatch.setattr("enginewright_runtime.oci.ensure.layers_of", fail)
    pushed = push_to(lambda _: (404, {}, b""), store, tmp_path)
    assert "team/images failed unexpectedly with RecursionError" in str(pushed.failure)
    assert "wr0ng" not in str(pushed.failure)


TOO_SLOW = "if this repeats, the store or the registry is too slow for this artefact"


def test_a_registry_that_does_not_answer_in_time(store: Store, tmp_path: Path) -> None:
    def answer(_: Seen) -> Answer:
        time.sleep(2)
        return 404, {}, b""

    pushed = push_to(answer, store, tmp_path, seconds=0.2)
    assert "was ended after 0 s, before anything was stored, at " in str(pushed.failure)
    assert TOO_SLOW in str(pushed.failure)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_store_that_cannot_be_read_in_time(
    is_taken: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end counts for what is read too, and says whether the next Job gets further."""
    artifact = present(store.find(KEY))
    slow = layout.layers_of(artifact)[1 if is_taken else 0].files[0]
    chunks = layout.ImageLayer.chunks
    late: list[bytes] = []

    def slowly(layer: layout.ImageLayer, opened: layout.Opened) -> Iterator[bytes]:
        for chunk in chunks(layer, opened):
            if layer.files[0] == slow:
                late.append(chunk)
            yield chunk

    def answer(seen: Seen) -> Answer:
        if seen.method == "POST":
            return 202, {"Location": "/upload"}, b""
        return (201 if seen.method == "PUT" else 404), {}, b""

    monkeypatch.setattr(layout.ImageLayer, "chunks", slowly)
    monkeypatch.setattr(PushDeadline, "count_seconds", lambda _: -1.0 if late else 300.0)
    failure = str(push_to(answer, store, tmp_path).failure)
    if is_taken:
        assert "s; no action needed: the next Job that finds the artefact continues" in failure
    else:
        assert f"before anything was stored, at {slow.path} (" in failure
        assert TOO_SLOW in failure


def test_an_artefact_in_a_bucket_is_pushed_without_a_copy_on_the_disk(
    servers: SourceServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod's disk may have a limit; a file larger than one request, and more than an image has layers."""
    servers.put_s3("images", {})
    bucket = Place("s3://images/large", servers.s3()).store()
    content = {**CONTENT, FILES[0]: np.random.default_rng(7).bytes((33 << 20) + 5)}
    content |= {f"model/parts/{number}": b"%d" % number for number in range(40)}
    fill_store(bucket, tmp_path / "a", content)
    volume = fill_store(tmp_path / "store", tmp_path / "b", content)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    pushed = push(bucket, tmp_path, f"{servers.host('registry')}/team/large")
    assert pushed.failure is None
    # it finds the same layers, which the registry has compared with their digests
    assert push(volume, tmp_path, f"{servers.host('registry')}/team/large") == pushed


def test_a_damaged_object_is_not_pushed(servers: SourceServers, tmp_path: Path) -> None:
    servers.put_s3("images", {})
    bucket = Place("s3://images/damaged", servers.s3()).store()
    fill_store(bucket, tmp_path / "files")
    artifact = present(bucket.find(KEY))
    for file, content, reported in (
        (artifact.files[0], CONTENT[FILES[0]][:-1], "300015 bytes instead of 300016"),
        (artifact.files[0], b"x" + CONTENT[FILES[0]][1:], "has sha256"),
    ):
        servers.put_s3("images", {f"damaged/files/{file.sha256}": content})
        pushed = push(bucket, tmp_path, f"{servers.host('registry')}/team/damaged-object")
        assert f"file {file.path} " in str(pushed.failure)
        assert reported in str(pushed.failure)
