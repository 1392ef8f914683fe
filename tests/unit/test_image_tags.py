"""An image's tag changes with what runs in it, and with nothing else: a new tag replaces every pod."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def images() -> ModuleType:
    loader = SourceFileLoader("hack_images", str(REPOSITORY / "hack/images"))
    module = module_from_spec(spec_from_file_location(loader.name, loader.path, loader=loader))  # type: ignore[arg-type]  # it has a loader
    sys.modules[loader.name] = module  # for its dataclasses
    loader.exec_module(module)
    return module


def sources(images: ModuleType, name: str) -> set[str]:
    (image,) = [each for each in images.IMAGES if each.name == name]
    return {path.relative_to(REPOSITORY).as_posix() for path in image._files()}


@pytest.mark.parametrize("name", ["operator", "cpu", "openvino", "gpu", "rtx"])
def test_documents_and_the_command_line_change_no_tag(images: ModuleType, name: str) -> None:
    found = sources(images, name)
    assert not [path for path in found if path.startswith(("docs", "operator/enginewright_cli"))]
    assert "README.md" not in found


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
    found = sources(images, "cpu")
    assert "runtime_image/enginewright_runtime/prepare/publish.py" in found
    assert "operator/enginewright/contract/keys.py" in found
    assert "operator/enginewright/plan/plan.py" not in found
    assert "operator/enginewright/plan/plan.py" in sources(images, "operator")


@pytest.mark.parametrize("image", ["operator", "runtime_image"])
def test_what_an_image_copies_decides_its_tag(images: ModuleType, image: str) -> None:
    """Else a change would hide behind an old tag."""
    found = sources(images, "operator" if image == "operator" else "cpu")
    text = (REPOSITORY / image / "Containerfile").read_text()
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
        assert {each.relative_to(REPOSITORY).as_posix() for each in files} <= found
