"""The kinds that the operator reads and writes, and their paths in the API: a table instead of discovery requests."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.base import GROUP, VERSION
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel


@dataclass(frozen=True)
class Resource:
    """One kind of object; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return `apiVersion` as in objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path; without a namespace, of all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


INFERENCE_MODELS: Final = Resource(GROUP, VERSION, InferenceModel.plural, InferenceModel.kind)
INFERENCE_ENGINES: Final = Resource(GROUP, VERSION, InferenceEngine.plural, InferenceEngine.kind)
ACCELERATOR_CLASSES: Final = Resource(
    GROUP, VERSION, AcceleratorClass.plural, AcceleratorClass.kind, namespaced=False
)
JOBS: Final = Resource("batch", "v1", "jobs", "Job")
PODS: Final = Resource("", "v1", "pods", "Pod")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
SERVICES: Final = Resource("", "v1", "services", "Service")
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
HORIZONTAL_POD_AUTOSCALERS: Final = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"
)
# of the Gateway API, which a cluster may lack
HTTP_ROUTES: Final = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
# of Dynamic Resource Allocation, which a cluster may lack
CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS: Final = Resource("", "v1", "events", "Event")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CLUSTER_ROLE_BINDINGS: Final = Resource(
    "rbac.authorization.k8s.io",
    "v1",
    "clusterrolebindings",
    "ClusterRoleBinding",
    namespaced=False,
)

_BY_KIND: Final = {
    (resource.api_version, resource.kind): resource
    for resource in (
        INFERENCE_MODELS,
        INFERENCE_ENGINES,
        ACCELERATOR_CLASSES,
        JOBS,
        PODS,
        DEPLOYMENTS,
        CONTROLLER_REVISIONS,
        SERVICES,
        DISRUPTION_BUDGETS,
        HORIZONTAL_POD_AUTOSCALERS,
        HTTP_ROUTES,
        CLAIM_TEMPLATES,
        CLAIMS,
        NODES,
        NAMESPACES,
        CONFIG_MAPS,
        EVENTS,
        LEASES,
        CLUSTER_ROLE_BINDINGS,
    )
}


def resource_of(api_version: str, kind: str) -> Resource:
    """Return the resource of a kind; KeyError for one that the operator does not handle."""
    return _BY_KIND[(api_version, kind)]
