"""`enginewright plan` without a cluster: its predictions come true in the world that plans are tested in."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright_cli.plan.cluster_state import ClusterState
from enginewright_cli.plan.manifest import read
from enginewright_cli.reporting import CommandError

from tests.support.plan_objects import MODEL, l4, make_object
from tests.support.preflight_runs import COMMAND, Desk
from tests.unit.test_cli_plan import PINNED, SOURCE, around, manifest, serving


def write(desk: Desk, *bodies: dict[str, Any]) -> str:
    path = desk.root / "manifest.yaml"
    path.write_text(yaml.safe_dump_all(bodies))
    return path.name


def plan(desk: Desk, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return desk.run("plan", *arguments, command=COMMAND, **options)


NOWHERE = {"KUBECONFIG": "/nonexistent/config"}


def test_saved_facts_are_planned_on_again(desk: Desk) -> None:
    world = serving()
    (desk.root / "facts.yaml").write_text(around(world, exists=True).to_yaml())
    body = manifest({**world.spec, "replicas": 3})
    done = plan(desk, "-f", write(desk, body), "--facts", "facts.yaml", "--json")
    reported = json.loads(done.stdout)
    assert (done.returncode, list(reported)) == (0, ["schema", "models", "assumed", "ignored"])
    assert reported["models"][0]["verdict"] == "changes"
    assert reported["models"][0]["serving"] == world.status["serving"]["revision"]
    again = plan(desk, "-f", "manifest.yaml", "--facts", "facts.yaml", "--save-facts", "copy.yaml")
    assert again.returncode == 0
    assert "change  Deployment" in again.stdout
    assert "spec.replicas: 1 → 3" in again.stdout
    first = ClusterState.read(desk.root / "facts.yaml")
    assert ClusterState.read(desk.root / "copy.yaml") == first


def test_without_a_cluster_it_assumes_and_says_so(desk: Desk) -> None:
    body = manifest({"source": PINNED})
    for arguments in ((), ("--offline",)):
        done = plan(desk, "-f", write(desk, body), *arguments, environment=NOWHERE)
        assert done.returncode == 0
        assert "CHANGES  InferenceModel shop/resnet (new)" in done.stdout
        assert "assumed: no cluster: one class cpu" in done.stdout


def test_classes_of_the_manifest_take_the_place_of_the_assumed_one(desk: Desk) -> None:
    spec = l4().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    accelerator = make_object("AcceleratorClass", "l4", spec=spec)
    name = write(desk, manifest({"source": PINNED}), accelerator, make_object("Service", "s"))
    reported = json.loads(plan(desk, "-f", name, "--offline", "--json").stdout)
    (model,) = reported["models"]
    assert (model["backend"], model["verdict"]) == ("tensorrt-rtx", "changes")
    assert reported["ignored"] == ["Service"]


def test_a_spec_that_would_not_be_stored_is_refused_with_its_field(desk: Desk) -> None:
    body = manifest({"source": {"url": SOURCE["uri"]}, "precision": "FP8"})
    done = plan(desk, "-f", write(desk, body, manifest({"source": SOURCE}, "b")), "--offline")
    assert done.returncode == 1
    assert "REFUSED  InferenceModel shop/resnet" in done.stdout
    assert "InvalidSpec: spec.source.url: unknown field; did you mean uri?" in done.stdout
    assert "CHANGES  InferenceModel shop/b" in done.stdout


def test_a_namespace_that_yaml_takes_for_a_number_is_refused(desk: Desk) -> None:
    body = manifest({"source": SOURCE})
    body["metadata"]["namespace"] = 12
    done = plan(desk, "-f", write(desk, body), "--offline")
    assert done.returncode == 1, done.stderr
    assert "InvalidSpec: metadata.namespace: write lowercase letters" in done.stdout


def test_an_unquoted_date_is_a_string_as_for_kubectl(desk: Desk) -> None:
    body = manifest({"source": SOURCE, "podTemplate": {"labels": {"released": "DATE"}}})
    path = desk.root / "manifest.yaml"
    path.write_text(yaml.safe_dump(body).replace("DATE", "2026-01-02"))
    (model,) = read(str(path)).models
    assert model.problems == ()
    assert model.body["spec"]["podTemplate"]["labels"] == {"released": "2026-01-02"}


@pytest.mark.parametrize(
    ("text", "wording"),
    [
        ("a: [", "manifest.yaml is not valid YAML: while parsing"),
        ("- 1", "manifest.yaml: document 1 is not a Kubernetes object: it has no kind"),
        ("kind: Pod\nmetadata: {name: p}", "manifest.yaml contains no InferenceModel, but Pod"),
        ("", "manifest.yaml contains no InferenceModel"),
        ("kind: List\nitems: 5", "manifest.yaml: document 1: items of a List must be a list"),
        ("[" * 3000 + "]" * 3000, "manifest.yaml is nested too deeply"),
        ("kind: List\nitems: &i [{kind: List, items: *i}]", "manifest.yaml is nested too deeply"),
    ],
)
def test_a_manifest_that_is_none_is_reported(desk: Desk, text: str, wording: str) -> None:
    (desk.root / "manifest.yaml").write_text(text)
    with pytest.raises(CommandError, match=r"manifest\.yaml"):
        read(str(desk.root / "manifest.yaml"))
    done = plan(desk, "-f", "manifest.yaml", "--offline")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"enginewright plan: {wording}" in done.stderr


def test_other_ways_not_to_come_to_a_plan(desk: Desk) -> None:
    name = write(desk, manifest({"source": SOURCE}))
    for code, arguments, wording in (
        (64, ("-f", "gone.yaml", "--offline"), "gone.yaml: no such file or folder"),
        (64, ("-f", name, "--facts", "gone.yaml"), "gone.yaml: no such file or folder"),
        (2, ("-f", name, "--facts", name), "images: Field required"),
        (2, ("-f", name, "--offline", "--save-facts", "no/x.yaml"), "No such file or directory"),
    ):
        done = plan(desk, *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert wording in done.stderr


@pytest.mark.parametrize(
    "broken", [{"kind": "Node"}, {"metadata": {}}, {"metadata": {"name": 5}}, {"metadata": 1}]
)
def test_facts_with_an_object_that_has_no_name_are_refused(tmp_path: Path, broken: Any) -> None:
    state = yaml.safe_load(around(serving(), exists=True).to_yaml())
    state["objects"].append({"apiVersion": "v1", "kind": "Node", **broken})
    file = tmp_path / "facts.yaml"
    file.write_text(yaml.safe_dump(state))
    with pytest.raises(CommandError, match=r"objects: .*\[\d+\] has no metadata\.name"):
        ClusterState.read(file)


def test_a_cluster_that_does_not_answer_is_reported_with_the_way_around(desk: Desk) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (desk.root / "config").write_text(yaml.safe_dump(config))
    name = write(desk, manifest({"source": SOURCE}))
    done = plan(desk, "-f", name, environment={"KUBECONFIG": str(desk.root / "config")})
    assert (done.returncode, done.stdout) == (2, "")
    assert "the API server does not respond" in done.stderr
    assert "without a cluster, give --offline" in done.stderr


def test_a_manifest_from_standard_input(desk: Desk) -> None:
    text = json.dumps({"kind": "List", "items": [manifest({"source": SOURCE})]})
    process = desk.start(
        "plan", "-f", "-", "--offline", "--json", command=COMMAND, stdin=subprocess.PIPE
    )
    out, wording = process.communicate(text, timeout=60)
    assert (process.returncode, wording) == (0, "")
    assert json.loads(out)["models"][0]["name"] == MODEL
