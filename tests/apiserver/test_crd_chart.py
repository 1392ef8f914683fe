"""The chart on an API server: install, upgrade, uninstall, and the operator's permissions."""

import json
import shutil
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import REPOSITORY, CommandError, Namespace, eventually, run
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver

CHART = REPOSITORY / "charts/enginewright"
HOME = "enginewright-system"
OPERATOR = f"--as=system:serviceaccount:{HOME}:enginewright"
IMAGES = ["--set=images.operator=operator:1", "--set=images.runtime.cpu=cpu:1"]

ALLOWED = (
    *("watch inferencemodels", "patch inferencemodels/status", "patch acceleratorclasses/status"),
    *("create acceleratorclasses", "patch inferenceengines", "delete inferenceengines"),
    *("patch inferenceengines/status", "delete jobs.batch", "patch deployments.apps"),
    *("create controllerrevisions.apps", "create poddisruptionbudgets.policy"),
    *("delete horizontalpodautoscalers.autoscaling", "patch services", "list nodes", "watch pods"),
    *("patch events", "list events", "list leases.coordination.k8s.io"),
)
FORBIDDEN = (
    *("patch inferencemodels", "delete acceleratorclasses", "create pods", "create pods/exec"),
    *("delete persistentvolumeclaims", "update leases.coordination.k8s.io"),
    *("create leases.coordination.k8s.io", "get secrets", "get configmaps"),
    *("create clusterroles.rbac.authorization.k8s.io", "get nodes", "get pods"),
    *("get inferencemodels/status", "get acceleratorclasses/status"),
)

Helm = Callable[..., str]


@pytest.fixture(scope="module")
def helm(helm_kubeconfig: Path) -> Helm:
    """Runs helm for the operator's namespace."""

    def call(*arguments: str) -> str:
        program = str(helm_kubeconfig.parent / "bin/helm")
        command = [program, "--kubeconfig", str(helm_kubeconfig), "--namespace", HOME]
        return run([*command, *arguments])

    return call


@pytest.fixture(scope="module")
def home(helm_kubeconfig: Path, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """The operator's namespace, with an older chart installed whose schema lacks `spec.shapes`."""
    older = tmp_path_factory.mktemp("older") / "enginewright"
    shutil.copytree(CHART, older)
    path = older / "files/crds/enginewright.dev_inferencemodels.yaml"
    definition = yaml.safe_load(path.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["shapes"]
    path.write_text(yaml.safe_dump(definition))
    helm("install", "enginewright", str(older), "--create-namespace", *IMAGES)
    return Namespace(HOME, helm_kubeconfig)


def claim(name: str) -> dict[str, Any]:
    request = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteMany"], "resources": request}
    return make_object("PersistentVolumeClaim", name, spec=spec)


def config_map(name: str) -> dict[str, Any]:
    return make_object("ConfigMap", name, data={"a": "b"})


def can_i(right: str) -> tuple[str, ...]:
    """Return the command that asks for a right: `VERB KIND[/SUBRESOURCE]`."""
    verb, _, resource = right.partition(" ")
    kind, _, subresource = resource.partition("/")
    options = (f"--subresource={subresource}", OPERATOR, "--all-namespaces")
    return ("auth", "can-i", verb, kind, *options)


def apply_as_operator(home: Namespace, body: dict[str, Any]) -> str:
    return home.kubectl(
        "apply", "--server-side", "--validate=false", OPERATOR, "--filename", "-",
        stdin=json.dumps(body),
    )  # fmt: skip


def test_install_brings_the_definitions_and_the_cpu_class(home: Namespace) -> None:
    spec = home.get("acceleratorclass", "cpu")["spec"]
    assert spec["backends"] == ["cpu"]  # no image for another one was named
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    home.kubectl("get", "inferencemodels", "--all-namespaces")


def test_the_api_server_takes_the_operators_pod(home: Namespace) -> None:
    template = home.get("deployment", "enginewright")["spec"]["template"]
    home.kubectl("label", "namespace", HOME, "pod-security.kubernetes.io/enforce=restricted")
    pod = make_object(
        "Pod", "operator", labels=template["metadata"]["labels"], spec=template["spec"]
    )
    home.kubectl("create", "--dry-run=server", "--filename", "-", stdin=json.dumps(pod))


def test_the_api_server_takes_the_network_policies(home: Namespace, helm: Helm) -> None:
    policies = helm(
        *("template", "enginewright", str(CHART), *IMAGES, "--set=networkPolicies.enabled=true"),
        *("--set=networkPolicies.metadata=true", "--set=store.bucket.uri=s3://models/all"),
        "--show-only=templates/networkpolicies.yaml",
    )
    command = ("create", "--dry-run=server", "--validate=strict", "--filename", "-")
    created = home.kubectl(*command, stdin=policies)
    kinds = ("cache", "jobs", "operator", "pods")
    assert all(f"enginewright-{kind} created" in created for kind in kinds)


def test_the_operator_may_apply_only_its_own_claim_and_facts(home: Namespace) -> None:
    for body in (claim("enginewright-store"), config_map("enginewright-images")):
        assert "serverside-applied" in apply_as_operator(home, body)
    for body in (claim("data"), config_map("settings")):
        with pytest.raises(CommandError, match="forbidden"):
            apply_as_operator(home, body)


def test_the_operator_sees_its_claim_in_every_namespace_and_no_other(home: Namespace) -> None:
    command = ("get", "persistentvolumeclaims", "--all-namespaces", OPERATOR)
    home.kubectl(*command, "--field-selector", "metadata.name=enginewright-store")
    with pytest.raises(CommandError, match="forbidden"):
        home.kubectl(*command)


@pytest.mark.parametrize("right", ALLOWED)
def test_the_operator_may(home: Namespace, right: str) -> None:
    assert home.kubectl(*can_i(right)).strip() == "yes"


@pytest.mark.parametrize("right", FORBIDDEN)
def test_the_operator_may_not(home: Namespace, right: str) -> None:
    with pytest.raises(CommandError):
        home.kubectl(*can_i(right))


def test_upgrade_brings_the_new_schema_and_leaves_the_administrators_class(
    home: Namespace, helm: Helm
) -> None:
    with pytest.raises(CommandError, match="does not exist"):
        home.kubectl("explain", "inferencemodel.spec.shapes")
    backends = {"spec": {"backends": ["cpu"]}}
    home.kubectl("patch", "aclass", "cpu", "--type=merge", "--patch", json.dumps(backends))
    before = home.get("aclass", "cpu")["metadata"]["uid"]
    helm("upgrade", "enginewright", str(CHART), *IMAGES, "--set=apiPriority.create=true")
    after = home.get("aclass", "cpu")
    assert after["spec"]["backends"] == ["cpu"]
    assert after["metadata"]["uid"] == before
    eventually(lambda: home.kubectl("explain", "inferencemodel.spec.shapes.min"), 30)


@pytest.mark.parametrize(
    ("path", "flow", "level"),
    [
        ("/api/v1/nodes", "enginewright", "enginewright"),
        ("/apis/coordination.k8s.io/v1/leases", "enginewright-leases", "leader-election"),
    ],
)
def test_the_api_server_has_the_operators_requests_at_the_charts_levels(
    home: Namespace, path: str, flow: str, level: str
) -> None:
    uids = {
        home.get("flowschema", flow)["metadata"]["uid"],
        home.get("prioritylevelconfiguration", level)["metadata"]["uid"],
    }
    document = yaml.safe_load(home.kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    authorization = {"Authorization": f"Bearer {home.token('enginewright')}"}
    request = urllib.request.Request(f"{cluster['server']}{path}", headers=authorization)

    def is_taken() -> bool:
        with urllib.request.build_opener(*handlers).open(request, timeout=10) as response:
            levels = {value for name, value in response.headers.items() if "-pf-" in name.lower()}
        return levels == uids

    eventually(is_taken, 30, f"{path} at level {level}")


# event: Operator | the operator is uninstalled | all pods | the chart's notes
def test_uninstall_keeps_the_definitions_and_the_models(home: Namespace, helm: Helm) -> None:
    body = make_object(
        "InferenceModel", "kept", spec={"source": {"uri": "pvc://models/model.onnx"}}
    )
    home.apply(body)
    reported = helm("uninstall", "enginewright")
    assert "inferencemodels.enginewright.dev" in reported
    assert home.get("im", "kept")["spec"]["replicas"] == 1
    assert home.items("deployments") == []
    assert home.items("roles,rolebindings") == []
    helm("install", "enginewright", str(CHART), *IMAGES)  # takes over what was kept
    assert home.get("im", "kept")["spec"]["replicas"] == 1
