"""Walks from a model's conditions to the cause: Job, stage, pod, node, verdict, Event; pure.

Each object says what is wrong in its own words, from the statement that users see to the deepest one.
What has been said before is left out.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from enginewright.api.conditions import Condition, ConditionType, StatusReason, find_condition
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import Preparation
from enginewright.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_ENGINES, JOBS
from enginewright.observed.deployments import deployment_view
from enginewright.observed.pods import PodView
from enginewright.plan import pods as reports
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Verdict

from enginewright_cli.diagnose.advice import advise
from enginewright_cli.diagnose.reading import ModelObjects, is_ready
from enginewright_cli.diagnose.result import Explanation, Link

# RECONCILING and STALLED have the reason of READY
_OF_READY: Final = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
_NORMALLY_FALSE: Final = (ConditionType.ROLLED_BACK, ConditionType.FALLBACK_ACTIVE)
_NOT_YET: Final = (StatusReason.NOT_YET_VERIFIED, StatusReason.NOTHING_SERVES)
_WALKED: Final = ("Job", "InferenceEngine", "Pod", "Node")  # named even if they say nothing new
_MOST: Final = 3  # pods that are not ready, and Events

State = Literal["ready", "impaired", "working", "stalled", "unknown"]


def explain(seen: ModelObjects) -> Explanation:
    """Return why a model is not Ready, or what else is wrong with it."""
    chain = tuple(_chain(seen))
    shown = tuple(_without_repeats(chain))
    state = _state(seen.model)
    if state == "ready" and len(shown) > 1:
        state = "impaired"
    advice = None if state == "ready" else advise(seen, chain)
    return Explanation(
        namespace=seen.namespace,
        name=seen.name,
        state=state,
        chain=shown,
        cause=advice.cause if advice else None,
        remedy=advice.remedy if advice else "",
        command=advice.command if advice else "",
        notes=seen.unread,
    )


def _state(model: InferenceModel | None) -> State:
    if model is None:
        return "unknown"
    ready = find_condition(model.status.conditions, ConditionType.READY)
    stalled = find_condition(model.status.conditions, ConditionType.STALLED)
    if ready is None or not _is_seen(model):
        return "working"
    if ready.status == "True":
        return "ready"
    return "stalled" if stalled is not None and stalled.status == "True" else "working"


def _is_seen(model: InferenceModel) -> bool:
    return model.status.observed_generation >= model.metadata.generation


def _chain(seen: ModelObjects) -> Iterator[Link]:
    model = seen.model
    if model is not None:
        yield from _conditions(model)
        yield from _rollout(model)
        yield from _preparation(seen, model)
        yield from _engines(seen, model)
    yield from _serving(seen)
    yield from _events(seen)


def _conditions(model: InferenceModel) -> Iterator[Link]:
    name = f"InferenceModel {model.metadata.name}"
    ready = find_condition(model.status.conditions, ConditionType.READY)
    if ready is None or not _is_seen(model):
        text = "the operator has not seen this spec yet: it may be starting, or not be running"
        yield Link(object=name, part="status", message=text)
    if ready is not None:
        yield _condition(name, ready)
    for condition in model.status.conditions:
        normal = "False" if condition.type in _NORMALLY_FALSE else "True"
        is_known = condition.type in set(ConditionType) and condition.type not in _OF_READY
        if is_known and condition.status != normal and condition.reason not in _NOT_YET:
            yield _condition(name, condition)


def _condition(name: str, condition: Condition) -> Link:
    part = f"{condition.type} is {condition.status}"
    return Link(object=name, part=part, reason=condition.reason, message=condition.message)


def _preparation(seen: ModelObjects, model: InferenceModel) -> Iterator[Link]:
    source = model.status.source
    for preparation in (model.status.preparation, source.refreshing if source else None):
        if preparation is not None:
            yield from _describe_preparation(seen, preparation)
    if source and (failure := source.failure):
        name = f"InferenceModel {model.metadata.name}"
        yield Link(
            object=name,
            part="refresh",
            reason=failure.reason,
            message=failure.message,
            remedy=failure.remedy,
        )


def _describe_preparation(seen: ModelObjects, preparation: Preparation) -> Iterator[Link]:
    if leader := preparation.leader:
        text = f"its Job prepares the same, and its result is taken over: explain {leader}"
        yield Link(
            object=f"InferenceModel {leader}",
            reason=StatusReason.SHARED_PREPARATION,
            message=text,
        )
    if failure := preparation.failure:
        yield Link(
            object=f"Job {preparation.job}" if preparation.job else "the last Job",
            part=f"stage {failure.stage}" if failure.stage else "",
            reason=failure.reason,
            message=failure.message,
            remedy=failure.remedy,
        )
    yield from _job(seen, preparation.job, is_known=failure is not None)


def _engines(seen: ModelObjects, model: InferenceModel) -> Iterator[Link]:
    engines = {engine.metadata.name: engine for engine in seen.engines}
    for reference in model.status.engines:
        engine = engines.get(reference.name)
        if engine is not None and not is_ready(engine):
            yield from _engine(seen, engine)
        elif engine is None and INFERENCE_ENGINES not in seen.denied:
            text = "it does not exist yet, or was deleted: the operator creates it"
            yield Link(object=f"InferenceEngine {reference.name}", message=text)


def _engine(seen: ModelObjects, engine: InferenceEngine) -> Iterator[Link]:
    status = engine.status
    name = f"InferenceEngine {engine.metadata.name}"
    if ready := find_condition(status.conditions, ConditionType.READY):
        yield _condition(name, ready)
    if failure := status.failure:
        yield Link(
            object=name,
            part=f"stage {failure.stage}" if failure.stage else "",
            reason=failure.reason,
            message=failure.message,
            remedy=failure.remedy,
        )
    yield from _job(seen, status.job, is_known=failure is not None)


def _job(seen: ModelObjects, name: str, *, is_known: bool) -> Iterator[Link]:
    """Yield what a Job and its last pod say, unless it has succeeded; `is_known`: its failure was recorded."""
    job = next((job for job in seen.jobs if job.name == name), None)
    if not name or (job is not None and job.outcome == "Complete"):
        return
    obj = f"Job {name}"
    if job is None:
        if JOBS not in seen.denied:
            yield Link(object=obj, message="it does not exist any more: finished Jobs are removed")
    elif job.outcome == "Failed" and not is_known:
        yield Link(object=obj, reason=job.reason, message=job.message)
    elif job.suspended:
        text = f"queue {job.queue} has not admitted it" if job.queue else "spec.suspend is true"
        yield Link(object=obj, reason=StatusReason.QUEUED, message=text)
    for pod in seen.pods_of(name)[-1:]:
        yield from _pod(seen, pod)


def _pod(seen: ModelObjects, pod: PodView) -> Iterator[Link]:
    """Yield what is wrong with a pod: its node, its containers, or what its sidecar has seen."""
    name = f"Pod {pod.name}"
    node = seen.nodes.get(pod.node)
    if node is not None and node.is_down:
        text = (
            "its kubelet is silent: pods go on once it is Ready, or elsewhere once they are deleted"
        )
        yield Link(object=f"Node {node.name}", reason=StatusReason.NODE_NOT_READY, message=text)
    if failure := reports.failure(pod):
        yield Link(
            object=name,
            part=f"container {failure.stage}, exit code {failure.exit_code}",
            reason=failure.reason,
            message=failure.finding.cause,
            remedy=failure.finding.advice,
        )
    elif waits := reports.waiting_for(pod):
        why = reports.missing_claim(pod) or (
            Reason.CAPACITY_BLOCKED if pod.unschedulable else Reason.POD_NOT_STARTED
        )
        yield Link(object=name, reason=why, message=waits)
    elif not pod.node and not pod.finished:
        text = f"no node yet: scheduler {pod.scheduler or 'of the cluster'} has not looked at it"
        yield Link(object=name, message=text)
    elif running := [one.name for one in pod.containers if one.running]:
        yield Link(object=name, part=f"container {running[-1]}", message="it runs")
    yield from _verdict(name, seen.verdicts.get(pod.name))


def _verdict(name: str, verdict: Verdict | str | None) -> Iterator[Link]:
    if not isinstance(verdict, Verdict):
        return
    for check in verdict.checks:
        if check.state == "failed" or check.finding:
            yield Link(
                object=name,
                part=f"check {check.check} is {check.state}",
                reason=check.reason or "",
                message=check.message,
                remedy=check.finding.advice if check.finding else "",
            )


def _rollout(model: InferenceModel) -> Iterator[Link]:
    status = model.status
    if target := status.target:
        step = f", step {target.step}" if target.step else ""
        yield Link(
            object=f"revision {target.revision}",
            part=f"{target.phase}{step}",
            reason=target.reason,
            message=target.message or "it waits for nothing but time",
        )
    rejected = find_condition(status.conditions, ConditionType.ROLLED_BACK)
    ready = find_condition(status.conditions, ConditionType.READY)
    is_ready = ready is not None and ready.status == "True"
    if (failure := status.last_failure) and (
        not is_ready or (rejected is not None and rejected.status == "True")
    ):
        yield Link(
            object=f"revision {failure.revision}" if failure.revision else "the new revision",
            part=failure.stage,
            reason=failure.reason,
            message=failure.message,
        )


def _serving(seen: ModelObjects) -> Iterator[Link]:
    """Yield what prevents pods from being created or ready, of the pods of each class the first."""
    for deployment in map(deployment_view, seen.objects.get(DEPLOYMENTS, ())):
        if refused := deployment.refused:
            text = reports.explain_refusal(refused.message)
            obj = f"Deployment {deployment.name}"
            yield Link(object=obj, reason=StatusReason.FAILED_CREATE, message=text)
    unready = [pod for pod in seen.serving if not pod.ready]
    for pod in unready[:_MOST]:
        yield from _pod(seen, pod)
    if (more := len(unready) - _MOST) > 0:
        yield Link(object=f"{more} more pods", message="they are not ready either")
    for pod in seen.serving:
        if pod.ready:
            yield from _verdict(f"Pod {pod.name}", seen.verdicts.get(pod.name))


def _events(seen: ModelObjects) -> Iterator[Link]:
    """Yield the latest Warning Events, each reason once."""
    warnings = [event for event in seen.objects.get(EVENTS, ()) if event.get("type") == "Warning"]
    warnings.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    last = {str(event.get("reason") or ""): event for event in warnings}
    for reason, event in list(last.items())[-_MOST:]:
        about = event.get("involvedObject") or {}
        obj = f"{about.get('kind', '')} {about.get('name', '')}"
        text = str(event.get("message") or "").strip()
        yield Link(object=obj, part="Event", reason=reason, message=text)


def _without_repeats(chain: Iterable[Link]) -> Iterator[Link]:
    """Yield each statement once: what another object repeats without its words, and no Event that says nothing new."""
    said: list[Link] = []
    for link in chain:
        repeats = [one for one in said if one.reason == link.reason and link.message in one.message]
        if link.part == "Event" and any(one.reason == link.reason for one in said):
            continue
        is_walked = link.object.partition(" ")[0] in _WALKED
        if repeats and (not is_walked or any(one.object == link.object for one in repeats)):
            continue
        said.append(link)
        yield link.model_copy(update={"message": ""}) if repeats and link.reason else link
