"""What a plan is made on besides the manifest: gathered from a cluster, read from a file, or assumed.

The three are one document, so that what a cluster was can be kept and planned on without it.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import yaml
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.base import API_VERSION
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.contract.images import VARIANTS, ImageFacts
from enginewright.controller.children import of_jobs, of_owner
from enginewright.controller.observe import (
    CLAIM,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REVISION,
    Kind,
    Viewed,
)
from enginewright.controller.parse import parsed, summary
from enginewright.controller.settings import (
    CONFIG_VARIABLE,
    NAMESPACE_VARIABLE,
    BadSettings,
    load_settings,
)
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    NODES,
    Resource,
)
from enginewright.manifests.labels import MODEL, model_value
from enginewright.plan.types import Config, Facts
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from enginewright_cli.images import USUAL_NAMESPACE
from enginewright_cli.plan.manifest import Applied

CHART_STORE: Final = {
    "claim": "enginewright-store",
    "size": "20Gi",
    "accessMode": "ReadWriteMany",
}  # as the chart's values have it


class SurroundingsError(ValueError):
    """Facts that cannot be used; says which and why."""


class Surroundings(BaseModel):
    """Everything that a plan is made on, but the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = USUAL_NAMESPACE  # the operator's
    config: Mapping[str, Any]  # the operator's, as in ENGINEWRIGHT_CONFIG
    images: Mapping[str, ImageFacts]  # by reference
    objects: tuple[JsonObject, ...] = ()  # with apiVersion and kind
    assumed: tuple[str, ...] = ()  # what nobody has said, in sentences
    nodes_known: bool = Field(default=True)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file that `--save-facts` has written, or somebody by hand.

        Raises:
            SurroundingsError: it cannot be used.
        """
        try:
            told = yaml.safe_load(file.read_text(encoding="utf-8"))
            return cls.model_validate(told)
        except OSError as error:
            raise SurroundingsError(f"{file}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise SurroundingsError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
        except ValidationError as error:
            raise SurroundingsError(f"{file}: {summary(error)}") from None

    def to_yaml(self) -> str:
        """Return the text of such a file."""
        told = self.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(told, sort_keys=False, allow_unicode=True)

    def settings(self) -> Config:
        """Return the operator's settings.

        Raises:
            SurroundingsError: they are none.
        """
        environment = {
            CONFIG_VARIABLE: json.dumps(dict(self.config)),
            NAMESPACE_VARIABLE: self.namespace,
        }
        try:
            return load_settings(environment).config
        except BadSettings as error:
            raise SurroundingsError(str(error)) from None

    def of(self, resource: Resource, namespace: str | None = None) -> list[JsonObject]:
        """Return the objects of a kind, of one namespace where one is given."""
        return [
            each
            for each in self.objects
            if (each.get("apiVersion"), each.get("kind")) == (resource.api_version, resource.kind)
            and namespace in (None, each["metadata"].get("namespace"))
        ]


def assumed(held: ImageFacts, *, own_classes: bool) -> Surroundings:
    """Return what a small cluster would be whose images hold what is installed here.

    Args:
        held: what is installed.
        own_classes: whether the manifest brings the classes; else there is one, of CPUs.
    """
    variants = sorted({VARIANTS[each] for each in held.backends if each in VARIANTS})
    images = {each: f"assumed.invalid/enginewright-runtime-{each}" for each in variants}
    backends = [each for each in ("cpu", "openvino") if each in held.backends]
    of_cpus = {
        "apiVersion": API_VERSION,
        "kind": AcceleratorClass.kind,
        "metadata": {"name": "cpu"},
        "spec": {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": backends},
    }
    classes = "the manifest's classes" if own_classes else f"one class cpu ({', '.join(backends)})"
    words = (
        f"no cluster: {classes}, and images that hold what is installed here"
        f" (ONNX Runtime {held.ort_version})"
    )
    return Surroundings(
        config={"images": images, "store": CHART_STORE},
        images=dict.fromkeys(images.values(), held),
        objects=() if own_classes else (of_cpus,),
        assumed=(words,),
        nodes_known=False,
    )


def facts(
    applied: Applied, classes: tuple[Applied, ...], known: Surroundings, namespace: str
) -> Facts:
    """Return what the operator would know right after the manifest was applied.

    Raises:
        SurroundingsError: the operator's settings are none.
    """
    config = known.settings()
    live = live_model(known, namespace, applied.name)
    model = InferenceModel.model_validate(
        {
            "metadata": _metadata(applied, live, namespace),
            "spec": applied.body["spec"],
            "status": (live or {}).get("status") or {},
        }
    )

    def children(kind: Kind[Viewed]) -> tuple[Viewed, ...]:
        label = model_value(applied.name)
        views = map(kind.view, known.of(kind.resource, namespace))
        return of_owner(model.metadata.uid, (each for each in views if each.label(MODEL) == label))

    jobs = children(JOB)
    claims = map(CLAIM.view, known.of(CLAIMS, namespace))
    store = (each for each in claims if each.name == config.store.claim)
    engines = parsed(InferenceEngine, known.of(INFERENCE_ENGINES, namespace))
    return Facts(
        model=model,
        config=config,
        now=datetime.now(UTC),
        classes=tuple(_classes(known, classes)),
        nodes=tuple(map(NODE.view, known.of(NODES))),
        images=known.images,
        store=next(store, None),
        jobs=jobs,
        pods=of_jobs(jobs, children(POD)),
        deployments=children(DEPLOYMENT),
        revisions=children(REVISION),
        engines={each.metadata.name: each for each in engines},
    )


def live_model(known: Surroundings, namespace: str, name: str) -> JsonObject | None:
    """Return the model as it is now; None: it is new."""
    models = known.of(INFERENCE_MODELS, namespace)
    return next((each for each in models if each["metadata"]["name"] == name), None)


def _metadata(applied: Applied, live: JsonObject | None, namespace: str) -> dict[str, Any]:
    """Return the metadata after the apply, which adds annotations to those that are there."""
    known: JsonObject = live["metadata"] if live else {"name": applied.name, "namespace": namespace}
    metadata = applied.body.get("metadata")
    added = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return {
        **known,
        "generation": int(known.get("generation") or 0) + 1,
        "annotations": {**(known.get("annotations") or {}), **(added or {})},
    }


def _classes(known: Surroundings, applied: tuple[Applied, ...]) -> list[AcceleratorClass]:
    bodies = {each["metadata"]["name"]: each for each in known.of(ACCELERATOR_CLASSES)}
    for each in applied:
        before = bodies.get(each.name, {})
        bodies[each.name] = {**before, **each.body}
    return parsed(AcceleratorClass, bodies.values())
