"""The layout of OCI images of artefacts: the same bytes each time, and few layers."""

import io
import json
import re
import tarfile
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Final

import pytest
from enginewright.controller.settings import ImageSettings
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.oci_images import IMAGE_REPOSITORY
from enginewright_runtime.core.digests import Copied, copy
from enginewright_runtime.oci.layout import (
    ImageLayer,
    digest_of,
    image_of,
    layers_of,
    tag_of,
)
from pydantic import ValidationError

from tests.support.manifests import engine_info, manifest

LONG: Final = f"model/{'ä' * 60}/{'x' * 200}.bin"  # tar's own field has 100 bytes
PINNED: Final = "sha256:f02eef0fc8f9e8ad0eb23785a240eb3266a1c09801ee12d4b49d1f41b0c8949f"
FILES: Final = {
    "model/model.onnx": b"model",
    LONG: bytes(1000),
    "golden/empty.npz": b"",
    "golden/exact.npz": bytes(512),
}


def describe(files: dict[str, bytes], **fields: object) -> Manifest:
    def list_file(path: str, content: bytes) -> ArtifactFile:
        copied: Copied = copy(io.BytesIO(content), None)
        return ArtifactFile(path=path, sha256=copied.sha256, size_bytes=copied.size_bytes)

    return manifest(files=tuple(list_file(*file) for file in files.items()), **fields)


def content(layer: ImageLayer, files: dict[str, bytes]) -> bytes:
    def open_content(file: ArtifactFile) -> AbstractContextManager[io.BytesIO]:
        return closing(io.BytesIO(files[file.path]))

    return b"".join(layer.chunks(open_content))


def push(image: Manifest, files: dict[str, bytes]) -> tuple[list[bytes], bytes]:
    layers = layers_of(image)
    archives = [content(layer, files) for layer in layers]
    return archives, image_of(image, layers, [digest_of(archive) for archive in archives]).manifest


def unpack(archives: list[bytes], folder: Path) -> dict[str, bytes]:
    for data in archives:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            archive.extractall(folder, filter="data")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_layer_is_an_archive_of_the_file_and_as_large_as_it_says(tmp_path: Path) -> None:
    image = describe(FILES)
    archives, _ = push(image, FILES)
    assert [len(archive) for archive in archives] == [layer.size for layer in layers_of(image)]
    assert unpack(archives, tmp_path) == FILES


def test_every_member_can_be_read_by_every_user() -> None:
    (layer, *_) = layers_of(describe(FILES))
    with tarfile.open(fileobj=io.BytesIO(content(layer, FILES)), mode="r:") as archive:
        members = archive.getmembers()
    assert [member.isdir() for member in members] == [True, True, False]
    assert {member.mode for member in members} == {0o755, 0o644}
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, 0)}


def test_an_image_follows_from_the_files_whatever_their_order() -> None:
    """A node has pulled it, and Jobs of later releases find it: it changes only with its format."""
    image = describe(FILES)
    turned = describe(dict(reversed(FILES.items())), versions={"enginewright": "9.9.9"})
    assert push(image, FILES) == push(turned, FILES)
    assert tag_of(image) == tag_of(turned) == f"prepared-{'a' * 64}-db11b6cefc3eb61f"
    assert digest_of(push(image, FILES)[1]) == PINNED


def test_another_content_or_kind_is_another_image() -> None:
    image, engine = describe(FILES), describe(FILES, engine=engine_info())
    other = describe({**FILES, "golden/empty.npz": b"x"})
    assert len({tag_of(image), tag_of(engine), tag_of(other)}) == 3
    assert tag_of(engine).startswith("engine-")
    assert json.loads(push(engine, FILES)[1])["annotations"] == {
        "dev.enginewright.key": "a" * 64,
        "dev.enginewright.kind": "engine",
    }


def test_no_image_has_more_layers_than_nodes_can_stack(tmp_path: Path) -> None:
    files = {f"model/part-{number:04}": bytes(number) for number in range(1000)}
    image = describe(files)
    archives, _ = push(image, files)
    assert len(archives) == 32
    assert [layer.files[0].size_bytes for layer in layers_of(image)[:2]] == [999, 998]
    assert unpack(archives, tmp_path) == files


def chart_pattern() -> str:
    template = Path("charts/enginewright/templates/_helpers.tpl").read_text()
    (pattern,) = re.findall(r"regexMatch `(.*)` \.repository", template)
    return str(pattern)


def test_the_chart_has_the_pattern_of_the_settings() -> None:
    assert chart_pattern() == IMAGE_REPOSITORY


@pytest.mark.parametrize(
    "repository",
    [
        "registry.example.com/team/artefacts", "registry:5000/images", "localhost/images", "10.0.0.1:5000/a",
        "docker.io/team/my-images_1.x", "registry.example.com/a__b/c--d",
    ],
)  # fmt: skip
def test_repositories(repository: str) -> None:
    assert ImageSettings(repository=repository).repository == repository
    assert re.search(chart_pattern(), repository)


@pytest.mark.parametrize(
    "repository",
    [
        "images", "team/images", "registry.example.com", "registry.example.com/", "https://registry.example.com/a",
        "oci://registry.example.com/a", "registry.example.com/a:tag", "registry.example.com/A",
        f"registry.example.com/a@sha256:{'1' * 64}", "user:pw@registry.example.com/a", "registry.example.com/a//b",
        "registry.example.com/a ", "registry.example.com/../a", "registry.example.com:port/a",
    ],
)  # fmt: skip
def test_invalid_repository_is_refused(repository: str) -> None:
    with pytest.raises(ValidationError):
        ImageSettings(repository=repository)
    assert not re.search(chart_pattern(), repository)


def test_a_reference_fits_into_a_status() -> None:
    with pytest.raises(ValidationError, match="180"):
        ImageSettings(repository=f"registry.example.com/{'a' * 160}")
