"""What import-linter cannot see: functions that run in a child by name, and the drawing in the README."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
RUNTIME: Final = REPOSITORY / "runtime_image/enginewright_runtime"
NAMED: Final = re.compile(r"enginewright_runtime((?:\.\w+)+)(?::(\w+))?")


def layers(container: str) -> list[list[str]]:
    """Return the layers of a package, the highest first, as the linter holds them."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (found,) = [
        each["layers"]
        for each in settings["tool"]["importlinter"]["contracts"]
        if each.get("containers") == [container]
    ]
    return [layer.split(" | ") for layer in found]


def named() -> Iterator[tuple[str, str, str]]:
    """Yield module, module that it names, function: of each that runs in a child."""
    for path in sorted(RUNTIME.rglob("*.py")):
        module = ".".join(path.relative_to(RUNTIME).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and (found := NAMED.fullmatch(text)):
                yield module, found.group(1).removeprefix("."), found.group(2) or ""


def test_a_function_that_runs_in_a_child_exists_and_is_of_no_higher_layer() -> None:
    found = list(named())
    assert len(found) > 10
    for container in ("", "prepare"):
        order = layers(f"enginewright_runtime{'.' if container else ''}{container}")
        ranks = {name: rank for rank, layer in enumerate(order) for name in layer}
        for module, callee, function in found:
            source = (RUNTIME / f"{callee.replace('.', '/')}.py").read_text()
            assert re.search(rf"^def {function}", source, re.MULTILINE), f"{callee}:{function}"
            inside = [name.removeprefix(f"{container}.") for name in (module, callee)]
            if container and not all(name.startswith(f"{container}.") for name in (module, callee)):
                continue
            upper, lower = (ranks[name.split(".")[0]] for name in inside)
            assert upper <= lower, f"{module} runs {callee}, which is above it"


def test_the_drawing_in_the_readme_is_what_the_linter_holds() -> None:
    drawing = (REPOSITORY / "README.md").read_text().split("<!-- layers -->")[1]
    rows = [line.split("  ")[1] for line in drawing.splitlines() if line.startswith("  ")]
    assert [row.split(" | ") for row in rows] == layers("enginewright_runtime")
