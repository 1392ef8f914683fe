"""Fields of resources, settings, values and messages, with their defaults and descriptions."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from enginewright.api.crds import definitions
from enginewright.controller.settings import (
    BucketSettings,
    ImageSettings,
    SettingsDocument,
    StoreSettings,
)
from enginewright_cli.describe.result import Description, ExternalFile
from enginewright_cli.diagnose.result import (
    EnginePlacement,
    Explanation,
    Link,
    ModelPlacement,
    PodPlacement,
    RevisionDiff,
    RevisionDifference,
)
from enginewright_cli.inspect.result import EngineFit, EngineInspection, InspectedFile
from enginewright_cli.plan.result import ClassPlan, Difference, Forecast, PlanStep, Refusal
from enginewright_cli.preflight.config import ModelEntry
from enginewright_cli.preflight.schema import descriptions
from enginewright_cli.preflight.schema import schema as preflight_schema
from enginewright_cli.rollout.result import (
    BringUpProgress,
    ComparedFigure,
    FailedRevision,
    PastRevision,
    RolloutAnalysis,
    RolloutArm,
    RolloutClass,
    RolloutStatus,
)
from enginewright_contract.execution import Execution
from enginewright_contract.measurements import (
    AnswerChange,
    LatencySeries,
    Measurements,
    OutputChange,
    ShadowComparison,
    ShadowOutput,
)
from enginewright_contract.verdict import FallbackVerdict, Verdict
from pydantic import BaseModel

from hack.tables.markdown import code, table

ROOT: Final = Path(__file__).resolve().parents[2]
VALUES: Final = ROOT / "charts/enginewright/values.schema.json"
ACTION: Final = ROOT / ".github/actions/preflight/action.yml"

Schema = dict[str, Any]


def fields(kind: str, part: str, *prefixes: str) -> str:
    """Return the fields of a custom resource below `prefixes`; all fields without prefixes."""
    (definition,) = (
        item for item in definitions().values() if item["spec"]["names"]["kind"] == kind
    )
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    prefix = "status." if part == "status" else ""
    depth = 2 if part == "status" else 9
    rows = [
        (code(prefix + path), default, meaning)
        for path, default, meaning in _fields(schema, "", depth)
        if not prefixes or any(path == one or path.startswith(f"{one}.") for one in prefixes)
    ]
    if part == "status":
        return table(("field", "meaning"), ((name, meaning) for name, _, meaning in rows))
    return table(("field", "default", "meaning"), rows)


def _fields(schema: Schema, path: str, depth: int) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        if here == "conditions":
            field = {**field, "items": {}}  # noqa: PLW2901 - the same for every kind
        inside = field if "properties" in field else field.get("items", {})
        meaning = field.get("description", "")
        only = list(inside.get("properties", {})) == ["name"]
        if depth == 1 or only:
            inside = {}
        default = _default(field, name in schema.get("required", ()))
        yield (f"{here}.name" if only else here), default, meaning
        yield from _fields(inside, here, depth - 1)


def _default(field: Schema, required: bool) -> str:
    if required:
        return "required"
    if field.get("default") in (None, {}):
        return ""
    default = field["default"]
    return code(default if isinstance(default, str) else json.dumps(default))


def settings() -> str:
    """Return the fields of the operator's configuration."""
    rows = [
        *_settings(SettingsDocument, ""),
        *_settings(StoreSettings, "store."),
        *_settings(BucketSettings, "store.bucket."),
        *_settings(ImageSettings, "store.images."),
    ]
    return table(("field", "default", "meaning"), rows)


def _settings(document: type[BaseModel], path: str) -> Iterator[Sequence[str]]:
    meanings = descriptions(document)
    for name, field in document.model_fields.items():
        default = {} if isinstance(field.default, BaseModel) else field.default
        shown = "required" if field.is_required() else code(json.dumps(default).strip('"'))
        yield code(f"{path}{field.alias}"), shown, meanings[name]


def values() -> str:
    """Return the chart's values."""
    defaults = yaml.safe_load((VALUES.parent / "values.yaml").read_text())
    rows = _values(json.loads(VALUES.read_text()), defaults, "")
    return table(("value", "default", "meaning"), rows)


def _values(schema: Schema, defaults: object, path: str) -> Iterator[Sequence[str]]:
    for name, field in schema.get("properties", {}).items():
        if name == "global":
            continue
        here = f"{path}.{name}" if path else name
        default = defaults.get(name) if isinstance(defaults, dict) else None
        inside = field.get("properties", {})
        shown = "" if inside or default in (None, "") else code(json.dumps(default).strip('"'))
        yield code(here), shown, field.get("description", "")
        yield from _values(field, default, here)


def preflight(part: str) -> str:
    """Return the fields of one part of preflight's JSON."""
    properties = preflight_schema()["$defs"][part]["properties"]
    rows = ((code(name), field.get("description", "")) for name, field in properties.items())
    return table(("field", "meaning"), rows)


def configuration() -> str:
    """Return the keys of enginewright.toml."""
    rows = (
        (
            code(name),
            meaning.removesuffix(".") + ("; only in `[[models]]`" if name == "path" else ""),
        )
        for name, meaning in descriptions(ModelEntry).items()
    )
    return table(("key", "meaning"), rows)


def action_inputs() -> str:
    """Return the inputs of the GitHub action."""
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    rows = (
        (code(name), code(input_["default"]), input_["description"].removesuffix("."))
        for name, input_ in inputs.items()
    )
    return table(("input", "default", "meaning"), rows)


def messages(name: str) -> str:
    """Return the fields of one JSON message."""
    models: dict[str, type[BaseModel]] = {
        item.__name__: item
        for item in (
            *(Execution, Verdict, FallbackVerdict, EngineInspection, InspectedFile, EngineFit),
            *(Forecast, PlanStep, Refusal, ClassPlan, Difference),
            *(
                RolloutStatus,
                RolloutArm,
                RolloutClass,
                BringUpProgress,
                RolloutAnalysis,
                ComparedFigure,
            ),
            *(FailedRevision, PastRevision),
            *(Explanation, Link, ModelPlacement, PodPlacement, EnginePlacement),
            *(RevisionDiff, RevisionDifference, Description, ExternalFile),
            *(Measurements, LatencySeries, AnswerChange, OutputChange),
            *(ShadowComparison, ShadowOutput),
        )
    }
    printed = {
        field: model_field.alias or field
        for field, model_field in models[name].model_fields.items()
    }
    rows = ((code(printed[field]), about) for field, about in descriptions(models[name]).items())
    return table(("field", "meaning"), rows)
