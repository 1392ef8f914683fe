"""Custom resource definitions, generated from the models.

pydantic writes JSON Schema; the API server accepts structural schemas: no references, no unions, no
null. An unknown keyword is an error here, before the API server rejects it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.base import GROUP, VERSION
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.markers import (
    INT_OR_STRING_KEYWORD,
    LIST_KEYS_KEYWORD,
    LIST_TYPE_KEYWORD,
    PRESERVE_KEYWORD,
    RULES_KEYWORD,
)

Schema = dict[str, Any]
Kind: TypeAlias = type[InferenceModel | InferenceEngine | AcceleratorClass]

_KEYWORDS: Final = (  # those allowed in our structural schemas, in the order they are written
    "description",
    "type",
    "format",
    INT_OR_STRING_KEYWORD,
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    RULES_KEYWORD,
    LIST_TYPE_KEYWORD,
    LIST_KEYS_KEYWORD,
    PRESERVE_KEYWORD,
    "properties",
    "additionalProperties",
    "items",
)


# The status until the operator has written one. Tools that follow kstatus take an object without an
# observed generation for finished.
UNSEEN: Final[Mapping[str, int]] = MappingProxyType({"observedGeneration": -1})


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; a wide one is shown with -o wide."""

    name: str
    json_path: str
    description: str
    type: str = "string"
    wide: bool = False

    def entry(self) -> Schema:
        """Return one entry of `additionalPrinterColumns`."""
        entry: Schema = {
            "name": self.name,
            "type": self.type,
            "description": self.description,
            "jsonPath": self.json_path,
        }
        return {**entry, "priority": 1} if self.wide else entry


_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_AGE: Final = Column("AGE", ".metadata.creationTimestamp", "When it was created.", type="date")

MODEL_COLUMNS: Final = (
    Column("READY", f"{_READY}.status", "Whether the current spec serves."),
    Column("REASON", f"{_READY}.reason", "Why, in one word."),
    Column("STAGE", ".status.summary.stage", "Stage of what is under way."),
    Column("BACKEND", ".status.summary.backend", "Backends that serve."),
    Column("PLACEMENT", ".status.summary.placement", "Share that runs on the chosen backend."),
    Column("CLASSES", ".status.summary.classes", "Ready and desired pods of each class."),
    Column("P99", ".status.summary.p99", "99th percentile of the baseline latency."),
    Column("REVISION", ".status.summary.revision", "Revision that serves."),
    _AGE,
    Column("DIGEST", ".status.prepared.modelDigest", "sha256 of the model.", wide=True),
    Column("OPSET", ".status.prepared.opset", "Opset of the model.", type="integer", wide=True),
    Column("IMAGE", ".status.images.image", "Runtime image that serves.", wide=True),
    Column("MOVE", ".status.images.state", "Move to the installation's runtime image.", wide=True),
    Column("CHOICE", ".status.summary.choice", "Medians of the backends compared.", wide=True),
)

ENGINE_COLUMNS: Final = (
    Column("READY", f"{_READY}.status", "Whether the engine is available."),
    Column("REASON", f"{_READY}.reason", "Why, in one word."),
    Column("CLASS", ".spec.class", "AcceleratorClass that it is built for."),
    Column("BACKEND", ".spec.backend", "Backend that runs it."),
    Column("CAPABILITY", ".status.summary.capability", "Compute capability that it is built for."),
    Column("SIZE", ".status.summary.size", "Size of the engine file."),
    Column("BUILD", ".status.summary.build", "Time that the builder took."),
    Column("NODES", ".status.summary.nodes", "Nodes inside the engine, of all compute nodes."),
    _AGE,
    Column("KEY", ".spec.key", "Key of the engine in the store.", wide=True),
    Column("SHA256", ".status.engine.sha256", "sha256 of the engine file.", wide=True),
    Column(
        "USERS", ".status.users.count", "InferenceModels that use it.", type="integer", wide=True
    ),
    Column("LAST USED", ".status.lastUsed", "When a model last used it.", type="date", wide=True),
)

CLASS_COLUMNS: Final = (
    Column("READY", f"{_READY}.status", "Whether models can use the class."),
    Column("REASON", f"{_READY}.reason", "Why, in one word."),
    Column("NODES", ".status.nodes", "Nodes that match the selector.", type="integer"),
    Column("BACKENDS", ".spec.backends", "Allowed backends, the preferred one first."),
    Column("RESOURCE", ".spec.resourceName", "Extended resource of which a pod requests one."),
    _AGE,
)


def definitions(annotations: Mapping[str, str] | None = None) -> dict[str, Schema]:
    """Return every CustomResourceDefinition by file name, with `annotations` added."""
    entries = (
        _definition(
            InferenceModel,
            short_name="im",
            scope="Namespaced",
            columns=MODEL_COLUMNS,
            scale={
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        ),
        _definition(
            InferenceEngine,
            short_name="ieng",
            scope="Namespaced",
            columns=ENGINE_COLUMNS,
        ),
        _definition(
            AcceleratorClass,
            short_name="aclass",
            scope="Cluster",
            columns=CLASS_COLUMNS,
        ),
    )
    for entry in entries:
        if annotations:
            entry["metadata"]["annotations"] = dict(annotations)
    return {f"{GROUP}_{entry['spec']['names']['plural']}.yaml": entry for entry in entries}


def _definition(
    model: Kind,
    *,
    short_name: str,
    scope: str,
    columns: tuple[Column, ...],
    scale: Schema | None = None,
) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": model.kind,
                "listKind": f"{model.kind}List",
                "plural": model.plural,
                "singular": model.kind.lower(),
                "shortNames": [short_name],
            },
            "scope": scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, **({"scale": scale} if scale else {})},
                    "additionalPrinterColumns": [column.entry() for column in columns],
                    "schema": {"openAPIV3Schema": _root(model)},
                }
            ],
        },
    }


def _root(model: Kind) -> Schema:
    raw = model.model_json_schema()
    parts = raw.pop("$defs")
    raw["properties"].pop("metadata")
    schema = structural(raw, parts)
    kinds = {
        "apiVersion": {
            "type": "string",
            "description": f"Version of this representation: {GROUP}/{VERSION}.",
        },
        "kind": {"type": "string", "description": f"Kind of the resource: {model.kind}."},
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
    properties = schema["properties"]
    properties["status"] = {**without_defaults(properties["status"]), "default": dict(UNSEEN)}
    schema["properties"] = {**kinds, **properties}
    schema["required"] = ["spec"]
    return schema


def structural(schema: Mapping[str, Any], parts: Mapping[str, Schema]) -> Schema:
    """Return pydantic's `schema` as a structural one, with `parts` as its `$defs`; ValueError for other keywords."""
    own = dict(schema)
    own.pop("title", None)
    inherited: Schema = {}
    if reference := own.pop("$ref", None):
        inherited = structural(parts[reference.rpartition("/")[2]], parts)
    elif union := own.pop("anyOf", None):
        (only,) = (entry for entry in union if entry.get("type") != "null")
        inherited = structural(only, parts)
    for name in ("items", "additionalProperties"):
        if name in own:
            own[name] = structural(own[name], parts)
    if "properties" in own:
        own["properties"] = {
            name: structural(entry, parts) for name, entry in own["properties"].items()
        }
    merged = {**inherited, **own}
    if both := [*inherited.get(RULES_KEYWORD, ()), *own.get(RULES_KEYWORD, ())]:
        merged[RULES_KEYWORD] = both
    _set_default(merged)
    if "description" in merged:
        merged["description"] = " ".join(merged["description"].split())
    if unknown := merged.keys() - set(_KEYWORDS):
        raise ValueError(f"structural schemas do not support {', '.join(sorted(unknown))}")
    return {name: merged[name] for name in _KEYWORDS if name in merged}


def _set_default(schema: Schema) -> None:
    """Drop empty defaults; an object's becomes `{}` where its fields have defaults to fill in."""
    default = schema.pop("default", None)
    if "properties" in schema and isinstance(default, dict):
        if any("default" in entry for entry in schema["properties"].values()):
            schema["default"] = {}
    elif default not in (None, "", [], {}):
        schema["default"] = default


def without_defaults(schema: Schema) -> Schema:
    """Return `schema` without any defaults: only the operator decides the content of a status it writes."""
    return {
        name: (
            {key: without_defaults(entry) for key, entry in value.items()}
            if name == "properties"
            else without_defaults(value)
            if isinstance(value, dict)
            else value
        )
        for name, value in schema.items()
        if name != "default"
    }
