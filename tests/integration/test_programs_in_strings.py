"""Programs in strings, which other processes run and no type checker reads, name functions and modules that exist."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("operator", "runtime_image", "hack", "tests", "bench")
PACKAGES = ("enginewright", "hack", "tests")
# what a file must have to be worth parsing
SIGN = re.compile(r'"[^"]*\b(?:from|import) (?:enginewright|hack|tests)')


def programs() -> Iterator[tuple[str, ast.Module]]:
    """Yield each program in a string, with its place."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if not SIGN.search(source) or path.name == Path(__file__).name:
                continue
            for node in ast.walk(ast.parse(source)):
                text = _text(node)
                if "import" not in text:
                    continue
                try:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", ast.parse(text)
                except SyntaxError:  # a sentence
                    continue


def _text(node: ast.AST) -> str:
    """Return the text of a string; what is computed in it is a name."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(_text(part) if isinstance(part, ast.Constant) else "x" for part in node.values)


def missing_names(program: ast.Module) -> Iterator[str]:
    """Yield what a program imports from this project, or reads of what it has imported, and what is not there."""
    imported: dict[str, object] = {}
    for node in ast.walk(program):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(PACKAGES):
            continue
        module = import_module(str(node.module))
        for alias in node.names:
            if hasattr(module, alias.name):
                imported[alias.asname or alias.name] = getattr(module, alias.name)
                continue
            try:
                imported[alias.asname or alias.name] = import_module(f"{node.module}.{alias.name}")
            except ImportError:
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in imported and not hasattr(imported[name], node.attr):
                yield f"{name}.{node.attr}"


def test_every_name_in_a_program_in_a_string_exists() -> None:
    read = list(programs())
    missing = {place: names for place, item in read if (names := list(missing_names(item)))}
    assert missing == {}
    assert len(read) > 20


def test_a_name_that_is_not_there_is_reported() -> None:
    program = ast.parse(
        "from enginewright_serving.server.inference import turns\n"
        "from enginewright_contract.reasons import Reasons\n"
        "turns.TURN = 1\n"
    )
    assert list(missing_names(program)) == ["enginewright_contract.reasons.Reasons", "turns.TURN"]
