"""The digest of what makes artefacts changes with the code of stages, and not with what only serves."""

import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import enginewright_serving
import pytest
from enginewright_runtime.core import pipeline
from enginewright_runtime.core.pipeline import pipeline_digest


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return what takes the digest of code in a folder."""
    for name in ("contract/task.py", "runtime/prepare/publish.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("pass\n")
    monkeypatch.setattr(pipeline, "_CONTRACT", tmp_path / "contract")
    monkeypatch.setattr(pipeline, "_RUNTIME", tmp_path / "runtime")
    return lambda: pipeline_digest({})


@pytest.mark.parametrize(
    "changed", ["contract/task.py", "runtime/prepare/publish.py", "runtime/prepare/new.py"]
)
def test_imported_code_changes_it(digest: Callable[[], str], tmp_path: Path, changed: str) -> None:
    before = digest()
    (tmp_path / changed).write_text("1\n")
    assert digest() != before


def test_other_files_do_not(digest: Callable[[], str], tmp_path: Path) -> None:
    before = digest()
    (tmp_path / "runtime/prepare/README").write_text("1\n")
    assert digest() == before


def test_serving_code_is_in_another_package() -> None:
    serving = Path(enginewright_serving.__file__).parent
    assert not serving.is_relative_to(pipeline._RUNTIME)
    assert not serving.is_relative_to(pipeline._CONTRACT)


DOCUMENTED: Final = '''"""Why this is."""

# about what follows
LIMIT = 3  # seconds


class Kept(Exception):
    """What it is."""

    name: str
    """What it is called."""


def made(
    # of what
    of: str,
) -> str:
    r"""Return
    it.
    """
    return f"{of}"
'''
BARE: Final = """LIMIT = 3
class Kept(Exception):
    name: str
def made(
    of: str,
) -> str:
    return f"{of}"
"""


def test_a_mended_docstring_or_comment_does_not(digest: Callable[[], str], tmp_path: Path) -> None:
    module = tmp_path / "contract/task.py"
    module.write_text(DOCUMENTED)
    before = digest()
    module.write_text(DOCUMENTED.replace("it.", "it,\n\n    in two.").replace("# of", "# made of"))
    assert digest() == before
    module.write_text(BARE)
    assert digest() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("a = 1\n", "a = 2\n", id="a value"),
        pytest.param("a = '# 1'\n", "a = '# 2'\n", id="what looks like a comment"),
        pytest.param('a = """1\n"""\n', 'a = """1\n\n"""\n', id="a line of a string"),
        pytest.param("f(\n'a'\n)\n", "f(\n'b'\n)\n", id="a line that is an argument"),
        pytest.param("f'{a()}'\n", "f'{b()}'\n", id="a call in a string that nothing reads"),
        pytest.param("if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n", id="an indentation"),
    ],
)
def test_all_code_does(digest: Callable[[], str], tmp_path: Path, before: str, after: str) -> None:
    module = tmp_path / "contract/task.py"
    module.write_text(before)
    first = digest()
    module.write_text(after)
    assert digest() != first


def test_packages_change_it(digest: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that changes only what serves prepares no model again."""

    def find_packages(**versions: str) -> str:
        packages = [
            SimpleNamespace(name=name, version=version) for name, version in versions.items()
        ]
        monkeypatch.setattr(metadata, "distributions", lambda: iter(packages))
        return digest()

    before = find_packages(enginewright="0.1.0", onnx="1.22.0")
    assert find_packages(onnx="1.22.0", enginewright="0.2.0") == before
    assert find_packages(enginewright="0.1.0", onnx="1.22.1") != before


def test_other_machines_change_it(
    digest: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert digest() != before


@pytest.mark.usefixtures("digest")
def test_libraries_from_elsewhere_than_packages_change_it() -> None:
    assert pipeline_digest({"cuda_major": "12"}) != pipeline_digest({"cuda_major": "13"})


def test_the_whole_code_has_one() -> None:
    assert pipeline_digest({}) == pipeline_digest({})
