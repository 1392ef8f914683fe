"""The JSON Schema of what `--json` prints, made of the classes that print it."""

import ast
import inspect
import itertools
import json
import sys
import textwrap
from typing import Any, Final

from enginewright.contract.manifest import Change, Latency, OutputParity, TensorSpec
from pydantic import BaseModel, TypeAdapter

from enginewright_cli.preflight.result import SCHEMA, Described, Result, Results

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NULL: Final = {"type": "null"}
# classes that the pipeline shares, whose fields have comments and no descriptions
_SHARED: Final[dict[type[BaseModel], dict[str, str]]] = {
    TensorSpec: {
        "name": "Name of the input or output.",
        "dtype": 'NumPy\'s name of the element type, such as float32, or "string".',
        "shape": "Sizes of the dimensions; a name or null for those left open.",
    },
    Change: {
        "kind": "What was done: opset, ir-version, expand, simplify, fold-batch-norm, precision"
        " or quantize.",
        "message": "What was done and why, for people.",
        "nodes": 'Nodes of the source concerned, each as "name (OpType)"; at most 100.',
    },
    OutputParity: {
        "name": "Name of the output.",
        "compared_with": "What it was compared with: source, expected or prepared.",
        "max_abs_error": "Largest absolute difference; absent: not numeric, or not comparable.",
        "max_rel_error": "Largest relative difference; absent likewise.",
        "cosine": "Cosine of the angle between both, taken as vectors; 1: same direction.",
        "top1_agreement": "Share of samples with the same largest value, 0 to 1; absent: no scores.",
        "nan": "Values that are NaN here and not there.",
        "inf": "Values that are infinite here and not there.",
        "runs": "Runs by which the distribution of a varying output was compared; absent: compared"
        " by values.",
    },
    Latency: {
        "p50": "Median, in seconds.",
        "p90": "90% of the runs took at most this, in seconds.",
        "p99": "99% of the runs took at most this, in seconds.",
        "samples": "How many runs were measured, after a warm-up.",
        "shapes": "Which shapes were run: min, opt, max, or the name of a golden sample.",
        "throughput": "Rows of the first dimension a second; absent: not measured.",
        "peak_memory_bytes": "Most memory of the process, model and libraries included.",
        "peak_device_memory_bytes": "Most memory of the device; absent: there is none.",
        "warm_up_runs": "Runs until two in a row took about as long.",
    },
}


def schema() -> dict[str, Any]:
    """Return the schema of what is printed about one model, and about several."""
    printed: TypeAdapter[Result | Results] = TypeAdapter(Result | Results)
    made = printed.json_schema(mode="serialization")
    known = {each.__name__: fields for each, fields in _SHARED.items()}
    for each in _described(Described):
        names = {name: field.alias or name for name, field in each.model_fields.items()}
        known[each.__name__] = {names[name]: text for name, text in descriptions(each).items()}
    for name, body in made["$defs"].items():
        _describe(body, known.get(name, {}))
    return {"$schema": _DIALECT, "$id": f"https://{SCHEMA}", **made}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field of a class, and of those that it extends.

    pydantic's `use_attribute_docstrings` reads the source when a class is made, thus in every run.
    """
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each is BaseModel or not issubclass(each, BaseModel):
            continue
        for made in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each)))):
            lines = made.body if isinstance(made, ast.ClassDef) else []
            for field, description in itertools.pairwise(lines):
                match field, description:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        found[name] = inspect.cleandoc(text)
                    case _:
                        pass
    return found


def _described(model: type[Described]) -> list[type[Described]]:
    return [each for one in model.__subclasses__() for each in (one, *_described(one))]


def _describe(body: dict[str, Any], descriptions: dict[str, str]) -> None:
    """Say of each field what it is, and that it is absent where nothing is known, never null."""
    properties = body.get("properties", {})
    for name, each in properties.items():
        each.pop("title", None)
        if name in descriptions:
            each["description"] = descriptions[name]
            properties[name] = dict(sorted(each.items()))  # as pydantic orders them
    optional = {name for name, each in properties.items() if _is_optional(each)}
    for name in optional:
        each = properties[name]
        known = [one for one in each.pop("anyOf") if one != _NULL]
        each.pop("default", None)
        each.update(known[0] if len(known) == 1 else {"anyOf": known})
    if properties:
        body["required"] = [name for name in properties if name not in optional]


def _is_optional(field: dict[str, Any]) -> bool:
    return _NULL in field.get("anyOf", ())


def text() -> str:
    """Return docs/preflight.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
