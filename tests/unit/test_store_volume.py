"""The store on a volume: whole or not there, one winner, nothing unchecked is read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from enginewright_contract.keys import compute_prepared_key, engine_key
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.store import ENGINE, Store

from tests.support.manifests import engine_info
from tests.support.store_process import FILES, manifest, publish

KEY = "ab" * 32
NAMES = tuple(Path(name).name for name in FILES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def content(folder: Path, text: bytes = b"content") -> Path:
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(text + name.encode())
    return folder


def artifact(root: Path) -> Path:
    return root / "prepared" / KEY


def corrupt_manifest(root: Path, **changes: object) -> None:
    path = artifact(root) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_published_artefact_is_read(root: Path, tmp_path: Path) -> None:
    assert publish(root, KEY, content(tmp_path / "a")) is False
    assert publish(root, KEY, content(tmp_path / "b")) is True
    copied = Store(root).read(KEY, tmp_path / "artifact")
    assert [file.path for file in copied.files] == list(FILES)
    for name in FILES:
        assert (tmp_path / "artifact" / name).read_bytes() == b"content" + Path(name).name.encode()
    kept = (tmp_path / "artifact/manifest.json").read_text()
    assert Manifest.model_validate_json(kept) == copied
    assert not list((root / "tmp").iterdir())


def test_unpublished_artefact_is_missing(root: Path, tmp_path: Path) -> None:
    assert Store(root).find(KEY) is None
    with pytest.raises(StageFailure, match="no prepared model with key abababababab") as caught:
        Store(root).read(KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ARTIFACT_MISSING


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_is_found_and_named(name: str, root: Path, tmp_path: Path) -> None:
    publish(root, KEY, content(tmp_path / "a"))
    path = artifact(root) / name
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(StageFailure, match=f"file {name} has sha256") as caught:
        Store(root).read(KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT
    assert not (tmp_path / "artifact" / name).exists()
    assert not (tmp_path / "artifact/manifest.json").exists(), "no manifest: no artefact"


def cut(path: Path) -> None:
    path.write_bytes(b"short")


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    path.rename(path.with_suffix(".x"))
    path.symlink_to("outputs.x")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [cut, remove, link, make_folder, make_pipe])
def test_damaged_files(damage: Callable[[Path], None], root: Path, tmp_path: Path) -> None:
    publish(root, KEY, content(tmp_path / "a"))
    damage(artifact(root) / FILES[2])
    reported = "has 5 bytes instead of" if damage is cut else "is missing"
    with pytest.raises(StageFailure, match=f"file {FILES[2]} {reported}") as caught:
        Store(root).read(KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT


def test_publishing_again_repairs_damage(root: Path, tmp_path: Path) -> None:
    publish(root, KEY, content(tmp_path / "a"))
    (artifact(root) / FILES[0]).write_bytes(b"damaged")
    assert publish(root, KEY, content(tmp_path / "b")) is False
    Store(root).read(KEY, tmp_path / "artifact")
    (artifact(root) / "manifest.json").write_text("{")
    assert publish(root, KEY, content(tmp_path / "c")) is False
    Store(root).read(KEY, tmp_path / "artifact")


@pytest.mark.parametrize(
    "path",
    [
        "../escape", "/etc/passwd", "a/../../b", "", ".", "a//b", "./a", "manifest.json", "manifest.json/x",
        "x" * 256, "é" * 128, "/".join("a" * 41), "/".join(["x" * 200] * 6), "/".join("a" * 1_000_000),
    ],
    ids=lambda path: path[:20],
)  # fmt: skip
def test_a_manifest_that_points_outside(path: str, root: Path, tmp_path: Path) -> None:
    publish(root, KEY, content(tmp_path / "a"))
    more = [ArtifactFile(path=path, sha256="0" * 64, size_bytes=0).model_dump()]
    files = json.loads((artifact(root) / "manifest.json").read_text())["files"]
    corrupt_manifest(root, files=[*files, *more])
    with pytest.raises(StageFailure, match="which is not inside the artefact"):
        Store(root).read(KEY, tmp_path / "artifact")
    assert not (tmp_path / "escape").exists()


def test_the_longest_paths_that_every_pod_can_create(root: Path, tmp_path: Path) -> None:
    folder = content(tmp_path / "a")
    longest = ("é" * 127 + "x", "/".join("a" * 40), "/".join(["x" * 204] * 5))
    files = {name: folder / Path(name).name for name in FILES} | dict.fromkeys(
        longest, folder / NAMES[0]
    )
    Store(root).publish(KEY, files, lambda listed: manifest(KEY, listed))
    copied = Store(root).read(KEY, tmp_path / "artifact")
    assert {file.path for file in copied.files} == {*FILES, *longest}


def test_a_path_that_no_pod_can_create_is_not_published(root: Path, tmp_path: Path) -> None:
    folder = content(tmp_path / "a")
    files = {name: folder / Path(name).name for name in FILES} | {"x" * 256: folder / NAMES[0]}
    with pytest.raises(StageFailure, match=r"the path of the file 'x+' … is too long") as caught:
        Store(root).publish(KEY, files, lambda listed: manifest(KEY, listed))
    assert caught.value.reason is Reason.INVALID_MODEL
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"key": "cd" * 32}, "belongs to another key"),
        ({"version": 99}, "newer version of Enginewright"),
        ({"files": []}, "does not list model/model.onnx"),
        ({"files": None}, "cannot be read"),
    ],
)
def test_invalid_manifest(
    changes: dict[str, object], reported: str, root: Path, tmp_path: Path
) -> None:
    publish(root, KEY, content(tmp_path / "a"))
    corrupt_manifest(root, **changes)
    with pytest.raises(StageFailure, match=reported) as caught:
        Store(root).find(KEY)
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT


@pytest.mark.parametrize("data", [{}, {"samples": "5" * 64}])
def test_artefact_under_another_key(data: dict[str, str], root: Path, tmp_path: Path) -> None:
    described = manifest(KEY, ())
    own = compute_prepared_key(described.model_digest, described.recipe, data)
    folder = content(tmp_path / "a")
    files = {name: folder / Path(name).name for name in FILES}

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        return manifest(own, listed).model_copy(update={"data": data})

    store = Store(root)
    store.publish(own, files, describe)
    assert store.find_intact(own) is not None
    copied = root / "prepared" / KEY
    shutil.copytree(root / "prepared" / own, copied)
    corrupt_manifest(root, key=KEY)
    with pytest.raises(StageFailure, match="is not that of its recipe") as caught:
        store.find(KEY)
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT
    corrupt_manifest(root, data=None)
    assert store.find_intact(KEY) is not None, "of an earlier version"


ENGINE_INFO = engine_info("tensorrt-rtx", prepared_key="cd" * 32, file=FILES[1])
ENGINE_KEY = engine_key(ENGINE_INFO.prepared_key, ENGINE_INFO.recipe)


def as_engine(manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"key": ENGINE_KEY, "engine": ENGINE_INFO})


def test_engines_are_kept_apart_with_their_own_messages(root: Path, tmp_path: Path) -> None:
    publish(root, ENGINE_KEY, content(tmp_path / "a"))
    store = Store(root, ENGINE)
    assert store.find(ENGINE_KEY) is None
    shown = ENGINE_KEY[:12]
    with pytest.raises(
        StageFailure, match=f"no engine with key {shown}; no action needed: it is rebuilt"
    ):
        store.read(ENGINE_KEY, tmp_path / "artifact")
    files = {name: root / "prepared" / ENGINE_KEY / name for name in FILES}
    made, cached = store.publish(
        ENGINE_KEY, files, lambda listed: as_engine(manifest(ENGINE_KEY, listed))
    )
    assert not cached
    assert store.read(ENGINE_KEY, tmp_path / "artifact") == store.find_intact(ENGINE_KEY) == made
    assert sorted(path.name for path in root.iterdir()) == ["engines", "prepared", "tmp"]

    (root / "engines" / ENGINE_KEY / FILES[1]).write_bytes(b"damaged")
    assert store.find_intact(ENGINE_KEY) is None
    with pytest.raises(StageFailure, match=f"engine {shown} is damaged: file") as caught:
        store.read(ENGINE_KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ENGINE_CORRUPT
    assert Store(root).find_intact(ENGINE_KEY) is not None, "the prepared model is another artefact"


# fault: Store | an artefact lies whole under the key of another one, and its manifest names that key | the key
#   computed from what the manifest describes; the artefact is made again | when it is read
def test_an_engine_under_the_key_of_another_one_is_replaced(root: Path, tmp_path: Path) -> None:
    store = Store(root, ENGINE)
    folder = content(tmp_path / "a")
    files = {name: folder / Path(name).name for name in FILES}
    store.publish(ENGINE_KEY, files, lambda listed: as_engine(manifest(ENGINE_KEY, listed)))
    other = ENGINE_INFO.model_copy(update={"prepared_key": "ef" * 32})
    key = engine_key(other.prepared_key, other.recipe)
    lying = json.loads((root / "engines" / ENGINE_KEY / "manifest.json").read_text())
    shutil.copytree(root / "engines" / ENGINE_KEY, root / "engines" / key)
    (root / "engines" / key / "manifest.json").write_text(json.dumps(lying | {"key": key}))
    with pytest.raises(StageFailure, match=r"the key in manifest\.json is not that") as caught:
        store.read(key, tmp_path / "artifact")
    assert caught.value.reason is Reason.ENGINE_CORRUPT
    assert not (tmp_path / "artifact").exists()
    assert store.find_intact(key) is None

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        return manifest(key, listed).model_copy(update={"engine": other})

    assert store.publish(key, files, describe)[1] is False
    assert store.find_intact(key) is not None


def test_a_manifest_of_the_other_kind(root: Path, tmp_path: Path) -> None:
    publish(root, KEY, content(tmp_path / "a"))
    (root / "engines").mkdir()
    artifact(root).rename(root / "engines" / KEY)
    with pytest.raises(StageFailure, match=r"manifest\.json describes something else") as caught:
        Store(root, ENGINE).find(KEY)
    assert caught.value.reason is Reason.ENGINE_CORRUPT


def test_a_volume_that_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(StageFailure, match="the store does not exist") as caught:
        Store(tmp_path / "none").find(KEY)
    assert caught.value.reason is Reason.STORE_UNAVAILABLE


def test_reports_are_replaced_whole(root: Path) -> None:
    store = Store(root)
    store.put_report("job-1", "fetch", "1")
    store.put_report("job-1", "fetch", "2")
    assert [path.name for path in (root / "reports/job-1").iterdir()] == ["fetch.json"]
    assert (root / "reports/job-1/fetch.json").read_text() == "2"
    with pytest.raises(StageFailure, match="cannot name a report"):
        store.put_report("../job", "fetch", "3")
