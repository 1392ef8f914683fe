"""An image's tag changes with what runs in it, and with nothing else: a new tag replaces every pod."""

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.support.image_builder import load_images

REPOSITORY: Final = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def images() -> ModuleType:
    return load_images()


def sources(images: ModuleType, name: str) -> set[str]:
    (image,) = [item for item in images.IMAGES if item.name == name]
    return {path.relative_to(REPOSITORY).as_posix() for path in image._files()}


@pytest.mark.parametrize("name", ["operator", "cpu", "openvino", "gpu", "rtx"])
def test_documents_and_the_command_line_change_no_tag(images: ModuleType, name: str) -> None:
    origins = sources(images, name)
    assert not [path for path in origins if path.startswith(("docs", "operator/enginewright_cli"))]
    assert "README.md" not in origins


def test_comments_of_pyproject_change_no_tag(images: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"

    def digest(text: str) -> bytes:
        path.write_text(text)
        content: bytes = images._hashed_content(path)
        return content

    assert digest('a = ["b"]  # why') == digest('a = ["b"]') != digest('a = ["c"]')


def test_comments_of_a_module_change_a_tag(images: ModuleType, tmp_path: Path) -> None:
    """They lie in the image, where tracebacks name lines by number."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("pass\n")
    after.write_text("# why\npass\n")
    assert images._hashed_content(before) != images._hashed_content(after)


def test_the_operator_changes_no_runtime_tag(images: ModuleType) -> None:
    origins = sources(images, "cpu")
    assert "runtime_image/enginewright_runtime/prepare/publish.py" in origins
    assert "operator/enginewright_contract/keys.py" in origins
    assert "operator/enginewright/plan/plan.py" not in origins
    assert "operator/enginewright/plan/plan.py" in sources(images, "operator")


@pytest.mark.parametrize(
    ("name", "containerfile"),
    [
        ("operator", "operator/Containerfile"),
        ("cpu", "runtime_image/Containerfile"),
        ("nvidia", "runtime_image/nvidia.Containerfile"),
        ("cuda", "runtime_image/nvidia.Containerfile"),
        ("maven", "runtime_image/nvidia.Containerfile"),
    ],
)
def test_copied_files_decide_the_tag(images: ModuleType, name: str, containerfile: str) -> None:
    """Else a change would hide behind an old tag."""
    origins = sources(images, name)
    text = (REPOSITORY / containerfile).read_text()
    copied = [
        word
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line and "$" not in line
        for word in line.split()[1:-1]
    ]
    assert copied
    for entry in copied:
        path = REPOSITORY / entry
        files = path.rglob("*.py") if path.is_dir() else [path]
        assert {file.relative_to(REPOSITORY).as_posix() for file in files} <= origins


def test_what_fetches_an_images_libraries_decides_its_tag_alone(images: ModuleType) -> None:
    program = "hack/tensorrt-libraries"
    assert [image.name for image in images.IMAGES if program in sources(images, image.name)] == [
        "maven"
    ]


def test_a_build_mounts_the_libraries_that_its_image_names(
    images: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(command: list[str], timeout: float) -> str:
        assert timeout >= 1800, "half a gigabyte"
        return f"/cache/{Path(command[0]).name}-{command[1]}\n"

    monkeypatch.setattr(images, "run", fetch)
    monkeypatch.setenv("HOME", str(tmp_path))  # a folder for pip is made there
    mounts = {image.name: images.volumes(image) for image in images.IMAGES}
    mounted = [
        name for name, options in mounts.items() if any(":/libraries:" in item for item in options)
    ]
    assert mounted == ["maven"]
    assert mounts["maven"][-2:] == ["--volume", "/cache/tensorrt-libraries-10:/libraries:ro"]


def test_derived_image_changes_with_its_base(
    images: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, nvidia = [image for image in images.IMAGES if image.name in {"gpu", "nvidia"}]
    before = nvidia.tag()
    changed = replace(gpu, sources=("LICENSE",))
    monkeypatch.setattr(images, "IMAGES", (changed, nvidia))
    images.Image.tag.cache_clear()
    after = nvidia.tag()
    images.Image.tag.cache_clear()
    assert after != before


def test_nvidia_libraries_are_built_by_name(
    images: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def list_references(*names: str) -> list[str]:
        assert images.main(["list", *names]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert list_references() == ["operator", "cpu", "openvino", "gpu", "rtx", "monitoring"]
    assert list_references("--nvidia") == list_references("nvidia") == ["nvidia"]
    assert list_references("--nvidia", "--maven") == list_references("maven") == ["maven"]
    assert list_references("cuda", "gpu") == ["gpu", "cuda"]
    assert images.main(["list", "--nvidi"]) == 2
    assert images.main(["list", "--maven"]) == 2, "it says where NVIDIA's libraries come from"


def test_archives_of_images_differ(images: ModuleType) -> None:
    """`remove_older` deletes by prefix."""
    prefixes = [
        image.archive.name.removesuffix(f"{image.tag().rpartition('-')[2]}.tar")
        for image in images.IMAGES
    ]
    for one in prefixes:
        assert [other for other in prefixes if other.startswith(one)] == [one]


@pytest.mark.parametrize("name", ["nvidia-build", "nvidia-cuda", "nvidia-tensorrt"])
def test_nvidias_packages_are_all_locked_with_hashes(name: str) -> None:
    folder = REPOSITORY / "requirements"
    asked = [
        line.partition("==")[0]
        for line in (folder / f"{name}.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    entries = (folder / f"{name}.txt").read_text().replace(" \\\n", " ").splitlines()
    assert [entry.partition("==")[0] for entry in entries] == sorted(asked)
    assert all(" --hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("major", ["10", "11"])
def test_maven_centrals_tensorrt_has_bindings_of_its_version(major: str) -> None:
    folder = REPOSITORY / "requirements"
    bindings = (folder / f"tensorrt-bindings-{major}.txt").read_text().split()[0]
    (line,) = (
        line
        for line in (folder / f"tensorrt-libraries-{major}.lock").read_text().splitlines()
        if not line.startswith("#")
    )
    digest, artifact = line.split()
    version = artifact.split(":")[2].partition("-")[0]
    assert (len(digest), version.partition(".")[0]) == (64, major)
    assert bindings.startswith(f"tensorrt-cu13-bindings=={version}.")


def test_the_runtime_images_find_the_driver_and_ask_for_no_device_by_themselves() -> None:
    """Of GKE, whose device plugin mounts a folder, and of NVIDIA's container toolkit, which reads variables.

    What the base image has set is kept.
    """
    text = (REPOSITORY / "runtime_image/Containerfile").read_text().rpartition("\nFROM ")[2]
    joined = re.sub(r" *\\\n *", " ", text).splitlines()
    values = [word for line in joined if line.startswith("ENV ") for word in line.split()[1:]]
    environment = dict(value.split("=", 1) for value in values)
    kept = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    assert environment["LD_LIBRARY_PATH"] == f"/usr/local/nvidia/lib64{kept}"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "${NVIDIA_VISIBLE_DEVICES:-void}"
    capabilities = "${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == capabilities
    added = (REPOSITORY / "runtime_image/nvidia.Containerfile").read_text()
    assert "LD_LIBRARY_PATH=" not in added


@pytest.mark.parametrize(
    ("arguments", "verb", "names", "registry", "architectures"),
    [
        ("build", "build", ["operator", "cpu", "openvino", "gpu", "rtx", "monitoring"], "", ()),
        ("build --nvidia", "build", ["nvidia"], "", ()),
        ("build --maven --nvidia", "build", ["maven"], "", ()),
        ("build --maven", "build", [], "", None),
        ("build --architectures amd64,arm64 cpu", "build", ["cpu"], "", ("amd64", "arm64")),
        ("push host/team cpu rtx", "push", ["cpu", "rtx"], "host/team", ()),
        ("push --architectures arm64 host/team cpu", "push", ["cpu"], "host/team", ("arm64",)),
        ("push host/team --architectures", "push", ["cpu"], "", None),
        ("push", "push", [], "", None),
        ("build cpus", "build", [], "", None),
        ("build --architectures s390x", "build", [], "", None),
        ("destroy", "", [], "", None),
    ],
)
def test_what_is_built_and_pushed(
    images: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    verb: str,
    names: list[str],
    registry: str,
    architectures: tuple[str, ...] | None,
) -> None:
    read = images.parse(arguments.split())
    if architectures is None:
        assert read is None
        assert images.main(arguments.split()) == 2
        assert "usage: hack/images" in capsys.readouterr().err
    else:
        assert (read[0], read[1].path, read[3].names) == (verb, registry, architectures)
        assert [item.name for item in read[2]] == names


def test_images_for_several_architectures_have_references_of_their_own(images: ModuleType) -> None:
    cpu, openvino = (image for image in images.IMAGES if image.name in {"cpu", "openvino"})
    both = images.Platforms(("amd64", "arm64"))
    assert both.reference(cpu) == f"{cpu.reference}-amd64-arm64"
    assert both.reference(cpu, "arm64") == f"{cpu.reference}-amd64-arm64-on-arm64"
    assert both.reference(openvino) == f"{openvino.reference}-amd64", "it has no packages for arm64"
    assert images.Platforms().reference(cpu) == cpu.reference
