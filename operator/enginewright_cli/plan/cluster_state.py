"""The state of the cluster to plan for: gathered, read from a file, or assumed, in one format."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import yaml
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.base import API_VERSION
from enginewright.api.inference_model import InferenceModel
from enginewright.controller.cache import ObjectCache
from enginewright.controller.facts import gather
from enginewright.controller.parse import summary
from enginewright.controller.settings import (
    CONFIG_VARIABLE,
    NAMESPACE_VARIABLE,
    BadSettings,
    load_settings,
)
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIM_TEMPLATES,
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    HTTP_ROUTES,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    Resource,
)
from enginewright.plan.types import Config, Facts
from enginewright_contract.images import CPU_BACKENDS, VARIANTS, ImageFacts
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from enginewright_cli.images import CHART_NAMESPACE
from enginewright_cli.plan.manifest import Applied
from enginewright_cli.reporting import CommandError, unreadable

# of a model, selected by its label
CHILDREN: Final = (JOBS, PODS, DEPLOYMENTS, CONTROLLER_REVISIONS)
_OBSERVED: Final = (NODES, CLAIMS, INFERENCE_MODELS, INFERENCE_ENGINES, *CHILDREN)
CHART_STORE: Final = {
    "claim": "enginewright-store",
    "size": "20Gi",
    "accessMode": "ReadWriteMany",
}  # defaults of the chart's values


class ClusterState(BaseModel):
    """Everything that a plan depends on, except the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = CHART_NAMESPACE  # the operator's
    config: Mapping[str, Any]  # the operator's, as in ENGINEWRIGHT_CONFIG
    images: Mapping[str, ImageFacts]  # by reference
    objects: tuple[JsonObject, ...] = ()  # with apiVersion and kind
    assumed: tuple[str, ...] = ()  # assumptions, for people
    nodes_known: bool = Field(default=True)
    has_device_claims: bool = True  # whether the cluster has ResourceClaimTemplates
    has_routes: bool = True  # whether the cluster has HTTPRoutes of the Gateway API

    @field_validator("objects")
    @classmethod
    def _have_names(cls, objects: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        for index, object_ in enumerate(objects):
            metadata = object_.get("metadata")
            if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
                message = f"object [{index}] has no metadata.name; save the facts again"
                raise ValueError(message)  # noqa: TRY004 - pydantic converts only this
        return objects

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file that `--save-facts` has written, or that was written by hand. Raises CommandError."""
        try:
            return cls.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise unreadable(file, error) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise CommandError(
                f"{file} is not valid YAML: {' '.join(str(error).split())}"
            ) from None
        except ValidationError as error:
            raise CommandError(f"{file}: {summary(error)}") from None

    def to_yaml(self) -> str:
        """Return the content of a file that `read` accepts."""
        state = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(state, sort_keys=False, allow_unicode=True)

    def settings(self) -> Config:
        """Return the operator's settings. Raises CommandError."""
        environment = {
            CONFIG_VARIABLE: json.dumps(dict(self.config)),
            NAMESPACE_VARIABLE: self.namespace,
        }
        try:
            return load_settings(environment).config
        except BadSettings as error:
            raise CommandError(str(error)) from None

    def of(self, resource: Resource, namespace: str | None = None) -> list[JsonObject]:
        """Return the objects of a kind, in all namespaces or in the given one."""
        return [
            object_
            for object_ in self.objects
            if (object_.get("apiVersion"), object_.get("kind"))
            == (resource.api_version, resource.kind)
            and namespace in (None, object_["metadata"].get("namespace"))
        ]


def assume_state(installed: ImageFacts, *, own_classes: bool) -> ClusterState:
    """Return the state of a small cluster with what is installed here, and one class of CPUs unless `own_classes`."""
    variants = sorted({VARIANTS[backend] for backend in installed.backends if backend in VARIANTS})
    images = {variant: f"assumed.invalid/enginewright-runtime-{variant}" for variant in variants}
    backends = [item for item in CPU_BACKENDS if item in installed.backends]
    cpu_class = {
        "apiVersion": API_VERSION,
        "kind": AcceleratorClass.kind,
        "metadata": {"name": "cpu"},
        "spec": {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": backends},
    }
    classes = "the manifest's classes" if own_classes else f"one class cpu ({', '.join(backends)})"
    assumption = (
        f"no cluster: {classes}, and images that contain what is installed here"
        f" (ONNX Runtime {installed.ort_version})"
    )
    return ClusterState(
        config={"images": images, "store": CHART_STORE},
        images=dict.fromkeys(images.values(), installed),
        objects=() if own_classes else (cpu_class,),
        assumed=(assumption,),
        nodes_known=False,
    )


def facts(
    applied: Applied, classes: tuple[Applied, ...], state: ClusterState, namespace: str
) -> Facts:
    """Return the operator's facts right after the manifest is applied. Raises CommandError."""
    config = state.settings()
    live = live_model(state, namespace, applied.name)
    model = InferenceModel.model_validate(
        {
            "metadata": _metadata(applied, live, namespace),
            "spec": applied.body["spec"],
            "status": (live or {}).get("status") or {},
        }
    )
    return gather(_cache(state, classes), model, config, datetime.now(UTC), state.images)


def live_model(state: ClusterState, namespace: str, name: str) -> JsonObject | None:
    """Return the model as it exists now, or None if it is new."""
    models = state.of(INFERENCE_MODELS, namespace)
    return next((model for model in models if model["metadata"]["name"] == name), None)


def _metadata(applied: Applied, live: JsonObject | None, namespace: str) -> dict[str, Any]:
    """Return the metadata after the apply, which merges the annotations."""
    before: JsonObject = (
        live["metadata"] if live else {"name": applied.name, "namespace": namespace}
    )
    metadata = applied.body.get("metadata")
    added = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return {
        **before,
        "generation": int(before.get("generation") or 0) + 1,
        "annotations": {**(before.get("annotations") or {}), **(added or {})},
    }


def _cache(state: ClusterState, classes: tuple[Applied, ...]) -> ObjectCache:
    """Return all objects as the operator would see them after the manifest's classes are applied."""
    bodies = {entry["metadata"]["name"]: entry for entry in state.of(ACCELERATOR_CLASSES)}
    for device_class in classes:
        bodies[device_class.name] = {**bodies.get(device_class.name, {}), **device_class.body}
    cache = ObjectCache()
    for body in bodies.values():
        cache.observe(ACCELERATOR_CLASSES, body)
    for resource in _OBSERVED:
        for obj in state.of(resource):
            cache.observe(resource, obj)
    if state.has_device_claims:
        cache.know_kind(CLAIM_TEMPLATES)
    if state.has_routes:
        cache.know_kind(HTTP_ROUTES)
    return cache
