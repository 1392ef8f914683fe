"""Names, owners and selectors: what must never change, never clash and never outlive its model."""

import copy
import re
from typing import Any, Final

from enginewright.manifests.names import child_name, deployment_name, prepare_job_name
from enginewright_contract.task import GRPC_PORT
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plan_objects import MODEL, NAMESPACE, accelerator_class
from tests.support.plan_world import World

LABELS: Final = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
CLASSES: Final = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
DASHED: Final = st.from_regex(r"[ab](-{0,3}[ab]){0,3}", fullmatch=True)
NAME: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def world() -> World:
    return World(replicas=2).settle().job_succeeds()


def children(made: World) -> list[dict[str, Any]]:
    return [obj for obj in made.children() if obj["kind"] != "Pod"]


@given(model=LABELS, accelerator=CLASSES, digest=st.from_regex("[0-9a-f]{64}", fullmatch=True))
def test_names_fit_where_kubernetes_puts_them(model: str, accelerator: str, digest: str) -> None:

    deployment = deployment_name(model, accelerator)
    pod = f"{deployment}-6d4b75cb6d-hwspb"
    assert len(pod) <= 63, "a pod's name is its host name"
    job = prepare_job_name(model, digest, 12)
    assert len(job) <= 63, "a Job's name is a label value of its pods"
    assert job.endswith(f"{digest[:10]}-12")
    for name in (deployment, job):
        assert re.fullmatch(NAME, name)


def test_a_name_that_was_cut_differs_from_others_that_were_cut() -> None:
    names = {deployment_name("m" * 40, "c" * 30 + end) for end in "ab"}
    assert len(names) == 2
    assert child_name("short", "name") == "short-name"


# event: Classes | ambiguous names (`a-b` on class `c`, `a` on class `b-c`) | both: the
#   Deployments are `a-b-c` and `a--b-c` | nothing
@given(model=DASHED, accelerator=DASHED, other=DASHED, other_class=DASHED)
def test_deployment_names_differ(
    model: str, accelerator: str, other: str, other_class: str
) -> None:
    pairs = {(model, accelerator), (other, other_class)}
    assert len({deployment_name(*pair) for pair in pairs}) == len(pairs)


def test_a_dash_in_a_name_joins_no_others() -> None:
    names = [
        deployment_name(*pair)
        for pair in (("a-b", "c"), ("a", "b-c"), ("a--b", "c"), ("a", "b--c"), ("a-", "b-c"))
    ]
    assert names[:2] == ["a-b-c", "a--b-c"]
    assert len(set(names)) == len(names)
    assert deployment_name("a--b", "c") != deployment_name("a", names[2].removeprefix("a--"))


def test_a_deployment_that_is_there_keeps_the_name_that_an_earlier_version_gave_it() -> None:
    made = world()
    for kind in ("Deployment", "PodDisruptionBudget"):
        obj = made.kube.objects.pop((kind, NAMESPACE, f"{MODEL}-cpu"))
        obj["metadata"]["name"] = "older"
        made.kube.put(obj)
    made.edit(replicas=3)
    assert made.the("Deployment")["metadata"]["name"] == "older"
    assert made.the("Deployment")["spec"]["replicas"] == 3
    assert made.the("PodDisruptionBudget")["metadata"]["name"] == "older"


def older_beside_newer() -> World:
    """Return what an operator that was put back and updated again has left: two names for one class."""
    made = World(accelerators=[{"class": "big-gpu"}], replicas=2)
    made.classes = [accelerator_class("big-gpu")]
    made.settle().job_succeeds().all_available()
    for kind in ("Deployment", "PodDisruptionBudget"):
        older = copy.deepcopy(made.get(kind, f"{MODEL}--big-gpu"))
        older["metadata"] |= {"name": f"{MODEL}-big-gpu", "uid": f"older-{kind}"}
        made.kube.put({**older, "status": {}})
    return made


def test_of_two_deployments_of_a_class_the_one_that_serves_stays() -> None:
    made = older_beside_newer().settle()
    assert made.the("Deployment")["metadata"]["name"] == f"{MODEL}--big-gpu"
    assert made.the("PodDisruptionBudget")["metadata"]["name"] == f"{MODEL}--big-gpu"


def test_a_class_has_one_budget_or_its_pods_are_never_evicted() -> None:
    made = older_beside_newer()
    made.remove("Deployment", f"{MODEL}-big-gpu")
    made.settle()
    assert made.the("PodDisruptionBudget")["metadata"]["name"] == f"{MODEL}--big-gpu"


def test_all_that_is_the_models_goes_with_it_and_the_store_stays() -> None:
    for obj in children(world()):
        owners = obj["metadata"].get("ownerReferences")
        if obj["kind"] == "PersistentVolumeClaim":
            assert owners is None
            continue
        (owner,) = owners
        assert owner["kind"] == "InferenceModel"
        assert (owner["name"], owner["uid"]) == (MODEL, "0b9e6b6e-model")
        assert owner["controller"] is True


def test_the_operator_finds_all_of_it_by_label() -> None:
    for obj in children(world()):
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "enginewright"
        assert obj["metadata"]["namespace"] == NAMESPACE
        if obj["kind"] != "PersistentVolumeClaim":
            assert labels["enginewright.dev/model"] == MODEL


def test_the_service_says_that_its_pods_speak_tls() -> None:
    made = World(serving={"tls": {"secretRef": {"name": "certificate"}}}).settle().job_succeeds()
    https, grpc = made.the("Service")["spec"]["ports"]
    assert (https["port"], https["name"], https["targetPort"]) == (443, "https", "http")
    assert https["appProtocol"] == grpc["appProtocol"] == "https"
    assert grpc["port"] == GRPC_PORT


def test_the_service_reaches_the_serving_pods_of_all_classes_and_no_others() -> None:
    made = world()
    service = made.the("Service")
    assert service["metadata"]["name"] == MODEL
    http, grpc = service["spec"]["ports"]
    assert (http["port"], http["targetPort"]) == (80, "http")
    assert (grpc["port"], grpc["targetPort"]) == (GRPC_PORT, GRPC_PORT)
    assert grpc["appProtocol"] == "kubernetes.io/h2c", "as gateways find HTTP/2 without TLS"
    assert http["appProtocol"] == "http"
    selector = service["spec"]["selector"]
    serving = made.the("Deployment")["spec"]["template"]["metadata"]["labels"]
    preparing = made.the("Job")["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= serving.items()
    assert not selector.items() <= preparing.items()
    assert "enginewright.dev/class" not in selector
    assert "enginewright.dev/revision" not in selector


def test_a_selector_names_no_revision_so_that_it_never_changes() -> None:
    made = world()
    (deployment, budget) = (made.the("Deployment"), made.the("PodDisruptionBudget"))
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector == {
        "enginewright.dev/model": MODEL,
        "enginewright.dev/class": "cpu",
        "enginewright.dev/component": "serve",
    }
    assert budget["spec"]["selector"]["matchLabels"] == selector
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["enginewright.dev/revision"] == made.status["revision"]


def test_an_eviction_takes_one_pod_and_a_broken_pod_blocks_no_drain() -> None:
    spec = world().the("PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_claim_asks_for_the_clusters_default_unless_a_class_is_configured() -> None:
    claim = world().the("PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
    }
