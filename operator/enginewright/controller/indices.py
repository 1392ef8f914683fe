"""By which values cached objects are found within their namespace, so that no pass searches all of a kind. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from enginewright.kube.resources import INFERENCE_ENGINES, INFERENCE_MODELS, Resource
from enginewright.manifests.collect_job import COLLECT
from enginewright.manifests.labels import COMPONENT, ENGINE, IMAGE, MODEL
from enginewright.observed.pods import JOB_NAME

PREPARED: Final = "prepared model"  # its key: what an engine is built from, what a model has
# of InferenceEngines
RECORD: Final = "status.prepared.recordHash"
UNBUILT: Final = "no status.engine"  # its one value is ""
# of InferenceModels; those that refer to an engine are found by `ENGINE`, as its children are
REJECTED: Final = "status.rejectedBackends.prepared.key"
CLASSES: Final = "spec.accelerators.class"  # and of what serves; "" where the spec names none

# also found by COMPONENT: a namespace's collections, of all its Jobs and pods
_LABELS: Final = (MODEL, ENGINE, IMAGE, JOB_NAME)

Index = tuple[str, str]  # what it is, and its value


def list_indices(resource: Resource, obj: Mapping[str, Any]) -> frozenset[Index]:
    """Return by what an object is found."""
    labels = obj["metadata"].get("labels") or {}
    indices = {(label, str(labels[label])) for label in _LABELS if labels.get(label)}
    if labels.get(COMPONENT) == COLLECT:
        indices.add((COMPONENT, COLLECT))
    if resource == INFERENCE_ENGINES:
        indices.update(_of_engine(obj))
    elif resource == INFERENCE_MODELS and "deletionTimestamp" not in obj["metadata"]:
        indices.update(_of_model(obj.get("spec") or {}, obj.get("status") or {}))
    return frozenset(indices)


def is_unbuilt(engine: Mapping[str, Any]) -> bool:
    """Return whether an InferenceEngine has no engine yet, so that models' references affect it."""
    return "engine" not in (engine.get("status") or {})


def _of_engine(engine: Mapping[str, Any]) -> Iterator[Index]:
    yield from _name(PREPARED, (engine.get("spec") or {}).get("preparedKey"))
    for prepared in (engine.get("status") or {}).get("prepared") or ():
        yield from _name(RECORD, prepared.get("recordHash"))
    if is_unbuilt(engine):
        yield UNBUILT, ""


def _of_model(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Index]:
    for engine in status.get("engines") or ():
        yield ENGINE, str(engine["name"])
        yield from _name(CLASSES, engine.get("class"))
    yield from _name(PREPARED, (status.get("prepared") or {}).get("key"))
    for rejected in status.get("rejectedBackends") or ():
        yield from _name(REJECTED, (rejected.get("prepared") or {}).get("key"))
    for accelerator in spec.get("accelerators") or ({"class": ""},):
        yield CLASSES, str(accelerator["class"])
    for serving in (status.get("serving") or {}).get("classes") or ():
        yield from _name(CLASSES, serving.get("class"))


def _name(index: str, value: str | None) -> Iterator[Index]:
    if value:
        yield index, value
