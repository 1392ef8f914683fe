"""Images of one static binary, and what an archive is known by."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from driver.errors import ClusterError
from driver.image_copies import chains, folder_below, own_folder
from driver.images import canonical, inspect


def _archive(path: Path, members: dict[str, object]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            raw = json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def _oci(path: Path, name: str, digest: str) -> Path:
    annotations = {"org.opencontainers.image.ref.name": name}
    return _archive(
        path, {"index.json": {"manifests": [{"digest": digest, "annotations": annotations}]}}
    )


def _binary(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_reads_an_oci_archive(tmp_path: Path) -> None:
    one = inspect(_oci(tmp_path / "a.tar", "localhost/x:1", "sha256:1"))
    other = inspect(_oci(tmp_path / "b.tar", "localhost/x:1", "sha256:2"))
    assert one.references == other.references == ("localhost/x:1",)
    assert one.digest != other.digest


def test_refuses_an_archive_without_a_name(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "a.tar", {"index.json": {"manifests": [{"digest": "sha256:1"}]}})
    with pytest.raises(ClusterError, match="contains no image name"):
        inspect(archive)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b cut"])
def test_invalid_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ClusterError, match="is not an image archive"):
        inspect(_binary(tmp_path / "x.tar", content))


def test_refuses_an_archive_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is not an image archive"):
        inspect(_archive(tmp_path / "x.tar", {"readme": {}}))


def test_refuses_a_name_without_a_tag(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="contains 'localhost:5000/x' without a tag"):
        inspect(_oci(tmp_path / "a.tar", "localhost:5000/x", "sha256:1"))


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("x:1", "docker.io/library/x:1"),
        ("x", "docker.io/library/x:latest"),
        ("team/x:1", "docker.io/team/x:1"),
        ("localhost/x:1", "localhost/x:1"),
        ("registry.example/x", "registry.example/x:latest"),
        ("host:5000/x:1", "host:5000/x:1"),
        ("host:5000/x", "host:5000/x:latest"),
    ],
)
def test_a_kubelet_asks_for_whole_names(given: str, asked: str) -> None:
    assert canonical(given) == asked


def test_a_stack_of_layers_has_the_names_that_the_oci_specification_gives_it() -> None:
    layers = [f"sha256:{letter * 64}" for letter in "abc"]
    second = hashlib.sha256(f"{layers[0]} {layers[1]}".encode()).hexdigest()
    third = hashlib.sha256(f"sha256:{second} {layers[2]}".encode()).hexdigest()
    assert list(chains(layers)) == [layers[0], f"sha256:{second}", f"sha256:{third}"]


def test_a_layers_files_are_found_in_the_command_that_mounts_it() -> None:
    first = "mount -t bind /c/snapshots/1/fs /mnt -o rw,rbind"
    options = "index=off,workdir=/c/snapshots/7/work,upperdir=/c/snapshots/7/fs"
    third = (
        f"mount -t overlay overlay /mnt -o {options},lowerdir=/c/snapshots/4/fs:/c/snapshots/1/fs"
    )
    assert own_folder(first) == "/c/snapshots/1/fs"
    assert own_folder(third) == "/c/snapshots/7/fs"
    assert folder_below(third) == "/c/snapshots/4/fs"
    with pytest.raises(ClusterError, match="in folders"):
        folder_below(first)
