"""The Deployment that serves one revision on one accelerator class."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from enginewright_contract.task import TASK_VARIABLE
from pydantic_core import from_json, to_json

from enginewright.api.inference_model import InferenceModel
from enginewright.api.scalars import duration
from enginewright.manifests.device_claim import claim_template
from enginewright.manifests.labels import (
    CANARY,
    CLASS,
    COMPONENT,
    REVISION,
    SERVE,
    TRACK,
    of_model,
    serving_selector,
)
from enginewright.manifests.names import canary_name
from enginewright.manifests.owner import make_owned_metadata
from enginewright.manifests.pod_options import STARTUP_SECONDS
from enginewright.manifests.snapshot import Revision

_STRATEGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "Surge": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
    "InPlace": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "Recreate": {"type": "Recreate"},
}


def serving_deployment(
    model: InferenceModel,
    revision: Revision,
    accelerator: str,
    *,
    name: str,
    replicas: int | None,
    strategy: str = "",
) -> dict[str, Any]:
    """Return the Deployment of `revision` for one of its classes; without `replicas`, if None.

    It replaces pods by the spec's strategy, or by another one.
    """
    served = model.metadata.name
    labels = {**of_model(served, SERVE), CLASS: accelerator, REVISION: revision.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": make_owned_metadata(model, name, labels),
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "progressDeadlineSeconds": progress_seconds(model),
            "revisionHistoryLimit": 2,  # ControllerRevisions are the history
            "strategy": _STRATEGIES[strategy or model.spec.rollout.strategy],
            "selector": {"matchLabels": serving_selector(served, accelerator)},
            "template": revision.templates[accelerator],
        },
    }


def claim_templates(
    model: InferenceModel, revision: Revision, accelerator: str
) -> Iterator[dict[str, Any]]:
    """Yield what the pods of `revision` need on one of its classes before their Deployment is there."""
    for device_class in revision.snapshot.classes:
        if device_class.name == accelerator and device_class.device is not None:
            # of all classes with this request: no label names one of them
            yield claim_template(model, of_model(model.metadata.name), device_class.device)


def canary_deployment(
    model: InferenceModel,
    revision: Revision,
    accelerator: str,
    *,
    replicas: int,
    stable_key: str | None,
) -> dict[str, Any]:
    """Return the Deployment that runs `revision` beside the serving one of one of its classes.

    No Service selects its pods until each of them gets the component of serving pods, which is not
    part of the selector. `stable_key` is the prepared model that serves, with whose golden outputs
    their sidecars compare answers, if there is one.
    """
    name = canary_name(model.metadata.name, accelerator)
    deployment = _beside(
        serving_deployment(model, revision, accelerator, name=name, replicas=replicas),
        labels={COMPONENT: CANARY, TRACK: CANARY},
        selector={TRACK: CANARY},
    )
    template = deployment["spec"]["template"]
    first = [_comparing(item, stable_key) for item in template["spec"]["initContainers"]]
    template["spec"] = {**template["spec"], "initContainers": first}
    return deployment


def _comparing(container: Mapping[str, Any], stable_key: str | None) -> dict[str, Any]:
    """Return a container whose task names the prepared model that serves."""

    def with_key(variable: Mapping[str, Any]) -> dict[str, Any]:
        if variable["name"] != TASK_VARIABLE:
            return dict(variable)
        return {**variable, "value": _with_stable_key(variable["value"], stable_key)}

    return {**container, "env": [with_key(item) for item in container["env"]]}


def _with_stable_key(task: str, stable_key: str | None) -> str:
    """Return a task with the key and the fields of other releases, without which an upgrade would restart canaries."""
    if stable_key is None:
        return task
    fields: dict[str, Any] = {}
    for name, value in from_json(task).items():
        if name == "backend":  # which follows it
            fields["stable_key"] = stable_key
        fields[name] = value
    return to_json(fields).decode()


def _beside(
    serving: dict[str, Any], *, labels: Mapping[str, str], selector: Mapping[str, str]
) -> dict[str, Any]:
    """Return a Deployment with other labels, `selector` in place of the component, and pods without a priority."""
    metadata, spec = serving["metadata"], serving["spec"]
    template = spec["template"]
    pod_labels = {**template["metadata"]["labels"], **labels}
    selected = {
        key: item for key, item in spec["selector"]["matchLabels"].items() if key != COMPONENT
    }
    pod_spec = {
        name: item for name, item in template["spec"].items() if name != "priorityClassName"
    }
    return {
        **serving,
        "metadata": {**metadata, "labels": {**metadata["labels"], **labels}},
        "spec": {
            **spec,
            "strategy": _STRATEGIES["Recreate"],
            "selector": {"matchLabels": {**selected, **selector}},
            "template": {
                "metadata": {**template["metadata"], "labels": pod_labels},
                "spec": pod_spec,
            },
        },
    }


def progress_seconds(model: InferenceModel) -> int:
    """Return progressDeadlineSeconds: at least as long as a pod may take to start."""
    requested, startup = model.spec.rollout.progress_timeout, model.spec.serving.startup_timeout
    minimum = int(duration(startup).total_seconds()) if startup else STARTUP_SECONDS
    if requested:
        return max(int(duration(requested).total_seconds()), minimum)
    return max(STARTUP_SECONDS, minimum)
