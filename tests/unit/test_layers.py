"""What import-linter cannot see: modules that are imported by name, and the drawing in the README."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
RUNTIME: Final = REPOSITORY / "runtime_image"
NAMED: Final = re.compile(r"enginewright_(?:runtime|serving)(?:\.\w+)+(?::\w+)?")
SERVER: Final = "enginewright_runtime.core.forkserver"  # started as a program


def layers(container: str) -> list[list[str]]:
    """Return the layers of a package, the highest first, as the linter holds them."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (contract,) = [
        setting["layers"]
        for setting in settings["tool"]["importlinter"]["contracts"]
        if setting.get("containers") == [container]
    ]
    return [layer.split(" | ") for layer in contract]


def find_named() -> Iterator[tuple[str, str]]:
    """Yield modules of the runtime and the modules that they name in a string."""
    for path in sorted(RUNTIME.rglob("*.py")):
        module = ".".join(path.relative_to(RUNTIME).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and NAMED.fullmatch(text):
                yield module, text


def test_only_programs_are_imported_by_a_string() -> None:
    """What runs in a child is given as a function (`core.isolation.Call`), which linters see."""
    assert set(find_named()) == {
        ("enginewright_runtime.core.children", SERVER),
        (SERVER, SERVER),
    }


@pytest.mark.parametrize(
    "container",
    [
        "enginewright",
        "enginewright.plan",
        "enginewright_runtime",
        "enginewright_serving",
        "enginewright_serving.server",
    ],
)
def test_drawing_in_the_readme_matches_the_linter(container: str) -> None:
    text = (REPOSITORY / "README.md").read_text()
    drawing = text.split(f"<!-- layers of {container} -->")[1].split("<!-- end -->")[0]
    rows = [line.split("  ")[1] for line in drawing.splitlines() if line.startswith("  ")]
    assert [row.split(" | ") for row in rows] == layers(container)
