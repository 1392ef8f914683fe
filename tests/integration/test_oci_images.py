"""OCI images of artefacts in a real registry: pushed once, the same each time, and never trusted by who mounts them."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from enginewright_contract.keys import engine_key
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.task import EngineRecipe, EngineTask
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.pipeline import own_pipeline
from enginewright_runtime.engine import lookup
from enginewright_runtime.oci import layout
from enginewright_runtime.store import ENGINE, Store, credit

from tests.support import broken_models as broken
from tests.support.containerd import containerd
from tests.support.manifests import engine_info
from tests.support.optional import present
from tests.support.preparing import Outcome, Workplace
from tests.support.pushing import CONTENT, KEY, fill_store, push
from tests.support.source_cutter import Cutter
from tests.support.source_servers import PASSWORD, USERNAME, SourceServers, go_servers
from tests.support.source_web import Answer, ScriptedServer, Seen
from tests.support.store_places import Place
from tests.support.store_process import FILES, manifest

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("hasty"),
]
ACCOUNT = {"username": USERNAME, "password": PASSWORD}
WRONG = {**ACCOUNT, "password": "wr0ng"}
NO_ACCOUNTS = {".dockerconfigjson": "{}"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill_store(tmp_path / "store", tmp_path / "files")


def read(servers: SourceServers, reference: str, kind: str = "manifests") -> bytes:
    """Return a manifest or blob of the open registry."""
    repository, _, digest = reference.partition("/")[2].partition("@")
    url = f"{servers.addresses['registry']}/v2/{repository}/{kind}/{digest}"
    with urlopen(Request(url, headers={"Accept": layout.MANIFEST_TYPE}), timeout=20) as response:
        content: bytes = response.read()
    return content


def unpack(servers: SourceServers, reference: str, folder: Path) -> dict[str, Any]:
    """Unpack an image as a node does, and return its manifest."""
    image_manifest: dict[str, Any] = json.loads(read(servers, reference))
    repository = reference.partition("@")[0]
    config = json.loads(
        read(servers, f"{repository}@{image_manifest['config']['digest']}", "blobs")
    )
    assert config["rootfs"]["diff_ids"] == [item["digest"] for item in image_manifest["layers"]]
    for item in image_manifest["layers"]:
        content = read(servers, f"{repository}@{item['digest']}", "blobs")
        assert len(content) == item["size"]
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            archive.extractall(folder, filter="data")
    return image_manifest


def uploads(cutter: Cutter) -> list[str]:
    return [request for request in cutter.requests if request.startswith(("POST", "PUT"))]


def test_an_image_holds_the_files_and_is_pushed_once(
    store: Store, servers: SourceServers, tmp_path: Path
) -> None:
    with Cutter(servers.addresses["registry"]) as cutter:
        repository = f"127.0.0.1:{cutter.port}/team/once"
        pushed = push(store, tmp_path, repository)
        assert pushed.failure is None
        assert pushed.reference is not None
        assert pushed.reference.startswith(f"{repository}@sha256:")
        assert len([upload for upload in uploads(cutter) if "/blobs/" in upload]) == 2 * (
            len(FILES) + 1
        )
        image_manifest = unpack(servers, pushed.reference, tmp_path / "image")
        assert image_manifest["annotations"]["dev.enginewright.key"] == KEY
        for name, content in CONTENT.items():
            assert (tmp_path / "image" / name).read_bytes() == content
        cutter.requests.clear()
        assert push(store, tmp_path, repository) == pushed
        assert uploads(cutter) == []


def test_a_node_pulls_and_mounts_an_image(servers: SourceServers, tmp_path: Path) -> None:
    """Its runtime stacks the layers, of which there are as many as an image may have."""
    content = {**CONTENT, **{f"model/parts/{number}": b"%d" % number for number in range(40)}}
    store = fill_store(tmp_path / "store", tmp_path / "files", content)
    reference = present(push(store, tmp_path, f"{servers.host('registry')}/team/node").reference)
    with containerd() as runtime, runtime.mount_image(reference) as image:
        for name, data in content.items():
            assert (image / name).read_bytes() == data
            assert (image / name).stat().st_mode & 0o777 == 0o644


def test_equal_artefacts_have_one_image_in_any_store(
    store: Store, servers: SourceServers, tmp_path: Path
) -> None:
    servers.put_s3("images", {})
    bucket = Place("s3://images/shop", servers.s3()).store()
    fill_store(bucket, tmp_path / "others")
    host = servers.host("registry")
    of_bucket = push(bucket, tmp_path, f"{host}/team/bucket").reference
    of_volume = push(store, tmp_path, f"{host}/team/volume").reference
    assert of_bucket is not None
    assert of_volume is not None
    assert of_bucket.partition("@")[2] == of_volume.partition("@")[2]


def test_artefacts_of_one_key_with_other_content_keep_their_images(
    store: Store, servers: SourceServers, tmp_path: Path
) -> None:
    repository = f"{servers.host('registry')}/team/both"
    other = fill_store(tmp_path / "other", tmp_path / "b", {**CONTENT, FILES[0]: b"other"})
    references = [push(item, tmp_path, repository).reference for item in (store, other)]
    assert references[0] != references[1]
    url = f"{servers.addresses['registry']}/v2/team/both/tags/list"
    with urlopen(url, timeout=20) as response:
        tags = json.load(response)["tags"]
    assert len(tags) == 2
    assert all(tag.startswith(f"prepared-{KEY}-") for tag in tags)


@pytest.mark.parametrize("kind", ["registry_basic", "registry_token"])
def test_an_account_pushes(kind: str, store: Store, servers: SourceServers, tmp_path: Path) -> None:
    pushed = push(store, tmp_path, f"{servers.host(kind)}/team/{kind}", ACCOUNT)
    assert pushed.failure is None
    assert pushed.reference is not None
    unpack(servers, pushed.reference, tmp_path / "image")


@pytest.mark.parametrize(
    ("kind", "repository", "secret", "reported"),
    [
        ("registry_basic", "team/denied", None, "401 Unauthorized; check the account"),
        ("registry_token", "team/denied", None, "401 Unauthorized; check the account"),
        ("registry_basic", "team/denied", WRONG, "check the account in store.images.secretRef"),
        ("registry_token", "team/denied", WRONG, "/token answered 401"),
        ("registry_token", "readonly/images", ACCOUNT, "401 Unauthorized; check the account"),
        ("registry_token", "team/denied", NO_ACCOUNTS, "is no Docker configuration"),
    ],
)
def test_a_denied_push_is_reported_and_fails_no_stage(
    kind: str,
    repository: str,
    secret: dict[str, str] | None,
    reported: str,
    store: Store,
    servers: SourceServers,
    tmp_path: Path,
) -> None:
    pushed = push(store, tmp_path, f"{servers.host(kind)}/{repository}", secret)
    assert pushed.reference is None
    assert reported in str(pushed.failure)
    assert "wr0ng" not in str(pushed.failure)
    assert PASSWORD not in str(pushed.failure)


# fault: Store | the registry is killed while the image of an artefact is pushed | the artefact stays published, pods
#   read it from the store, and the next Job that finds it pushes only what is missing | with that Job
def test_a_registry_that_is_killed_gets_the_rest_later(store: Store, tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    with go_servers(tmp_path / "servers") as servers:
        sent: list[str] = []

        def kill_at_the_second(request: str) -> None:
            if request.startswith("PUT"):
                sent.append(request)
                if len(sent) == 2:
                    servers.kill()

        address = servers.addresses["registry"]
        with Cutter(address, on_request=kill_at_the_second) as cutter:
            repository = f"127.0.0.1:{cutter.port}/team/killed"
            pushed = push(store, tmp_path, repository)
            assert pushed.reference is None
            assert "tries); check store.images, and that pods" in str(pushed.failure)
            servers.start()
            cutter.redirect(servers.addresses["registry"])
            cutter.requests.clear()
            assert push(store, tmp_path, repository).reference is not None
            # the rest of the layers, the configuration, and the manifest
            puts = [item for item in cutter.requests if item.startswith("PUT")]
            assert len(puts) == len(FILES) - 1 + 2


def test_a_damaged_artefact_is_not_pushed(
    store: Store, servers: SourceServers, tmp_path: Path
) -> None:
    path = tmp_path / "store/prepared" / KEY / FILES[0]
    path.write_bytes(b"x" + CONTENT[FILES[0]][1:])
    pushed = push(store, tmp_path, f"{servers.host('registry')}/team/damaged")
    assert pushed.reference is None
    assert f"is damaged: file {FILES[0]} has sha256" in str(pushed.failure)


def test_lost_or_foreign_content_is_pushed_again(
    store: Store, servers: SourceServers, tmp_path: Path
) -> None:
    repository = f"{servers.host('registry')}/team/lost"
    pushed = push(store, tmp_path, repository)
    assert pushed.reference is not None
    layer = json.loads(read(servers, pushed.reference))["layers"][0]["digest"]
    servers.blob_file(layer).unlink()
    assert push(store, tmp_path, repository) == pushed
    assert servers.blob_file(layer).exists()
    artifact = present(store.find(KEY))
    servers.push("team/lost", layout.tag_of(artifact), {"net.onnx": b"x"})
    assert push(store, tmp_path, repository) == pushed


# fault: Security | a registry names another server to upload to | the push fails, and no
#   credentials are sent | prevented
def test_credentials_are_sent_to_no_other_server(store: Store, tmp_path: Path) -> None:
    with ScriptedServer(lambda _: (404, {}, b"")) as other:

        def answer(seen: Seen) -> Answer:
            if seen.method == "POST":
                return 202, {"Location": f"{other.url}/upload"}, b""
            return 404, {}, b""

        with ScriptedServer(answer) as server:
            host = server.url.removeprefix("http://")
            pushed = push(store, tmp_path, f"{host}/team/images", ACCOUNT)
        assert "which is not its own address" in str(pushed.failure)
        assert other.seen == []


def test_a_lookup_reports_the_image_of_an_engine(servers: SourceServers, tmp_path: Path) -> None:
    recipe = EngineRecipe(
        backend="tensorrt", backend_version="10.1", ort_version="1.31.1", accelerator_class="l4"
    )
    key = engine_key(KEY, recipe)
    (tmp_path / "store").mkdir()

    def describe(files: tuple[ArtifactFile, ...]) -> Manifest:
        info = engine_info(recipe=recipe, prepared_key=KEY)
        return manifest(key, files).model_copy(update={"engine": info})

    content = {"engine": b"engine", **CONTENT}
    engines = Store(tmp_path / "store", ENGINE)
    fill_store(engines, tmp_path / "files", content, key=key, describe=describe)
    paths = replace(Paths.under(tmp_path), images=f"{servers.host('registry')}/team/engines")
    task = EngineTask(job="job-1", engine_key=key, prepared_key=KEY, recipe=recipe)
    credit._give_credit(engines, present(engines.find(key)), own_pipeline())
    report = lookup.run(task, paths)
    assert report.engine is not None
    assert report.engine.image is not None
    assert f"its OCI image is {report.engine.image}" in report.message
    assert "tags" not in unpack(servers, report.engine.image, tmp_path / "image")
    assert (tmp_path / "image/engine").read_bytes() == b"engine"
    without = lookup.run(task, Paths.under(tmp_path))
    assert without.engine is not None
    assert (without.engine.image, without.engine.image_failure) == (None, None)


@pytest.fixture
def prepared(servers: SourceServers, tmp_path: Path) -> tuple[Workplace, Outcome]:
    """Return a pod's folders, and the outcome of a model's preparation in them."""
    images = {"ENGINEWRIGHT_IMAGES": f"{servers.host('registry')}/team/stages"}
    place = Workplace(tmp_path, environment=images)
    task = place.task(place.put("net.onnx", broken.relu()))
    return place, place.complete(task.model_copy(update={"pipeline": "this"}))


def test_a_model_that_the_store_has_keeps_its_image(prepared: tuple[Workplace, Outcome]) -> None:
    place, outcome = prepared
    assert outcome.published.image is not None
    task = place.task("pvc://models/net.onnx").model_copy(update={"pipeline": "this"})
    again = place.stage("fetch", task)
    assert again.published.cached
    assert again.published.image == outcome.published.image
    place.environment = {"ENGINEWRIGHT_IMAGES": "127.0.0.1:9/team/none"}
    without = place.stage("fetch", task)
    assert without.code == 0
    assert without.published.image is None
    assert "cannot connect to 127.0.0.1:9" in str(without.published.image_failure)
    assert "pods read it from the store" in without.log


# fault: Store | the OCI image that a pod mounts lacks files of the artefact, has others, or cannot be read | each file is
#   compared with its digest, and read from the store instead | prevented
def test_a_pod_reads_the_image_and_trusts_none_of_it(
    prepared: tuple[Workplace, Outcome], servers: SourceServers
) -> None:
    place, outcome = prepared
    published = outcome.published
    assert published.image is not None
    image = place.root / "artifact-image"
    unpack(servers, published.image, image)
    fetched = place.fetch_artifact(published.key)
    size = sum(path.stat().st_size for path in image.rglob("*") if path.is_file())
    assert size == published.size_bytes
    assert fetched.code == 0
    total, _, part = fetched.message.removesuffix(", all digests match").rpartition("B, ")
    assert part == f"{total.rpartition(', ')[2]}B of it from its OCI image"
    model = (place.root / "artifact/model/model.onnx").read_bytes()

    (image / "model/model.onnx").write_bytes(b"x" + model[1:])
    (image / "golden/inputs.npz").unlink()
    (image / "golden/parts.npz").unlink()
    (image / "golden/outputs.npz").unlink()
    (image / "golden/outputs.npz").symlink_to("/proc/self/environ")
    fetched = place.fetch_artifact(published.key)
    assert fetched.code == 0
    assert "0 B of it from its OCI image" in fetched.message
    assert "model/model.onnx is damaged in the OCI image" in fetched.log
    assert "golden/inputs.npz is missing in the OCI image" in fetched.log
    assert "golden/outputs.npz is missing in the OCI image" in fetched.log
    assert (place.root / "artifact/model/model.onnx").read_bytes() == model
