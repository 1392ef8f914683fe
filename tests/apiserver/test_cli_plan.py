"""`enginewright plan` and `preflight --image` on a real API server, as users who may only read.

That the reader's role has no writing verb is what proves that nothing is written.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright_cli.preflight.targets import AHEAD_OF_TIME

from tests.apiserver.world import World, model
from tests.e2e.harness import eventually
from tests.support import broken_models as broken
from tests.support.operator_process import CPU_IMAGE
from tests.support.plan_objects import make_object
from tests.support.preflight_runs import COMMAND, Desk

pytestmark = pytest.mark.apiserver

OURS = ["inferencemodels", "inferenceengines", "acceleratorclasses"]
EVERYTHING = [
    {"apiGroups": ["enginewright.dev"], "resources": OURS},
    {"apiGroups": ["batch"], "resources": ["jobs"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "controllerrevisions"]},
    {
        "apiGroups": [""],
        "resources": ["pods", "nodes", "configmaps", "persistentvolumeclaims"],
    },
]


@pytest.fixture(autouse=True)
def _remove_installation(world: World) -> Iterator[None]:
    yield
    world.system.delete_all("configmaps,deployments")


def reader(world: World, name: str, rules: list[dict[str, Any]]) -> Path:
    """Return a kubeconfig of a user who may only get and list."""
    verbs = [{**rule, "verbs": ["get", "list"]} for rule in rules]
    role = {"kind": "ClusterRole", "name": f"{world.user.name}-{name}"}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": role["name"]}}
    account = {"kind": "ServiceAccount", "name": name, "namespace": world.user.name}
    world.user.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    world.user.put({**rbac, "kind": "ClusterRole", "rules": verbs})
    binding = {"roleRef": {**role, "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [account]}
    world.user.put({**rbac, "kind": "ClusterRoleBinding", **binding})
    if rules:  # the API server learns of roles from a watch
        user = f"system:serviceaccount:{world.user.name}:{name}"
        can_list = ("auth", "can-i", "list", _a_resource(rules), "--all-namespaces", "--as", user)
        eventually(lambda: world.user.kubectl(*can_list), 30, f"the rights of {name}")
    config = yaml.safe_load(world.user.kubeconfig.read_text())
    token = world.user.token(name)
    config["users"] = [{"name": name, "user": {"token": token}}]
    cluster = config["clusters"][0]["name"]
    context = {"cluster": cluster, "user": name, "namespace": world.user.name}
    config |= {"contexts": [{"name": name, "context": context}], "current-context": name}
    path = world.folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _a_resource(rules: list[dict[str, Any]]) -> str:
    (group, *_), (resource, *_) = rules[0]["apiGroups"], rules[0]["resources"]
    return f"{resource}.{group}" if group else str(resource)


def install(world: World, environment: dict[str, str]) -> None:
    """Create the operator's Deployment as the chart does; its process runs elsewhere."""
    names = {"name": "enginewright", "component": "operator"}
    labels = {f"app.kubernetes.io/{key}": value for key, value in names.items()}
    config = {"name": "ENGINEWRIGHT_CONFIG", "value": environment["ENGINEWRIGHT_CONFIG"]}
    container = {"name": "operator", "image": "example.com/operator:1", "env": [config]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    world.system.apply(make_object("Deployment", "enginewright", labels=labels, spec=spec))


def run_plan(
    kubeconfig: Path, body: dict[str, Any], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "plan", "-f", "-", *arguments],
        input=json.dumps(body),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )


def plan(kubeconfig: Path, body: dict[str, Any], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the JSON."""
    done = run_plan(kubeconfig, body, "--json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def actions(reported: dict[str, Any]) -> list[str]:
    return [f"{item['action']} {item['kind']}" for item in reported["models"][0]["steps"]]


def test_the_operator_does_what_is_planned(world: World) -> None:
    kubeconfig = reader(world, "reader", EVERYTHING)
    facts = str(world.folder / "facts.yaml")
    operator = world.operator()
    install(world, operator.environment)
    code, before = plan(kubeconfig, model())
    assert (code, before["models"][0]["verdict"]) == (0, "waits")
    assert before["models"][0]["refusals"][0]["reason"] == "ProbingImage"

    with operator:
        operator.wait_ready()
        world.probe_images()
        code, new = plan(kubeconfig, model())
        assert (code, new["assumed"]) == (0, [])
        assert actions(new) == ["make PersistentVolumeClaim", "make Job", "make Deployment"]
        (forecast,) = new["models"]
        assert (forecast["namespace"], forecast["exists"]) == (world.user.name, False)
        assert (forecast["backend"], forecast["image"]) == ("cpu", CPU_IMAGE)
        assert forecast["classes"][0]["trouble"] == ""

        world.user.apply(model())
        job = world.prepare()
        assert job["metadata"]["name"] == forecast["steps"][1]["name"]
        world.serve()
        operator.wait_quiet()
        code, same = plan(kubeconfig, model())
        assert (code, same["models"][0]["verdict"]) == (0, "unchanged")

        changed = model()
        changed["spec"] |= {"targetOpset": 18, "replicas": 2}
        code, other = plan(kubeconfig, changed, "--save-facts", facts)
        assert actions(other) == ["make Job", "change Deployment", "make Deployment"]
        (forecast,) = other["models"]
        fields = {item["field"] for item in forecast["spec"]}
        assert fields == {"spec.targetOpset", "spec.replicas"}
        assert forecast["serving"] == same["models"][0]["revision"]

        world.user.apply(changed)
        again = world.job("prepare", 2)
        assert again["metadata"]["name"] == forecast["steps"][0]["name"]

    # the cluster as it was, without it
    code, later = plan(Path("/nonexistent"), changed, "--facts", facts, "-n", "none")
    assert later["models"][0]["verdict"] == "changes"  # in no namespace that the file knows
    changed["metadata"]["namespace"] = world.user.name
    code, later = plan(Path("/nonexistent"), changed, "--facts", facts)
    assert (code, later["models"]) == (0, other["models"])


def test_planning_writes_nothing(world: World) -> None:
    operator = world.operator()
    install(world, operator.environment)
    before = world.versions()
    plan(world.user.kubeconfig, model(), "-n", world.user.name)  # who could write
    assert world.versions() == before


def test_with_few_permissions_the_assumptions_are_printed(world: World) -> None:
    little = [{"apiGroups": ["enginewright.dev"], "resources": OURS}]
    code, reported = plan(reader(world, "little", little), model())
    wording = "; ".join(reported["assumed"])
    for item in ("nodes", "runtime images", "Deployments of all namespaces"):
        assert f"you may not read {item}" in wording
    assert "the operator's settings are not known" in wording
    assert (code, reported["models"][0]["refusals"][0]["reason"]) == (0, "ProbingImage")


def refuse(kubeconfig: Path) -> str:
    """Plan a model on a cluster that cannot be used; return the error message."""
    done = run_plan(kubeconfig, model())
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_without_permissions_the_reason_is_printed(world: World) -> None:
    kubeconfig = reader(world, "unprivileged", [])
    wording = refuse(kubeconfig)
    assert "the cluster denies access: acceleratorclasses" in wording
    assert "to plan without a cluster, give --offline" in wording


def test_a_cluster_without_the_crds_is_reported(bare_kubeconfig: Path, tmp_path: Path) -> None:
    wording = refuse(bare_kubeconfig)
    assert "Enginewright is not installed in the cluster" in wording


def test_preflight_uses_the_facts_of_an_image_of_the_cluster(world: World, tmp_path: Path) -> None:
    """An image with an older ONNX Runtime refuses what the installed one would take."""
    digest = "sha256:" + "5e" * 32
    facts = {
        "variant": "cpu",
        "ort_distribution": "onnxruntime",
        "ort_version": "1.17.3",
        "max_opset": 20,
        "max_ir_version": 9,
        "providers": ["CPUExecutionProvider"],
        "backends": {"cpu": "1.17.3"},
        "onnx_version": "1.15.0",
        "runtime_version": "0.1.0",
    }
    images = (f"example.com/cpu@{digest}", "example.com/cpu:2")
    entries = [{"image": image, "facts": facts} for image in images]
    data = {f"k{number}": json.dumps(entry) for number, entry in enumerate(entries)}
    labels = {"app.kubernetes.io/managed-by": "enginewright"}
    world.system.apply(make_object("ConfigMap", "enginewright-images", labels=labels, data=data))
    rules = [{"apiGroups": [""], "resources": ["configmaps"]}]
    there = {"KUBECONFIG": str(reader(world, "images", rules))}
    desk = Desk(tmp_path)
    newer = desk.save(broken.relu(opset=21, ir_version=10))
    for image in (digest, digest[:20], "5e5e5e", "example.com/cpu:2"):
        code, reported = desk.run_json(
            newer, "--target", "cpu", "--image", image, environment=there
        )
        # what is too new is brought down to what the image loads
        assert code == 0
        assert reported["targets"]["cpu"]["changes"], image
    none = desk.run(newer, "--target", "cpu", "--image", "ffff", environment=there)
    assert none.returncode == 2
    assert "no images of the cluster match this reference or digest; known images:" in none.stderr
    engine = desk.run(newer, "--target", "sm89", "--image", digest, environment=there)
    assert engine.returncode == 64
    assert f"needs backend {AHEAD_OF_TIME}, but image" in " ".join(engine.stderr.split())
    nowhere = {"KUBECONFIG": "/nonexistent"}
    alone = desk.run(newer, "--target", "cpu", "--image", digest, environment=nowhere)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "kubeconfig /nonexistent does not exist" in alone.stderr
    assert "without a cluster, use --runtime-version" in alone.stderr
