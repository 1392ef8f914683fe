"""Why the API server would reject an object, without asking one.

The schema and its rules are those of the CRDs, so a broken rule has the message that kubectl would
show. The order is the API server's: rules are evaluated only for a value that fits its schema.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from enginewright.api.base import API_VERSION
from enginewright.api.crds import definitions
from enginewright.api.markers import (
    INT_OR_STRING_KEYWORD,
    LIST_KEYS_KEYWORD,
    PRESERVE_KEYWORD,
    RULES_KEYWORD,
)

from enginewright_cli.plan.cel import CelError, Program, Value, compile_rule

Schema = Mapping[str, Any]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVER_FIELDS: Final = frozenset({"status"})  # written by the operator, never applied


def problems(obj: Mapping[str, Any]) -> list[str]:
    """Return why an object of a kind of ours would be rejected, each as "field: reason"."""
    schema = _schemas()[str(obj["kind"])]
    faults = []
    if obj.get("apiVersion") != API_VERSION:
        faults.append(f"apiVersion: write {API_VERSION}")
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not _OBJECT_NAME.fullmatch(name):
        faults.append("metadata.name: write lowercase letters, digits, '-' and '.'")
        return faults
    namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    if namespace is not None and (
        not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace)
    ):
        faults.append(
            "metadata.namespace: write lowercase letters, digits and '-', numbers in quotes"
        )
    body = {key: value for key, value in obj.items() if key not in _SERVER_FIELDS}
    _, wrong = _check(body, schema, "")
    return [*faults, *wrong]


def rules(schema: Schema) -> Iterator[Mapping[str, str]]:
    """Yield the rules of a schema and its subschemas, except transition rules."""
    yield from _rules(schema)
    below = [schema.get("items"), schema.get("additionalProperties")]
    for item in (*schema.get("properties", {}).values(), *below):
        if isinstance(item, Mapping):
            yield from rules(item)


@cache
def _schemas() -> dict[str, Schema]:
    return {
        str(definition["spec"]["names"]["kind"]): definition["spec"]["versions"][0]["schema"][
            "openAPIV3Schema"
        ]
        for definition in definitions().values()
    }


def _check(value: Value, schema: Schema, path: str) -> tuple[Value, list[str]]:
    """Return the value with its defaults, and its problems."""
    if wrong := _of_type(value, schema, path):
        return value, [wrong]
    faults: list[str] = []
    if isinstance(value, dict) and PRESERVE_KEYWORD not in schema:
        value, faults = _object(value, schema, path)
    elif isinstance(value, list):
        value, faults = _list(value, schema, path)
    faults += _limits(value, schema, path)
    if not faults:
        faults = list(_find_broken(value, schema, path))
    return value, faults


def _of_type(value: Value, schema: Schema, path: str) -> str | None:
    expected = schema.get("type")
    if INT_OR_STRING_KEYWORD in schema:
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            return None
        return f"{path}: must be of type integer or string, not {_kind(value)}"
    if expected is None:
        return None
    is_flag = isinstance(value, bool) and expected != "boolean"
    if isinstance(value, _TYPES[expected]) and not is_flag:
        return None
    return f"{path or 'the object'}: must be of type {expected}, not {_kind(value)}"


def _object(
    value: dict[str, Value], schema: Schema, path: str
) -> tuple[dict[str, Value], list[str]]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    completed: dict[str, Value] = {}
    faults: list[str] = []
    for key, item in value.items():
        place = f"{path}.{key}" if path else str(key)
        part = properties.get(key)
        if part is None and others is not None:
            part, place = others, f"{path}[{key}]"
        if place == "metadata":
            completed[key] = item
        elif part is None:
            faults.append(f"{place}: {_describe_unknown(str(key), properties)}")
        elif item is not None:  # null counts as absent
            completed[key], wrong = _check(item, part, place)
            faults += wrong
    for key, part in properties.items():
        if key not in completed and "default" in part and value.get(key) is None:
            completed[key], _ = _check(part["default"], part, "")
    place = f"{path}." if path else ""
    faults += [
        f"{place}{key}: Required value"
        for key in schema.get("required", ())
        if value.get(key) is None
    ]
    return completed, faults


def _list(value: list[Value], schema: Schema, path: str) -> tuple[list[Value], list[str]]:
    completed: list[Value] = []
    faults: list[str] = []
    seen: list[dict[str, Value]] = []
    for index, entry in enumerate(value):
        item, wrong = _check(entry, schema["items"], f"{path}[{index}]")
        completed.append(item)
        faults += wrong
        if (keys := schema.get(LIST_KEYS_KEYWORD)) and isinstance(item, dict):
            key = {name: item.get(name) for name in keys}
            if key in seen:
                keys_text = ",".join(f'"{name}":"{text}"' for name, text in key.items())
                faults.append(f"{path}[{index}]: Duplicate value: {{{keys_text}}}")
            seen.append(key)
    return completed, faults


def _limits(value: Value, schema: Schema, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{item}"' for item in schema["enum"])
        yield f'{path}: Unsupported value: "{value}": supported values: {supported}'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"{path}: should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{path}: should be less than or equal to {schema['maximum']}"
    if isinstance(value, (str, list, dict)):
        unit = _SIZES[type(value)]
        shortest, longest = schema.get(f"min{unit}"), schema.get(f"max{unit}")
        if shortest is not None and len(value) < shortest:
            yield f"{path}: should have at least {shortest} {_UNITS[unit]}"
        if longest is not None and len(value) > longest and isinstance(value, list):
            yield f"{path}: Too many: {len(value)}: must have at most {longest} items"
        elif longest is not None and len(value) > longest:
            yield f"{path}: Too long: may have at most {longest} {_UNITS[unit]}"


_SIZES: Final[dict[type, str]] = {str: "Length", list: "Items", dict: "Properties"}
_UNITS: Final = {"Length": "characters", "Items": "items", "Properties": "entries"}


def _rules(schema: Schema) -> Iterator[Mapping[str, str]]:
    return (item for item in schema.get(RULES_KEYWORD, ()) if "oldSelf" not in item["rule"])


def _find_broken(value: Value, schema: Schema, path: str) -> Iterator[str]:
    for rule in _rules(schema):
        try:
            if _program(rule["rule"])(value):
                continue
            message = rule["message"]
        except CelError as error:
            message = f"{rule['message']} ({error})"
        if expression := rule.get("messageExpression"):
            try:
                message = str(_program(expression)(value))
            except CelError:
                message = rule["message"]
        yield f"{(path + rule.get('fieldPath', '')).lstrip('.')}: {message}"


@cache
def _program(text: str) -> Program:
    return compile_rule(text)


def _describe_unknown(key: str, properties: Mapping[str, Schema]) -> str:
    near = difflib.get_close_matches(key, properties, n=1, cutoff=0.6)
    if near:
        return f"unknown field; did you mean {near[0]}?"
    return (
        f"unknown field; known fields: {', '.join(properties)}" if properties else "unknown field"
    )


def _kind(value: Value) -> str:
    if value is None:
        return "null"
    names = {kinds[-1]: name for name, kinds in _TYPES.items()} | {int: "integer"}
    return names.get(type(value), type(value).__name__)
