"""The JSON Schema of what `--json` prints, generated from its classes."""

import ast
import inspect
import itertools
import json
import sys
import textwrap
from typing import Any, Final

from enginewright_contract.manifest import Change, Latency, OutputParity, TensorSpec, UnjudgedParts
from pydantic import BaseModel, TypeAdapter

from enginewright_cli.preflight.result import SCHEMA, Described, Result, Results

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NULL: Final = {"type": "null"}
_OF_CONTRACT: Final[tuple[type[BaseModel], ...]] = (
    TensorSpec,
    Change,
    OutputParity,
    UnjudgedParts,
    Latency,
)


def schema() -> dict[str, Any]:
    """Return the schema of the output for one model and for several."""
    printed: TypeAdapter[Result | Results] = TypeAdapter(Result | Results)
    generated = printed.json_schema(mode="serialization")
    texts: dict[str, dict[str, str]] = {}
    models: list[type[BaseModel]] = [*_OF_CONTRACT, *_find_described(Described)]
    for model in models:
        names = {name: field.alias or name for name, field in model.model_fields.items()}
        texts[model.__name__] = {names[name]: text for name, text in descriptions(model).items()}
    for name, body in generated["$defs"].items():
        _describe(body, texts.get(name, {}))
    return {"$schema": _DIALECT, "$id": f"https://{SCHEMA}", **generated}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field of a class and its bases; pydantic would read the source at each import."""
    texts: dict[str, str] = {}
    for item in reversed(model.__mro__):
        if item is BaseModel or not issubclass(item, BaseModel):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(item)))):
            lines = node.body if isinstance(node, ast.ClassDef) else []
            for field, description in itertools.pairwise(lines):
                match field, description:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        texts[name] = inspect.cleandoc(text)
                    case _:
                        pass
    return texts


def _find_described(model: type[Described]) -> list[type[Described]]:
    return [item for one in model.__subclasses__() for item in (one, *_find_described(one))]


def _describe(body: dict[str, Any], descriptions: dict[str, str]) -> None:
    """Add descriptions to the fields; mark optional ones as absent rather than null."""
    properties = body.get("properties", {})
    for name, property_ in properties.items():
        property_.pop("title", None)
        if name in descriptions:
            property_["description"] = descriptions[name]
            properties[name] = dict(sorted(property_.items()))  # as pydantic orders them
    optional = {
        name for name, property_ in properties.items() if _NULL in property_.get("anyOf", ())
    }
    for name in optional:
        property_ = properties[name]
        types = [one for one in property_.pop("anyOf") if one != _NULL]
        property_.pop("default", None)
        property_.update(types[0] if len(types) == 1 else {"anyOf": types})
    if properties:
        body["required"] = [name for name in properties if name not in optional]


def text() -> str:
    """Return docs/preflight.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
