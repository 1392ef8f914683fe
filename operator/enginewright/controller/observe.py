"""The views of watched kinds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from enginewright.kube.resources import (
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    HTTP_ROUTES,
    JOBS,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from enginewright.observed.base import Json, ObservedObject
from enginewright.observed.deployments import DeploymentView, deployment_view
from enginewright.observed.identities import (
    AutoscalerView,
    BudgetView,
    ClaimView,
    ServiceView,
    claim_view,
)
from enginewright.observed.jobs import JobView, job_view
from enginewright.observed.nodes import NodeView, node_view
from enginewright.observed.pods import PodView, pod_view
from enginewright.observed.revisions import RevisionView, revision_view
from enginewright.observed.routes import RouteView, route_view

Viewed = TypeVar("Viewed", bound=ObservedObject)


@dataclass(frozen=True)
class Kind(Generic[Viewed]):
    """A kind of object that is read through a view."""

    resource: Resource
    view: Callable[[Json], Viewed]


AUTOSCALER: Final[Kind[AutoscalerView]] = Kind(
    HORIZONTAL_POD_AUTOSCALERS, AutoscalerView.from_object
)
BUDGET: Final[Kind[BudgetView]] = Kind(DISRUPTION_BUDGETS, BudgetView.from_object)
CLAIM: Final[Kind[ClaimView]] = Kind(CLAIMS, claim_view)
DEPLOYMENT: Final[Kind[DeploymentView]] = Kind(DEPLOYMENTS, deployment_view)
JOB: Final[Kind[JobView]] = Kind(JOBS, job_view)
NODE: Final[Kind[NodeView]] = Kind(NODES, node_view)
POD: Final[Kind[PodView]] = Kind(PODS, pod_view)
REVISION: Final[Kind[RevisionView]] = Kind(CONTROLLER_REVISIONS, revision_view)
ROUTE: Final[Kind[RouteView]] = Kind(HTTP_ROUTES, route_view)
SERVICE: Final[Kind[ServiceView]] = Kind(SERVICES, ServiceView.from_object)


def name_of(obj: Json) -> tuple[str, str]:
    """Return namespace (empty for cluster-scoped kinds) and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
