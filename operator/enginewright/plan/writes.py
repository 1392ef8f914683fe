"""What each write of a plan is for, which others it needs, and what is said of those that are refused. Pure.

A plan names objects; here they are ordered by purpose, what serves first. `controller/apply_plan.py` tries each write
whose needs are there, whatever becomes of the others, and returns what was refused; from that, the status and
the Events are completed here. So a refused write delays its own purpose alone.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeAlias

from enginewright.api.conditions import ConditionType, StatusReason
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import CANARY, COMPONENT, REVISION
from enginewright.manifests.names import revision_name
from enginewright.manifests.route import HTTP_ROUTE
from enginewright.plan.types import EventIntent, Plan

Json: TypeAlias = Mapping[str, Any]
ObjectName: TypeAlias = tuple[str, str]  # kind, name

# of an object that is being deleted
STUCK_REMEDY: Final = (
    "it goes once its finalizers are done: kubectl delete pod --force those on unreachable nodes"
)
_RECORD: Final = "ControllerRevision"
_SHOWN: Final = 3  # refused writes in a condition; each has an Event


class Purpose(Enum):
    """What a write is for, in the order in which they are tried: what waits for it."""

    RECORD = "what is recorded in it"  # labels and annotations, before anything follows from them
    SERVING = "serving"
    AUTOSCALING = "autoscaling"
    UPDATE = "the update"
    ROUTE = "the route"
    PREPARATION = "the preparation"
    BUILD = "the build"
    REMOVAL = "its removal"


_ORDER: Final = {purpose: number for number, purpose in enumerate(Purpose)}
_HOLD_UP_READY: Final = {Purpose.SERVING, Purpose.UPDATE, Purpose.PREPARATION, Purpose.BUILD}
_PURPOSES: Final = {
    "Deployment": Purpose.SERVING,
    "PodDisruptionBudget": Purpose.SERVING,
    "Service": Purpose.SERVING,
    "HorizontalPodAutoscaler": Purpose.AUTOSCALING,
    HTTP_ROUTE: Purpose.ROUTE,
    "Job": Purpose.PREPARATION,
    InferenceEngine.kind: Purpose.BUILD,
}  # other kinds are for what needs them


@dataclass(frozen=True)
class Write:
    """An object to apply."""

    purpose: Purpose
    obj: dict[str, Any]
    needs: frozenset[ObjectName]  # that must be there before
    replaces: frozenset[ObjectName] = frozenset()  # it is made only if one of these is not there

    def is_due(self, absent: Collection[ObjectName]) -> bool:
        """Return whether it is to be made, after other writes have left these objects `absent`."""
        return self.needs.isdisjoint(absent) and (
            not self.replaces or not self.replaces.isdisjoint(absent)
        )


@dataclass(frozen=True)
class RefusedObject:
    """A write that the API server does not carry out."""

    purpose: Purpose
    kind: str
    name: str
    message: str  # why, with a remedy
    absent: bool = False  # there is no such object of ours

    @property
    def sentence(self) -> str:
        """Return what waits for what, and why."""
        return f"{self.purpose.value} waits for {self.kind} {self.name}: {self.message}"


def order_writes(plan: Plan) -> list[Write]:
    """Return the writes of a plan, what serves first.

    What serves waits for no record of what is to replace it: where that is refused, it is applied as it was.
    """
    kept = set(map(_name_of, plan.otherwise))
    records = (_name_of(obj) for obj in plan.apply if kept and obj["kind"] == _RECORD)
    record = frozenset(records)
    writes = [
        *(_plan_write(obj, record if _name_of(obj) in kept else frozenset()) for obj in plan.apply),
        *(_plan_write(obj, replaces=record) for obj in plan.otherwise),
    ]
    for at, write in enumerate(writes):
        if write.obj["kind"] not in _PURPOSES:
            name = _name_of(write.obj)
            needing = (other.purpose for other in writes if name in other.needs)
            purpose = min(needing, key=_ORDER.__getitem__, default=Purpose.SERVING)
            writes[at] = replace(write, purpose=purpose)
    writes.sort(key=lambda write: _ORDER[write.purpose])
    return [
        replace(write, purpose=Purpose.UPDATE) if _name_of(write.obj) in record else write
        for write in writes
    ]


def _plan_write(
    obj: dict[str, Any],
    needs: frozenset[ObjectName] = frozenset(),
    replaces: frozenset[ObjectName] = frozenset(),
) -> Write:
    return Write(_find_purpose(obj), obj, needs.union(_find_needs(obj)), replaces)


def _name_of(obj: Json) -> ObjectName:
    return obj["kind"], obj["metadata"]["name"]


def _find_purpose(obj: Json) -> Purpose:
    labels = obj["metadata"].get("labels") or {}
    if InferenceEngine.kind in _list_owners(obj):
        return Purpose.BUILD
    if labels.get(COMPONENT) == CANARY:
        return Purpose.ROUTE if obj["kind"] == "Service" else Purpose.UPDATE
    return _PURPOSES.get(obj["kind"], Purpose.SERVING)


def _find_needs(obj: Json) -> Iterator[ObjectName]:
    """Yield what must be there first: a revision that serves is stored, and no pod waits for its claim."""
    spec = obj.get("spec") or {}
    if obj["kind"] == HTTP_ROUTE:
        for rule in spec["rules"]:
            yield from (("Service", backend["name"]) for backend in rule["backendRefs"])
    pod = spec.get("template", {}).get("spec", {})
    for claim in pod.get("resourceClaims", ()):
        yield "ResourceClaimTemplate", claim["resourceClaimTemplateName"]
    if obj["kind"] == "Job":
        claims = (volume.get("persistentVolumeClaim") for volume in pod.get("volumes", ()))
        yield from (("PersistentVolumeClaim", claim["claimName"]) for claim in claims if claim)
    if obj["kind"] == "Deployment":
        revision = (obj["metadata"].get("labels") or {}).get(REVISION, "")
        for owner in _list_owners(obj).values():
            yield _RECORD, revision_name(owner, revision)


def _list_owners(obj: Json) -> dict[str, str]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return {owner["kind"]: owner["name"] for owner in owners}


def report_refusals(
    plan: Plan, refusals: Sequence[RefusedObject], reported: Json, now: datetime
) -> Plan:
    """Return the plan with a status and Events that name what was refused and what it holds up.

    `reported` is the status until now. Ready stays True unless nothing leads to the pods.
    """
    if not refusals:
        return plan
    why = _describe(plan, refusals)
    unreachable = any(refusal.kind == "Service" and refusal.absent for refusal in refusals)
    conditions = {item["type"]: dict(item) for item in plan.status.get("conditions") or ()}
    ready = conditions.get(ConditionType.READY, {})
    planned = (ready.get("reason"), ready.get("message"))
    is_ready = ready.get("status") == "True" and not unreachable
    is_stalled = conditions.get(ConditionType.STALLED, {}).get("status") == "True"
    holds_up = any(refusal.purpose in _HOLD_UP_READY for refusal in refusals)
    changes: dict[str, str] = {"message": f"{why}; {ready.get('message')}"}
    if holds_up and not is_ready and not is_stalled:
        changes["reason"] = StatusReason.APPLY_FAILED
    else:
        changes["message"] = f"{ready.get('message')}; {why}"
    statuses = {
        ConditionType.READY: str(is_ready),
        ConditionType.RECONCILING: str(not is_ready and not is_stalled),
        ConditionType.STALLED: str(is_stalled),
    }
    for kind, status in statuses.items():
        if kind in conditions:
            shown = changes if kind == ConditionType.READY or status == "True" else {}
            reason = {key: changes[key] for key in ("reason",) if key in changes}
            conditions[kind] |= {"status": status, **reason, **shown}
    for refusal in refusals:
        if refusal.kind == HTTP_ROUTE and ConditionType.ROUTE_ACCEPTED in conditions:
            failed = {"reason": StatusReason.APPLY_FAILED, "message": refusal.sentence}
            conditions[ConditionType.ROUTE_ACCEPTED] |= {"status": "False", **failed}
    _keep_times(conditions, plan.status, reported, now)
    replaced = planned if "reason" in changes else None
    events = (event for event in plan.events if (event.reason, event.message) != replaced)
    warnings = (
        EventIntent("Warning", StatusReason.APPLY_FAILED, refusal.sentence) for refusal in refusals
    )
    shown_now = {"conditions": list(conditions.values())} if conditions else {}
    return replace(plan, status={**plan.status, **shown_now}, events=(*events, *warnings))


def _describe(plan: Plan, refusals: Sequence[RefusedObject]) -> str:
    """Return the first refused writes and, if it is so, that nothing that serves is held up."""
    more = [f"{len(refusals) - _SHOWN} more"] if len(refusals) > _SHOWN else []
    serves = any(write.purpose is Purpose.SERVING for write in order_writes(plan))
    if serves and all(refusal.purpose is not Purpose.SERVING for refusal in refusals):
        more.append("scaling, repair and rollback go on")
    return "; ".join([*(refusal.sentence for refusal in refusals[:_SHOWN]), *more])


def _keep_times(
    conditions: Mapping[str, dict[str, Any]], planned: Json, reported: Json, now: datetime
) -> None:
    """Have conditions with another status than planned change when that was first reported."""
    before = {item["type"]: item for item in reported.get("conditions") or ()}
    for item in planned.get("conditions") or ():
        condition, earlier = conditions[item["type"]], before.get(item["type"])
        if condition["status"] == item["status"]:
            continue
        moment = f"{whole_second(now):%Y-%m-%dT%H:%M:%SZ}"
        if earlier is not None and earlier["status"] == condition["status"]:
            moment = earlier["lastTransitionTime"]
        condition["lastTransitionTime"] = moment
