"""`enginewright plan` and `preflight --image` on a real API server, as users who may only read.

That the reader's role has no writing verb is what proves that nothing is written.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright_cli.preflight.targets import AHEAD_OF_TIME

from tests.apiserver.test_operator_lifecycle import GOOD, World, model
from tests.e2e.harness import Namespace, eventually
from tests.support import broken_models as broken
from tests.support.operator_process import CPU_IMAGE
from tests.support.plan_objects import made
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


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[World]:
    """Return a cluster with one class and one node, where the operator is not running."""
    world = World(new_namespace(), new_namespace(), tmp_path)
    world.furnish()
    yield world
    world.user.delete_all("inferencemodels")
    world.system.delete_all("configmaps,deployments")


def reader(world: World, name: str, rules: list[dict[str, Any]]) -> Path:
    """Return a kubeconfig of somebody who may get and list, and nothing else."""
    verbs = [{**each, "verbs": ["get", "list"]} for each in rules]
    who = f"{world.user.name}-{name}"
    for obj in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": who},
            "rules": verbs,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": who},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": who,
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": world.user.name}],
        },
    ):
        world.user.put(obj)
    if rules:  # the API server learns of roles by a watch of its own
        account = f"system:serviceaccount:{world.user.name}:{name}"
        asked = ("auth", "can-i", "list", _a_resource(rules), "--all-namespaces", "--as", account)
        eventually(lambda: world.user.kubectl(*asked), 30, f"the rights of {name}")
    config = yaml.safe_load(world.user.kubeconfig.read_text())
    token = world.user.token(name)
    config["users"] = [{"name": name, "user": {"token": token}}]
    config["contexts"] = [
        {
            "name": name,
            "context": {
                "cluster": config["clusters"][0]["name"],
                "user": name,
                "namespace": world.user.name,
            },
        }
    ]
    config["current-context"] = name
    path = world.folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _a_resource(rules: list[dict[str, Any]]) -> str:
    (group, *_), (resource, *_) = rules[0]["apiGroups"], rules[0]["resources"]
    return f"{resource}.{group}" if group else str(resource)


def installed(world: World, operator_environment: dict[str, str]) -> None:
    """Have the operator's Deployment there, as the chart makes it; its process runs elsewhere."""
    labels = {
        "app.kubernetes.io/name": "enginewright",
        "app.kubernetes.io/component": "operator",
    }
    config = operator_environment["ENGINEWRIGHT_CONFIG"]
    container = {
        "name": "operator",
        "image": "example.com/operator:1",
        "env": [{"name": "ENGINEWRIGHT_CONFIG", "value": config}],
    }
    world.system.apply(
        made(
            "Deployment",
            "enginewright",
            labels=labels,
            spec={
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        )
    )


def plan(
    world: World, kubeconfig: Path, body: dict[str, Any], *arguments: str
) -> tuple[int, dict[str, Any]]:
    """Run it, and read its JSON."""
    done = subprocess.run(
        [*COMMAND, "plan", "-f", "-", "--json", *arguments],
        input=json.dumps(body),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=world.folder,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def actions(reported: dict[str, Any]) -> list[str]:
    return [f"{each['action']} {each['kind']}" for each in reported["models"][0]["steps"]]


def test_what_is_foreseen_is_what_the_operator_does(world: World) -> None:
    kubeconfig = reader(world, "reader", EVERYTHING)
    operator = world.operator()
    installed(world, operator.environment)
    code, unasked = plan(world, kubeconfig, model())
    assert (code, unasked["models"][0]["verdict"]) == (0, "waits")
    assert unasked["models"][0]["refusals"][0]["reason"] == "ProbingImage"

    with operator:
        operator.wait_ready()
        world.know_image()
        code, new = plan(world, kubeconfig, model())
        assert (code, new["assumed"]) == (0, [])
        assert actions(new) == ["make PersistentVolumeClaim", "make Job", "make Deployment"]
        (found,) = new["models"]
        assert (found["namespace"], found["exists"]) == (world.user.name, False)
        assert (found["backend"], found["image"]) == ("cpu", CPU_IMAGE)
        assert found["classes"][0]["trouble"] == ""

        world.user.apply(model())
        job = world.prepare(GOOD)
        assert job["metadata"]["name"] == found["steps"][1]["name"]
        world.serve()
        operator.wait_quiet()
        code, same = plan(world, kubeconfig, model())
        assert (code, same["models"][0]["verdict"]) == (0, "unchanged")

        changed = model()
        changed["spec"] |= {"targetOpset": 18, "replicas": 2}
        code, other = plan(world, kubeconfig, changed, "--save-facts", "facts.yaml")
        assert actions(other) == ["make Job", "change Deployment", "make Deployment"]
        (forecast_of,) = other["models"]
        assert {each["field"] for each in forecast_of["spec"]} == {
            "spec.targetOpset",
            "spec.replicas",
        }
        assert forecast_of["serving"] == same["models"][0]["revision"]
        versions = world.versions()

        world.user.apply(changed)
        again = world.job("prepare", 2)
        assert again["metadata"]["name"] == forecast_of["steps"][0]["name"]
    assert versions

    # the cluster as it was, without it
    code, later = plan(world, Path("/nonexistent"), changed, "--facts", "facts.yaml", "-n", "none")
    assert later["models"][0]["verdict"] == "changes"  # in no namespace that the file knows
    changed["metadata"]["namespace"] = world.user.name
    code, later = plan(world, Path("/nonexistent"), changed, "--facts", "facts.yaml")
    assert (code, later["models"]) == (0, other["models"])


def test_planning_writes_nothing(world: World) -> None:
    operator = world.operator()
    installed(world, operator.environment)
    before = world.versions()
    plan(world, world.user.kubeconfig, model(), "-n", world.user.name)  # who could write
    assert world.versions() == before


def test_with_few_permissions_the_assumptions_are_printed(world: World) -> None:
    little = [{"apiGroups": ["enginewright.dev"], "resources": OURS}]
    code, reported = plan(world, reader(world, "little", little), model())
    wording = "; ".join(reported["assumed"])
    for each in ("nodes", "runtime images", "Deployments of all namespaces"):
        assert f"you may not read {each}" in wording
    assert "the operator's settings are not known" in wording
    assert (code, reported["models"][0]["refusals"][0]["reason"]) == (0, "ProbingImage")


def unusable(kubeconfig: Path) -> str:
    """Plan a model on a cluster that cannot be used; return what is said."""
    done = subprocess.run(
        [*COMMAND, "plan", "-f", "-"],
        input=json.dumps(model()),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_without_permissions_the_reason_is_printed(world: World) -> None:
    kubeconfig = reader(world, "nobody", [])
    wording = unusable(kubeconfig)
    assert "the cluster denies access: acceleratorclasses" in wording
    assert "to plan without a cluster, give --offline" in wording


def test_a_server_that_knows_nothing_of_ours(bare_kubeconfig: Path, tmp_path: Path) -> None:
    wording = unusable(bare_kubeconfig)
    assert "Enginewright is not installed in the cluster" in wording


def test_preflight_takes_what_an_image_of_the_cluster_holds(world: World, tmp_path: Path) -> None:
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
    entries = {f"example.com/cpu@{digest}": facts, "example.com/cpu:2": facts}
    world.system.apply(
        made(
            "ConfigMap",
            "enginewright-images",
            labels={"app.kubernetes.io/managed-by": "enginewright"},
            data={
                f"k{number}": json.dumps({"image": image, "facts": held})
                for number, (image, held) in enumerate(entries.items())
            },
        )
    )
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
    assert engine.returncode == 2
    assert f"needs backend {AHEAD_OF_TIME}, but image" in " ".join(engine.stderr.split())
    nowhere = {"KUBECONFIG": "/nonexistent"}
    alone = desk.run(newer, "--target", "cpu", "--image", digest, environment=nowhere)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "kubeconfig /nonexistent does not exist" in alone.stderr
    assert "without a cluster, use --runtime-version" in alone.stderr
