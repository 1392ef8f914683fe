"""Two replicas of the operator, installed by the chart: failover, users' permissions, uninstallation."""

import time
from collections.abc import Iterator

import pytest

from tests.e2e import harness
from tests.e2e.harness import CLUSTER_NAME, REPOSITORY, Namespace, eventually, inference_model, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FAIL_OVER = 15.0  # seconds
NAME = "replicas"


def _leader(installed: Namespace) -> str:
    """Return the name of the leading pod; empty if there is none."""
    holder = installed.get("lease", "enginewright")["spec"]["holderIdentity"]
    return str(holder.rpartition("_")[0])


@pytest.fixture(scope="module")
def two(installed: Namespace) -> Iterator[Namespace]:
    """The operator's namespace, with two replicas."""
    harness.upgrade("replicas=2")
    yield installed
    harness.upgrade("replicas=1")


def test_another_replica_acts_within_15_seconds_of_the_leaders_end(
    two: Namespace, namespace: Namespace
) -> None:
    pods = {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in two.items("pods", "app.kubernetes.io/component=operator")
        if not pod["metadata"].get("deletionTimestamp")
    }
    assert len(set(pods.values())) == 2  # a node each
    assert two.get("pdb", "enginewright")["status"]["disruptionsAllowed"] == 1
    namespace.apply(inference_model(NAME, "magika.onnx"))
    namespace.wait_ready(NAME)
    leader = eventually(
        lambda: name if (name := _leader(two)) in pods else "", 30, "a leader among the new pods"
    )

    started = time.monotonic()
    at_once = ("--grace-period=0", "--force", "--wait=false")
    two.kubectl("delete", "pod", leader, *at_once)
    model = namespace.patch("im", NAME, {"spec": {"replicas": 2}})
    generation = model["metadata"]["generation"]
    namespace.watch(
        "im",
        NAME,
        lambda model: model["status"].get("observedGeneration") == generation,
        FAIL_OVER - (time.monotonic() - started),
        "the other replica's work",
    )
    assert _leader(two) in pods.keys() - {leader}
    namespace.kubectl("delete", "im", NAME)


def test_editors_of_a_namespace_may_serve_models_there(
    two: Namespace, namespace: Namespace
) -> None:
    for role in ("view", "edit"):
        namespace.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}")

    def may(user: str, verb: str, *kind: str) -> bool:
        """Run `kubectl auth can-i`, which fails if the answer is no."""
        try:
            namespace.kubectl("auth", "can-i", verb, *kind, f"--as={user}")
        except harness.CommandError:
            return False
        return True

    models, classes = "inferencemodels.enginewright.dev", "acceleratorclasses.enginewright.dev"
    eventually(lambda: may("edit", "create", models), 30, "the aggregation of roles")
    assert may("view", "list", models)
    assert not may("view", "create", models)
    assert not may("edit", "patch", models, "--subresource=status")
    assert not may("edit", "create", classes)
    namespace.kubectl("delete", "rolebinding", "view", "edit")
    assert two.name


def test_helm_test_gets_an_answer_and_leaves_nothing(two: Namespace) -> None:
    command = ("helm", "test", "enginewright", "--namespace", two.name, "--timeout", "5m")
    assert "which is right" in harness.cluster(*command, "--logs")
    kinds = "pods,serviceaccounts,roles,rolebindings"
    assert (
        two.items(kinds, "app.kubernetes.io/component=test") == two.items("inferencemodels") == []
    )


def test_uninstalling_removes_our_objects_and_keeps_serving(
    two: Namespace, namespace: Namespace
) -> None:
    ours = "app.kubernetes.io/managed-by=enginewright"
    kinds = "jobs,configmaps,leases"
    namespace.apply(inference_model(NAME, "magika.onnx"))
    namespace.wait_ready(NAME)
    assert two.items(kinds, ours)
    harness.cluster("helm", "uninstall", "enginewright", "--namespace", two.name)
    try:
        eventually(lambda: not two.items(kinds, ours), 60, "the end of what the operator made")
        assert namespace.get("deployment", f"{NAME}-cpu")["status"]["availableReplicas"] == 1
    finally:
        run([str(REPOSITORY / "hack/install"), CLUSTER_NAME], timeout=600)
    namespace.wait_ready(NAME)
    namespace.kubectl("delete", "im", NAME)
