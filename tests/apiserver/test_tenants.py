"""A user with the role `edit` in one namespace: what it can do to the operator, to the cluster and to models of others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from enginewright.controller.election import SCOPE_ANNOTATION
from enginewright.manifests.probe_job import image_hash
from enginewright_contract.images import ImageFacts

from tests.apiserver.world import FACTS, MODEL, World, model
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.api_requests import MERGE_PATCH, RefusedError, requests_to
from tests.support.operator_process import CPU_IMAGE, chart_kubeconfig
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver

# of which a controller, which does not run here, makes the role
EDIT: Final = (
    *("system:aggregate-to-edit", "system:aggregate-to-view"),
    *("enginewright-edit", "enginewright-view"),
)
RBAC: Final = "rbac.authorization.k8s.io"
OURS: Final = "/apis/enginewright.dev/v1alpha1"
ANY: Final[dict[str, Any]] = {}
# what a tenant may not: shop is another namespace, evil its own, system the operator's
REFUSED: Final = (
    ("GET", OURS + "/inferencemodels"),
    ("GET", OURS + "/namespaces/{shop}/inferenceengines"),
    ("PATCH", OURS + "/namespaces/{shop}/inferencemodels/m"),
    ("DELETE", OURS + "/namespaces/{shop}/inferenceengines/m"),
    ("GET", "/api/v1/namespaces/{shop}/secrets"),
    ("GET", "/api/v1/namespaces/{shop}/pods/m:8081/proxy/metrics"),
    ("DELETE", "/api/v1/namespaces/{shop}/persistentvolumeclaims/enginewright-store"),
    ("POST", "/apis/batch/v1/namespaces/{shop}/jobs"),  # which would mount the store
    ("POST", "/apis/batch/v1/namespaces/{system}/jobs"),  # which would look like a probe
    ("PATCH", "/api/v1/namespaces/{system}/configmaps/enginewright-images"),
    ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/{system}/leases/enginewright"),
    ("POST", "/api/v1/namespaces/{system}/serviceaccounts/enginewright/token"),
    ("PATCH", OURS + "/namespaces/{evil}/inferencemodels/m/status"),
    ("PATCH", OURS + "/namespaces/{evil}/inferenceengines/m/status"),
    ("POST", "/apis/apps/v1/namespaces/{evil}/controllerrevisions"),
    ("PATCH", "/api/v1/namespaces/{evil}/pods/m/status"),
    ("PATCH", "/api/v1/namespaces/{evil}"),  # whose annotation limits its store
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/{evil}/rolebindings"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("POST", OURS + "/acceleratorclasses"),
    ("PATCH", OURS + "/acceleratorclasses/cpu/status"),
    ("PATCH", "/api/v1/nodes/node-1"),
)


@dataclass(frozen=True)
class Tenant:
    """Its namespace as its administrator sees it, and with its own rights."""

    admin: Namespace
    mine: Namespace

    def ask(self, method: str, path: str) -> None:
        """Send a request with the tenant's rights. Raises RefusedError."""
        body = None if method in ("GET", "DELETE") else ANY
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        requests_to(self.mine.kubeconfig).send(method, path, body, content_type=kind)


@pytest.fixture
def tenant(
    world: World, new_namespace: Callable[[], Namespace], tmp_path: Path
) -> Iterator[Tenant]:
    admin = new_namespace()
    played.add_account(admin)
    chart_kubeconfig(world.system, tmp_path)  # for the chart's roles
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}}
    admin.create(account)
    subjects = [{"kind": "ServiceAccount", "name": "tenant", "namespace": admin.name}]
    for role in EDIT:
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": subjects,
        }
        admin.create(binding)
    document = yaml.safe_load(admin.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": admin.token("tenant")}
    path = tmp_path / "tenant"
    path.write_text(yaml.safe_dump(document))
    mine = Namespace(admin.name, path)
    kinds = ("secrets", "jobs", "inferencemodels")
    eventually(lambda: [mine.items(kind) for kind in kinds], 20, "its rights", interval=0.05)
    eventually(lambda: mine.create(model("first"), dry_run=True), 20, "its rights", interval=0.05)
    yield Tenant(admin, mine)
    admin.delete_all("inferencemodels,jobs,pods,services,pdb,leases")


# fault: Security | a user with the role `edit` in a namespace reads, changes or deletes what is in another, forges a
#   status, a revision or the facts of images, takes the operator's Lease or token, or writes a class | the API server
#   refuses it | prevented
def test_what_edit_in_a_namespace_does_not_permit(world: World, tenant: Tenant) -> None:
    places = {"shop": world.user.name, "system": world.system.name, "evil": tenant.mine.name}
    permitted = []
    for method, path in REFUSED:
        try:
            tenant.ask(method, path.format(**places))
        except RefusedError as error:
            if "forbidden" in str(error):
                continue
        permitted.append((method, path))
    assert permitted == []


# fault: Security | objects in another namespace have the labels of a model's Jobs, pods and Deployments, or of the
#   probe of an image, and pods of them report | the operator counts what is in the model's namespace, or its own | prevented
def test_what_a_tenant_makes_in_its_namespace_changes_no_model_of_others(
    world: World, tenant: Tenant
) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_quiet()
        before, images = world.versions(), world.system.get("configmap", "enginewright-images")
        for kind in ("jobs", "deployments", "services", "pdb"):
            (theirs,) = world.user.items(kind, f"enginewright.dev/model={MODEL}")
            metadata = {key: theirs["metadata"][key] for key in ("name", "labels", "annotations")}
            owners = theirs["metadata"]["ownerReferences"]
            owners = [{**owner, "blockOwnerDeletion": False} for owner in owners]
            spec = theirs["spec"]
            if kind == "jobs":
                spec = {"template": _without_job(spec["template"])}
            if kind == "services":
                spec = {key: spec[key] for key in ("selector", "ports")}
            copy = {"apiVersion": theirs["apiVersion"], "kind": theirs["kind"], "spec": spec}
            tenant.mine.create({**copy, "metadata": {**metadata, "ownerReferences": owners}})
        _forge_probe(tenant)
        tenant.mine.create(model())
        tenant.mine.delete("deployment", f"{MODEL}-cpu")
        operator.wait_quiet()
        assert world.system.get("configmap", "enginewright-images")["data"] == images["data"]
        assert world.versions() == before
        assert tenant.mine.get("im", MODEL)["status"].get("prepared") is None


def _without_job(template: dict[str, Any]) -> dict[str, Any]:
    """Return a Job's template as it was before the API server added the Job's labels."""
    labels = template["metadata"]["labels"]
    own = {key: value for key, value in labels.items() if "controller-uid" not in key}
    own = {key: value for key, value in own.items() if "job-name" not in key}
    return {"metadata": {"labels": own}, "spec": template["spec"]}


def _forge_probe(tenant: Tenant) -> None:
    """Have a pod report another content of the image, with the labels of a probe."""
    labels = {
        "app.kubernetes.io/managed-by": "enginewright",
        "enginewright.dev/component": "probe",
        "enginewright.dev/image": image_hash(CPU_IMAGE),
    }
    facts = ImageFacts(
        variant="cpu",
        ort_distribution="onnxruntime",
        ort_version="0.0.1",
        max_opset=1,
        max_ir_version=1,
        providers=("CPUExecutionProvider",),
        onnx_version="1.0.0",
        runtime_version="0.1.0",
        **FACTS["cpu"],
    )
    template = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": CPU_IMAGE}]},
    }
    job = make_object("Job", "probe-forged", labels=labels, spec={"template": template})
    pod = played.start_pod(tenant.admin, tenant.mine.create(job))
    played.end_probe(tenant.admin, pod, facts.to_json())
    played.complete_job(tenant.admin, "probe-forged")


# fault: Security | a Lease in a tenant's namespace claims all namespaces, as that of another release | it claims nothing
#   where no ClusterRoleBinding of the chart names an account of its namespace | prevented
def test_a_lease_of_a_tenant_keeps_no_operator_from_acting(world: World, tenant: Tenant) -> None:
    lease = make_object("Lease", "enginewright", spec={"holderIdentity": "evil"})
    lease["metadata"]["labels"] = {
        "app.kubernetes.io/managed-by": "enginewright",
        "enginewright.dev/component": "claim",
    }
    lease["metadata"]["annotations"] = {SCOPE_ANNOTATION: "*"}
    lease["spec"]["leaseDurationSeconds"] = (1 << 31) - 1
    tenant.mine.create(lease)
    with world.operator(with_chart_rights=True) as operator:
        operator.wait_ready()
        assert "another release" not in operator.log
