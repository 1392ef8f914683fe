"""A model's HTTPRoute: which share of the requests its canary gets, and what gateways say about it.

With a route no pod of a canary is behind the model's Service before it is promoted, so the weights are
the shares. From then on it is, and the route's weight is 0, so that pods that leave get no request.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import TargetPhase
from enginewright.api.scalars import share
from enginewright.manifests.labels import CANARY, COMPONENT, REVISION
from enginewright.manifests.route import HTTP_ROUTE, ROUTE_VERSION, canary_service, http_route
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.resolve.resolve import without_gateway_api
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.proofs import Statement
from enginewright.plan.types import Facts, ObjectRef


def route_objects(
    facts: Facts,
    brought: BringUp | None,
    applied: Revision,
    deployments: Mapping[str, DeploymentView],
) -> Iterator[dict[str, Any]]:
    """Yield the canary's Service and the route, if the model asks for one and the cluster has them."""
    route = facts.model.spec.serving.route
    if route is None or facts.routes is None:
        return
    canary = brought.canary if brought else applied
    tls, canary_tls = (revision.snapshot.tls_secret is not None for revision in (applied, canary))
    yield canary_service(facts.model, tls=canary_tls)
    share_now = _canary_share(facts, brought, deployments.values())
    yield http_route(facts.model, route, canary_share=share_now, tls=tls, canary_tls=canary_tls)


def find_obsolete_routes(facts: Facts) -> Iterator[ObjectRef]:
    """Yield the route of a model that asks for none any more, and then its canary's Service."""
    if facts.model.spec.serving.route is not None:
        return
    for route in facts.routes or ():
        yield ObjectRef(ROUTE_VERSION, HTTP_ROUTE, route.namespace, route.name)
    for service in facts.services:
        if service.label(COMPONENT) == CANARY:
            yield ObjectRef("v1", "Service", service.namespace, service.name)


def route_accepted(facts: Facts) -> Statement | None:
    """Return whether gateways take the route, if the model asks for one."""
    route = facts.model.spec.serving.route
    if route is None:
        return None
    if missing := without_gateway_api(facts):
        return Statement("False", missing.reason, missing.message)
    name = facts.model.metadata.name
    parents = [
        route_parent
        for one in facts.routes or ()
        if one.name == name
        for route_parent in one.parents
    ]
    for parent in parents:
        if refusal := parent.refusal:
            message = f"gateway {parent.gateway}: {refusal.reason}: {refusal.message}"
            return Statement("False", StatusReason.ROUTE_REJECTED, message)
    accepted = sorted({route_parent.gateway for route_parent in parents if route_parent.accepted})
    if len(accepted) < len(route.parent_refs):
        message = (
            f"accepted by {len(accepted)} of {len(route.parent_refs)} gateways; those that do not"
            " exist, or that no controller implements, do not respond"
        )
        return Statement("Unknown", StatusReason.NOT_YET_VERIFIED, message)
    return Statement("True", StatusReason.ROUTE_ACCEPTED, f"accepted by {', '.join(accepted)}")


def _canary_share(
    facts: Facts, brought: BringUp | None, deployments: Iterable[DeploymentView]
) -> float:
    """Return which share of the requests the canary gets now, 0 to 1.

    It gets none without a ready pod, because gateways would respond with an error. The first step gives the
    share of its pods, but no more than the next step.
    """
    target = brought.target if brought else None
    if brought is None or target is None or target.phase is not TargetPhase.ANALYZING:
        return 0.0
    own = (pod for pod in facts.pods if pod.is_canary and pod.label(REVISION) == target.revision)
    if not any(pod.ready and not pod.leaving for pod in own):
        return 0.0
    steps = [share(step) or 0.0 for step in facts.model.spec.rollout.canary.steps]
    if steps and target.step > 1:
        return steps[min(target.step - 1, len(steps)) - 1]
    canaries = sum(brought.canaries.values())
    all_pods = canaries + sum(deployment.desired for deployment in deployments)
    return min([canaries / all_pods if all_pods else 0.0, *steps[:1]])
