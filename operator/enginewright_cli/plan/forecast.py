"""Forecasts from facts, with the operator's own decisions as steps. Pure."""

from dataclasses import replace
from typing import Any

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.kube.api import JsonObject
from enginewright.plan.resolve.classes import readiness
from enginewright.plan.resolve.resolve import resolve
from enginewright.plan.types import Facts, Obstacle

from enginewright_cli.plan.differences import of_specs
from enginewright_cli.plan.result import ClassPlan, Forecast, Refusal
from enginewright_cli.plan.steps import Steps


def refuse(namespace: str, name: str, problems: tuple[str, ...], *, exists: bool) -> Forecast:
    """Return the forecast of a model that the API server would reject."""
    return Forecast(
        namespace=namespace,
        name=name,
        exists=exists,
        verdict="refused",
        refusals=tuple(Refusal(reason="InvalidSpec", message=problem) for problem in problems),
    )


def forecast(facts: Facts, live: JsonObject | None, *, nodes_known: bool) -> Forecast:
    """Return what would happen; `live` is the existing model, and `nodes_known` whether `facts.nodes` are all nodes."""
    metadata = facts.model.metadata
    common: dict[str, Any] = {
        "namespace": metadata.namespace,
        "name": metadata.name,
        "exists": live is not None,
        "spec": tuple(of_specs(facts, live)),
        "serving": facts.model.status.serving.revision if facts.model.status.serving else None,
    }
    target = resolve(facts)
    if isinstance(target, Obstacle):
        refusal = Refusal(reason=target.reason, message=target.message, lasting=target.stalled)
        verdict = "refused" if target.stalled else "waits"
        return Forecast(**common, verdict=verdict, refusals=(refusal,))
    steps = Steps(facts, target, _digest(facts, live))
    return Forecast(
        **common,
        verdict=steps.verdict(),
        refusals=steps.refusals,
        backend=target.backend,
        image=target.image,
        policy=target.promise.policy,
        classes=tuple(_class(facts, device_class, nodes_known) for device_class in target.classes),
        steps=steps.steps,
        revision=steps.revision,
        strategy=facts.model.spec.rollout.strategy,
        rollout=steps.differences,
    )


def _digest(facts: Facts, live: JsonObject | None) -> str | None:
    """Return the digest of the prepared model, which the earlier spec had, if the source is the same."""
    prepared = facts.model.status.prepared
    if live is None or prepared is None:
        return None
    model = type(facts.model).model_validate({**live, "status": live.get("status") or {}})
    now = resolve(replace(facts, model=model))
    if isinstance(now, Obstacle) or now.artifact_hash != prepared.inputs_hash:
        return None
    before, after = model.spec.source, facts.model.spec.source
    newly_pinned = after.sha256 is not None and after.sha256 != before.sha256
    return None if newly_pinned or before.uri != after.uri else prepared.model_digest


def _class(facts: Facts, accelerator_class: AcceleratorClass, nodes_known: bool) -> ClassPlan:
    others = [one for one in facts.classes if one.metadata.name != accelerator_class.metadata.name]
    ready = readiness(accelerator_class, others, facts.nodes, facts.config.product_labels)
    spec = facts.model.spec
    own = next(
        (one for one in spec.accelerators if one.class_name == accelerator_class.metadata.name),
        None,
    )
    return ClassPlan(
        name=accelerator_class.metadata.name,
        resource=accelerator_class.spec.resource_name
        or (accelerator_class.spec.device and accelerator_class.spec.device.device_class_name),
        compute_capability=accelerator_class.spec.compute_capability,
        replicas=spec.replicas if own is None or own.replicas is None else own.replicas,
        trouble=ready.message if nodes_known and ready.status != "True" else "",
    )
