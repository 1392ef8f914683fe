"""The generated definitions: whole, bounded, described, and never behind the models."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from enginewright.api.crds import definitions, structural

from tests.support.yaml_text import load_documents

REPOSITORY = Path(__file__).resolve().parents[2]
DEFINITIONS = definitions()

Schema = dict[str, Any]


def schema(plural: str) -> Schema:
    (version,) = DEFINITIONS[f"enginewright.dev_{plural}.yaml"]["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def parts(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every part of a schema below the root's metadata, with its path."""
    yield path, node
    for name, entry in node.get("properties", {}).items():
        if (path, name) != ("", "metadata"):
            yield from parts(entry, f"{path}.{name}")
    for name, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if name in node:
            yield from parts(node[name], path + suffix)


ALL_PARTS = {
    f"{plural}{path}": part
    for plural in ("inferencemodels", "inferenceengines", "acceleratorclasses")
    for path, part in parts(schema(plural))
}


def is_described(part: Schema) -> bool:
    described = part.get("description", "")
    return described.endswith(".") and "\n" not in described


def has_an_end(part: Schema) -> bool:
    """Tell whether lists, maps and strings, but for the API server's own, are bounded."""
    own = part["description"].startswith(("Kind of", "Version of"))
    if part.get("type") == "string" and not own and part.get("format") != "date-time":
        return bool({"maxLength", "enum"} & part.keys())
    if part.get("type") == "array":
        return {"maxItems", "x-kubernetes-list-type"} <= part.keys()
    return "additionalProperties" not in part or "maxProperties" in part


def has_sentences(part: Schema) -> bool:
    """Tell whether rules have messages after which kubectl can go on."""
    messages = [rule["message"] for rule in part.get("x-kubernetes-validations", ())]
    return all(len(message) > 20 and not message.endswith(".") for message in messages)


@pytest.mark.parametrize("holds", [is_described, has_an_end, has_sentences])
def test_of_every_field(holds: Callable[[Schema], bool]) -> None:
    assert len(ALL_PARTS) > 300
    assert [path for path, part in ALL_PARTS.items() if not holds(part)] == []


def follow(node: Schema, json_path: str) -> Schema:
    """Return the part that a printer column shows; KeyError when there is none."""
    for name in re.sub(r"\[[^]]*\]", "[]", json_path).strip(".").split("."):
        node = node["properties"][name.removesuffix("[]")]
        if name.endswith("[]"):
            node = node["items"]
    return node


@pytest.mark.parametrize(
    ("plural", "column"),
    [
        pytest.param(entry["spec"]["names"]["plural"], column, id=f"{name}-{column['name']}")
        for name, entry in DEFINITIONS.items()
        for column in entry["spec"]["versions"][0]["additionalPrinterColumns"]
    ],
)
def test_every_column_shows_a_field(plural: str, column: Schema) -> None:
    if column["jsonPath"] == ".metadata.creationTimestamp":
        return
    shown = follow(schema(plural), column["jsonPath"])
    expected = column["type"] if column["name"] != "BACKENDS" else "array"
    if expected == "date":  # shown as an age
        assert shown["format"] == "date-time"
        expected = "string"
    assert shown["type"] == expected


def test_columns_of_models() -> None:
    columns = DEFINITIONS["enginewright.dev_inferencemodels.yaml"]["spec"]["versions"][0]
    names = [
        (column["name"], column.get("priority", 0))
        for column in columns["additionalPrinterColumns"]
    ]
    narrow = [
        "READY",
        "REASON",
        "STAGE",
        "BACKEND",
        "PLACEMENT",
        "CLASSES",
        "P99",
        "REVISION",
        "AGE",
    ]
    wide = ["DIGEST", "OPSET", "IMAGE", "MOVE", "CHOICE"]
    assert names == [(name, 0) for name in narrow] + [(name, 1) for name in wide]


def test_columns_of_engines() -> None:
    columns = DEFINITIONS["enginewright.dev_inferenceengines.yaml"]["spec"]["versions"][0]
    names = [
        (column["name"], column.get("priority", 0))
        for column in columns["additionalPrinterColumns"]
    ]
    narrow = ["READY", "REASON", "CLASS", "BACKEND", "CAPABILITY", "SIZE", "BUILD", "NODES", "AGE"]
    wide = ["KEY", "SHA256", "USERS", "LAST USED"]
    assert names == [(name, 0) for name in narrow] + [(name, 1) for name in wide]


def test_scale_paths_show_fields() -> None:
    version = DEFINITIONS["enginewright.dev_inferencemodels.yaml"]["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    types = [follow(schema("inferencemodels"), path)["type"] for path in scale.values()]
    assert types == ["integer", "integer", "string"]


@pytest.mark.parametrize("plural", ["inferencemodels", "inferenceengines", "acceleratorclasses"])
def test_only_a_status_as_a_whole_has_a_default(plural: str) -> None:
    status = dict(schema(plural)["properties"]["status"])
    assert status.pop("default") == {"observedGeneration": -1}
    for _, part in parts(status):
        assert "default" not in part


def test_a_default_fills_in_through_empty_objects() -> None:
    spec = schema("inferencemodels")["properties"]["spec"]["properties"]
    assert spec["build"]["default"] == {}
    assert spec["build"]["properties"]["timeout"]["default"] == "1h"
    assert "default" not in spec["podTemplate"]
    assert "default" not in spec["shapes"]


def test_an_unsupported_keyword_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not support exclusiveMinimum"):
        structural({"type": "integer", "exclusiveMinimum": 0}, {})


def test_chart_copy_differs_only_in_its_keep_annotation() -> None:
    for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
        text = (REPOSITORY / "charts/enginewright/files/crds" / path.name).read_text()
        assert "{{" not in text  # Helm would read it as a template of ours
        (copy,) = load_documents(text)
        assert copy["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert [copy] == load_documents(path.read_text())


def leaves(plural: str) -> list[str]:
    """Return the paths of a spec's fields that hold values, without brackets."""
    spec = schema(plural)["properties"]["spec"]
    fields = [
        (path.strip(".").replace("[]", ""), part) for path, part in parts(spec) if "{}" not in path
    ]
    scalars = [path for path, part in fields if path and "properties" not in part]
    return list(dict.fromkeys(path for path in scalars if not _holds_objects(path, scalars)))


def _holds_objects(path: str, paths: list[str]) -> bool:
    return any(other.startswith(f"{path}.") for other in paths)


@pytest.mark.parametrize(
    ("plural", "page"),
    [("inferencemodels", "inferencemodel"), ("acceleratorclasses", "acceleratorclass")],
)
def test_the_documentation_has_every_field(plural: str, page: str) -> None:
    text = (REPOSITORY / f"docs/reference/{page}.md").read_text()
    fields = [path for path in leaves(plural) if not path.startswith("tolerations.")]
    assert len(fields) > 5
    assert [path for path in fields if f"`{path}`" not in text] == []
