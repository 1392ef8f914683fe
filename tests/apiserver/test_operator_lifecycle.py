"""The operator's process against a real API server; the rest of a cluster is played by the tests.

Writes are counted by the operator's own request metrics and, independently, by resource versions.
"""

import itertools
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from enginewright.manifests.snapshot import Revision
from enginewright.plan.prepare.signature import describe_signature
from enginewright_contract.task import PREPARE_STAGES

from tests.apiserver.world import (
    DIGEST,
    GOOD,
    MODEL,
    PUBLISHED,
    REFUSED,
    SIGNATURE,
    World,
    accelerator_class,
    model,
)
from tests.e2e.harness import eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import (
    CPU_IMAGE,
    INTERPRETED,
    STORE,
    OperatorProcess,
    chart_kubeconfig,
)
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver


def wait_stage(world: World, stage: str) -> None:
    """Wait until the status reports this stage as running."""

    def runs() -> bool:
        preparation = world.user.get("im", MODEL)["status"].get("preparation", {})
        return bool(preparation.get("stage") == stage)

    eventually(runs, 20, f"stage {stage}", interval=0.1)


def server_of(world: World) -> dict[str, Any]:
    """Return the server's container of the model's Deployment."""
    template = world.user.get("deployment", f"{MODEL}-cpu")["spec"]["template"]
    (server,) = template["spec"]["containers"]
    return dict(server)


def replicas_of(world: World) -> int:
    return int(world.user.get("deployment", f"{MODEL}-cpu")["spec"]["replicas"])


def test_from_a_manifest_to_a_model_that_serves(world: World) -> None:
    with world.operator(program=INTERPRETED) as operator:
        operator.wait_ready()
        world.user.apply(model())
        world.user.wait_condition(MODEL, "Ready", "False", "ProbingImage", 20)
        world.probe_images()

        job = world.job("prepare")
        assert world.user.get("pvc", STORE)["spec"]["accessModes"] == ["ReadWriteMany"]
        pod = played.start_pod(world.user, job)
        for ended, stage in enumerate(PREPARE_STAGES):
            finished = dict(itertools.islice(GOOD.items(), ended))
            played.run_stages(world.user, pod, finished, running=stage)
            wait_stage(world, stage)
        played.run_stages(world.user, pod, GOOD)
        played.complete_job(world.user, job["metadata"]["name"])
        world.serve()

        status = world.user.get("im", MODEL)["status"]
        assert status["prepared"]["modelDigest"] == DIGEST
        assert status["serving"]["preparedKey"] == PUBLISHED["key"]
        assert status["prepared"]["signature"] == describe_signature(SIGNATURE).manifest()
        (revision,) = world.user.items("controllerrevisions", f"enginewright.dev/model={MODEL}")
        assert Revision.read(revision).signature == describe_signature(SIGNATURE)
        assert status["observedGeneration"] == 1
        for kind in ("services", "pdb", "controllerrevisions", "deployments", "jobs"):
            (owned,) = world.user.items(kind, f"enginewright.dev/model={MODEL}")
            assert owned["metadata"]["ownerReferences"][0]["name"] == MODEL
        assert "Normal" in world.wait_event("Serving")


def test_an_unchanged_model_costs_nothing_even_after_a_restart(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_quiet()
        writes, reads, passes = operator.writes(), operator.reads(), operator.passes()
        versions = world.versions()

        world.user.apply(model())  # the same manifest
        world.user.kubectl("annotate", "im", MODEL, "example.com/note=1")  # another event
        operator.wait_passes(passes + 1)
        assert (operator.writes(), operator.reads()) == (writes, reads)
        assert operator.terminate()[0] == 0
    versions |= {
        key: version for key, version in world.versions().items() if "/InferenceModel/" in key
    }
    with world.operator() as operator:
        operator.wait_ready().wait_passes(1)
        assert operator.writes() == 0
        assert world.versions() == versions


def test_a_refused_model_says_why_and_its_correction_goes_through(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.user.apply(model())
        world.probe_images()
        world.prepare(REFUSED)
        refused = world.user.wait_condition(MODEL, "Ready", "False", "OpsetUnsupported", 20)
        assert "export with opset 26" in refused["message"]
        assert world.user.condition(MODEL, "Stalled")["status"] == "True"
        assert "Warning" in world.wait_event("OpsetUnsupported")
        operator.wait_quiet()
        assert len(world.jobs("prepare")) == 1  # what cannot succeed is not repeated

        world.user.apply(model(uri="https://example.com/corrected.onnx"))
        world.prepare(count=2)
        world.serve()


def test_a_refused_update_leaves_what_serves(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        before = world.user.get("deployment", f"{MODEL}-cpu")
        world.user.apply(model(uri="https://example.com/worse.onnx"))
        world.prepare(REFUSED, count=2)
        world.user.wait_condition(MODEL, "Ready", "False", "OpsetUnsupported", 20)
        assert world.user.condition(MODEL, "Available")["status"] == "True"
        after = world.user.get("deployment", f"{MODEL}-cpu")
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        world.user.kubectl("scale", f"im/{MODEL}", "--replicas=2")
        eventually(lambda: replicas_of(world) == 2, 20, "scaling of what serves", interval=0.1)


# event: Operator | the operator is killed, at any point | all pods | nothing
def test_the_operator_may_be_killed_at_any_point(world: World) -> None:
    job: dict[str, Any] = {}
    pod = ""

    def start_preparing() -> None:
        nonlocal job, pod
        job = world.job("prepare")
        pod = played.start_pod(world.user, job)
        played.run_stages(world.user, pod, {"fetch": {"ok": True}}, running="validate")

    def end_preparing() -> None:
        played.run_stages(world.user, pod, GOOD)
        played.complete_job(world.user, job["metadata"]["name"])
        eventually(lambda: world.user.get("deployment", f"{MODEL}-cpu"), 20, interval=0.1)

    world.user.apply(model())
    world.kill_after_each(
        [
            lambda: world.job("probe"),
            world.probe_images,
            start_preparing,
            end_preparing,
            world.serve,
            lambda: None,
        ]
    )
    world.user.wait_condition(MODEL, "Ready", "True", "Serving", 20)
    assert len(world.jobs("prepare")) == 1
    assert len(world.jobs("probe")) == 1


# event: Operator | a user edits an object of the operator | what the model specifies; the edit
#   is undone | Warning Event `EditUndone` with the edit and its author
def test_an_edit_is_reverted_and_additions_stay(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        world.user.kubectl("label", "deployment", f"{MODEL}-cpu", "example.com/theirs=yes")
        world.user.kubectl("set", "image", f"deployment/{MODEL}-cpu", "server=example.com/evil:1")
        eventually(lambda: server_of(world)["image"] == CPU_IMAGE, 20, interval=0.1)
        labels = world.user.get("deployment", f"{MODEL}-cpu")["metadata"]["labels"]
        assert labels["example.com/theirs"] == "yes"
        world.user.kubectl("scale", "deployment", f"{MODEL}-cpu", "--replicas=7")
        text = f"reverted kubectl's change of spec.replicas in Deployment {MODEL}-cpu"

        def is_reported() -> bool:
            return any(entry["message"].startswith(text) for entry in world.user.items("events"))

        eventually(is_reported, 20, interval=0.1)
        assert replicas_of(world) == 1


def test_a_deleted_model_is_let_go_and_its_name_can_be_used_again(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_quiet()
        writes = operator.writes()
        world.user.delete("im", MODEL)
        operator.wait_quiet()
        assert operator.writes() == writes  # garbage collection is Kubernetes', not ours

        # nothing collects here: the new model must wait for the old one's objects, not adopt them
        world.user.apply(model())
        world.user.wait_condition(MODEL, "Ready", "False", "Preparing", 20)
        old_uid = world.job("prepare")["metadata"]["uid"]
        owner = world.user.get("im", MODEL)["metadata"]["uid"]
        operator.wait_quiet()
        assert world.job("prepare")["metadata"]["uid"] == old_uid
        selector = f"enginewright.dev/model={MODEL}"
        kinds = "jobs,deployments,services,controllerrevisions,pdb"
        world.user.kubectl("delete", kinds, "--selector", selector)

        def has_new_job() -> bool:
            jobs = world.jobs("prepare")
            return [job["metadata"]["ownerReferences"][0]["uid"] for job in jobs] == [owner]

        eventually(has_new_job, 20, interval=0.1)


# event: Operator | the namespace is being deleted | what is there, until Kubernetes deletes it |
#   nothing
def test_a_namespace_that_is_being_deleted_is_left_alone(world: World) -> None:
    """Nothing can be created in it, and a controller that keeps trying costs thousands of requests."""
    with world.operator() as operator:
        world.bring_up(operator)
        world.user.kubectl("delete", "namespace", world.user.name, "--wait=false")
        operator.wait_quiet()
        before = operator.writes()
        # what the namespace's controller does, which does not run here
        world.user.delete_all("deployment,service,pdb")
        eventually(lambda: "skipped: " in operator.log, 20, "the operator to see it")
        operator.wait_quiet()
        assert operator.writes() - before <= 6
        assert " level=error" not in operator.log


def test_an_object_of_another_owner_is_not_adopted(world: World) -> None:
    ports = [{"port": 5432}]
    theirs = make_object("Service", MODEL, spec={"selector": {"app": "database"}, "ports": ports})
    world.user.apply(theirs)
    with world.operator() as operator:
        operator.wait_ready()
        world.user.apply(model())
        world.probe_images()
        world.prepare()
        text = f"Service {MODEL} exists and is not managed"
        assert text in world.wait_event("ApplyFailed")
        refused = world.user.wait_condition(MODEL, "Ready", "False", "ApplyFailed", 20)
        assert text in refused["message"]
        assert world.user.get("service", MODEL)["spec"]["selector"] == {"app": "database"}
        world.user.delete("service", MODEL)
        world.serve()


def test_classes_count_nodes_and_name_each_other(world: World) -> None:
    def wait_ready(name: str, status: str, reason: str) -> None:
        def is_so() -> bool:
            conditions = world.user.get("aclass", name).get("status", {}).get("conditions", [])
            return [(condition["status"], condition["reason"]) for condition in conditions] == [
                (status, reason)
            ]

        eventually(is_so, 20, f"{name} {reason}", interval=0.1)

    def passes() -> float:
        return operator.total("controller_runtime_reconcile_total", controller="acceleratorclass")

    with world.operator() as operator:
        operator.wait_ready()
        wait_ready("cpu", "True", "NodesFound")
        world.user.apply(accelerator_class("l4", gpu="l4"))
        wait_ready("l4", "False", "NoMatchingNode")
        world.user.kubectl("label", "node", "node-1", "gpu=l4")
        for name in ("cpu", "l4"):
            wait_ready(name, "False", "OverlappingClass")
        operator.wait_quiet()
        writes, before = operator.writes(), passes()
        world.user.kubectl("annotate", "node", "node-1", "example.com/heartbeat=1")
        world.user.kubectl("label", "node", "node-1", "example.com/zone=a")
        eventually(lambda: passes() >= before + 2, 20, interval=0.1)
        assert operator.writes() == writes


def test_it_ends_at_once_and_in_order_also_under_an_open_scrape(world: World) -> None:
    with world.operator(program=INTERPRETED) as operator:
        operator.wait_ready()
        request = urllib.request.Request(f"http://127.0.0.1:{operator.port}/metrics")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=5):  # not read to its end
            code, seconds = operator.terminate()
        assert code == 0
        assert seconds < 5  # what kopf would wait for the scrape
        assert "msg=stopped" in operator.log
        assert "level=error" not in operator.log


@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "watchNamespaces"])
def test_the_charts_rights_are_enough(world: World, *, everywhere: bool) -> None:
    values = [] if everywhere else [f"watchNamespaces={{{world.user.name}}}"]
    limited = chart_kubeconfig(world.system, world.folder, *values)
    settings = {} if everywhere else {"watchNamespaces": [world.user.name]}
    with OperatorProcess(limited, world.system.name, world.folder, settings=settings) as operator:
        world.bring_up(operator)
        world.user.apply(model(uri="https://example.com/second.onnx"))
        world.job("prepare", 2)
        world.user.apply(model(uri="https://example.com/third.onnx"))
        world.job("prepare", 2)  # the third Job; the second, which still ran, is deleted
        world.wait_event("Serving")
        operator.wait_quiet()
        assert operator.total("rest_client_requests_total", method="DELETE") == 1
        for client in ("rest_client", "enginewright_lease"):
            assert operator.total(f"{client}_requests_total", code="403") == 0
        assert "level=error" not in operator.log
        assert "orbidden" not in operator.log  # nor of kopf's watches


def test_missing_definitions_are_waited_for(bare_kubeconfig: Path, tmp_path: Path) -> None:
    with OperatorProcess(bare_kubeconfig, "default", tmp_path) as operator:
        eventually(lambda: "install Enginewright's CRDs" in operator.log, 20, interval=0.1)
        assert operator.get("/healthz")[0] == 200
        assert operator.get("/readyz")[0] == 503
        code, seconds = operator.terminate()
        assert (code, seconds < 5) == (0, True)


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("ENGINEWRIGHT_CONFIG", '{"images":{}}', "ENGINEWRIGHT_CONFIG cannot be used"),
        ("POD_NAMESPACE", "", "POD_NAMESPACE is not set"),
        ("KUBECONFIG", "/nowhere/config", "kubeconfig /nowhere/config does not exist"),
    ],
)
def test_bad_settings_are_one_sentence(
    kubeconfig: Path, tmp_path: Path, name: str, value: str, reported: str
) -> None:
    operator = OperatorProcess(kubeconfig, "default", tmp_path, program=INTERPRETED)
    operator.environment[name] = value
    with operator:
        assert operator.wait_exit() == 78
    assert reported in operator.log
    assert "Traceback" not in operator.log
    assert operator.log.count("\n") == 1
