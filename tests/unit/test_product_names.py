"""What no linter holds of the product's source: one class a name, and a reason for every suppression."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = (
    "operator/enginewright",
    "operator/enginewright_cli",
    "runtime_image/enginewright_runtime",
)
SUPPRESSED: Final = re.compile(r"#.*?(?:noqa:|type: ignore\[).*")
WITH_REASON: Final = re.compile(r"(?:noqa: [A-Z0-9, ]+ - |type: ignore\[[a-z, -]+\] +# )\S")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def test_every_class_of_the_product_has_a_name_of_its_own() -> None:
    """Equal names of two things differ by imports alone, which a reader does not see."""
    places = defaultdict(list)
    for path in sources(*PRODUCT):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(REPOSITORY)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_every_suppression_of_a_linter_has_its_reason() -> None:
    bare = [
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in sources(*PRODUCT, "tests", "hack", "bench")
        if path != Path(__file__)
        for match in SUPPRESSED.finditer(path.read_text())
        if not WITH_REASON.search(match[0])
    ]
    assert bare == []
