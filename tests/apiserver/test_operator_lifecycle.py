"""The operator's process against a real API server; the rest of a cluster is played by the tests.

Writes are counted by the operator's own request metrics and, independently, by resource versions.
"""

import itertools
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from enginewright.manifests.snapshot import Revision
from enginewright.plan.prepare.signature import listed
from enginewright_contract.images import ImageFacts
from enginewright_contract.signature import PublishedSignature, TensorText
from enginewright_contract.task import PREPARE_STAGES

from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import (
    CPU_IMAGE,
    INTERPRETED,
    STORE,
    OperatorProcess,
    chart_kubeconfig,
)
from tests.support.plan_objects import made

pytestmark = pytest.mark.apiserver

MODEL = "m"
DIGEST = "ab" * 32
FACTS = ImageFacts(
    variant="cpu",
    ort_distribution="onnxruntime",
    ort_version="1.31.1",
    max_opset=26,
    max_ir_version=13,
    providers=("CPUExecutionProvider",),
    backends={"cpu": "1.31.1"},
    onnx_version="1.23.2",
    runtime_version="0.1.0",
)
SIGNATURE = PublishedSignature.of(
    [TensorText("x", "FP32", ("1..32", "3")), TensorText("flag", "BOOL", ())],
    [TensorText("y", "FP32", ("-1", "10"))],
)
PUBLISHED = {
    "key": "cd" * 32,
    "model_digest": DIGEST,
    "opset": 17,
    "ir_version": 8,
    "nodes": 174,
    "size_bytes": 1000,
    "signature": SIGNATURE.model_dump(mode="json"),
}
GOOD: dict[str, dict[str, Any]] = {
    "fetch": {"ok": True},
    "validate": {"ok": True},
    "convert": {"ok": True},
    "golden": {"ok": True},
    "quantize": {"ok": True},
    "publish": {"ok": True, "published": PUBLISHED},
}
REFUSED: dict[str, dict[str, Any]] = {
    "fetch": {"ok": True},
    "validate": {
        "ok": False,
        "reason": "OpsetUnsupported",
        "message": "the model has opset 28, the runtime image supports 26; export with opset 26",
    },
}


def model(name: str = MODEL, uri: str = "https://example.com/m.onnx") -> dict[str, Any]:
    return made("InferenceModel", name, spec={"source": {"uri": uri}})


def accelerator_class(name: str = "cpu", **selector: str) -> dict[str, Any]:
    return made(
        "AcceleratorClass",
        name,
        spec={"nodeSelector": selector or {"kubernetes.io/os": "linux"}, "backends": ["cpu"]},
    )


@dataclass
class World:
    """One cluster: the operator's namespace, a user's, and the operator's processes."""

    system: Namespace
    user: Namespace
    folder: Path

    def furnish(self) -> None:
        """Set up one class and one node, and remove everything of earlier tests."""
        self.user.delete_all("acceleratorclasses,nodes")
        # `plan` reads what any operator of the cluster has asked images
        images = "metadata.name=enginewright-images"
        self.user.delete_all("configmaps", fields=images, everywhere=True)
        # of operators that were killed
        claims = "enginewright.dev/component=claim"
        self.user.delete_all("leases", claims, everywhere=True)
        for namespace in (self.system, self.user):
            played.add_account(namespace)
        played.add_node(self.user, "node-1")
        self.user.create(accelerator_class())

    def operator(self, *, program: Sequence[str] = (), **settings: object) -> OperatorProcess:
        return OperatorProcess(
            self.user.kubeconfig,
            self.system.name,
            self.folder,
            settings=settings,
            program=program,
        )

    def jobs(self, component: str) -> list[dict[str, Any]]:
        namespace = self.system if component == "probe" else self.user
        return namespace.items("jobs", f"enginewright.dev/component={component}")

    def job(self, component: str, count: int = 1) -> dict[str, Any]:
        """The newest Job of a kind, once there are `count`."""

        def found() -> dict[str, Any] | None:
            jobs = self.jobs(component)
            return max(jobs, key=_made) if len(jobs) >= count else None

        job = eventually(found, 20, f"{count} {component} Jobs", interval=0.1)
        assert job is not None
        return job

    def know_image(self) -> None:
        """Wait for the operator's image probe, and answer it."""
        job = self.job("probe")
        pod = played.start_pod(self.system, job)
        played.end_probe(self.system, pod, FACTS.to_json())
        played.complete_job(self.system, job["metadata"]["name"])
        eventually(lambda: self.system.get("configmap", "enginewright-images"), 20, interval=0.1)

    def prepare(self, stages: dict[str, dict[str, Any]], count: int = 1) -> dict[str, Any]:
        """Simulate the prepare Job to completion."""
        job = self.job("prepare", count)
        pod = played.start_pod(self.user, job)
        played.run_stages(self.user, pod, stages)
        ended_well = all(termination_message["ok"] for termination_message in stages.values())
        end = played.complete_job if ended_well else played.fail_job
        end(self.user, job["metadata"]["name"])
        return job

    def serve(self, name: str = MODEL) -> None:
        """Simulate a model's Deployment until it is available, and wait for Ready."""
        deployment = f"{name}-cpu"
        eventually(lambda: self.user.get("deployment", deployment), 20, interval=0.1)
        played.roll_out(self.user, deployment)
        self.user.wait_condition(name, "Ready", "True", "Serving", 20)

    def wait_stage(self, stage: str) -> None:
        """Wait until the status reports this stage as running."""

        def runs() -> bool:
            preparation = self.user.get("im", MODEL)["status"].get("preparation", {})
            return bool(preparation.get("stage") == stage)

        eventually(runs, 20, f"stage {stage}", interval=0.1)

    def reported(self, reason: str) -> str:
        """What `kubectl describe` shows of Events, once there is one for this reason."""

        def recorded() -> bool:
            concerning = f"involvedObject.uid={self.user.get('im', MODEL)['metadata']['uid']}"
            return reason in (
                each["reason"] for each in self.user.items("events", fields=concerning)
            )

        eventually(recorded, 20, f"an Event {reason}", interval=0.1)
        text = self.user.kubectl("describe", "im", MODEL).split("Events:")[1]
        assert reason in text
        return text

    def bring_up(self, operator: OperatorProcess) -> None:
        """Prepare and serve a model from the start."""
        operator.wait_ready()
        self.user.apply(model())
        self.know_image()
        self.prepare(GOOD)
        self.serve()

    def versions(self) -> dict[str, str]:
        """Return the resource versions of everything that the operator writes."""
        kinds = "inferencemodels,jobs,deployments,services,controllerrevisions,pdb,pvc,configmaps"
        return {
            f"{namespace.name}/{each['kind']}/{each['metadata']['name']}": each["metadata"][
                "resourceVersion"
            ]
            for namespace in (self.user, self.system)
            for each in namespace.items(kinds)
        }


def _made(job: dict[str, Any]) -> tuple[str, int]:
    return job["metadata"]["creationTimestamp"], int(job["metadata"]["resourceVersion"])


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[World]:
    world = World(new_namespace(), new_namespace(), tmp_path)
    world.user.delete_all("inferencemodels", everywhere=True)
    world.furnish()
    yield world
    world.user.delete_all("inferencemodels")


def test_from_a_manifest_to_a_model_that_serves(world: World) -> None:
    with world.operator(program=INTERPRETED) as operator:
        operator.wait_ready()
        world.user.apply(model())
        world.user.wait_condition(MODEL, "Ready", "False", "ProbingImage", 20)
        world.know_image()

        job = world.job("prepare")
        assert world.user.get("pvc", STORE)["spec"]["accessModes"] == ["ReadWriteMany"]
        pod = played.start_pod(world.user, job)
        for ended, stage in enumerate(PREPARE_STAGES):
            finished = dict(itertools.islice(GOOD.items(), ended))
            played.run_stages(world.user, pod, finished, running=stage)
            world.wait_stage(stage)
        played.run_stages(world.user, pod, GOOD)
        played.complete_job(world.user, job["metadata"]["name"])
        world.serve()

        status = world.user.get("im", MODEL)["status"]
        assert status["prepared"]["modelDigest"] == DIGEST
        assert status["serving"]["preparedKey"] == PUBLISHED["key"]
        assert status["prepared"]["signature"] == listed(SIGNATURE).manifest()
        (revision,) = world.user.items("controllerrevisions", f"enginewright.dev/model={MODEL}")
        assert Revision.read(revision).signature == listed(SIGNATURE)
        assert status["observedGeneration"] == 1
        for kind, count in (
            ("services", 1),
            ("pdb", 1),
            ("controllerrevisions", 1),
            ("deployments", 1),
            ("jobs", 1),
        ):
            owned = world.user.items(kind, f"enginewright.dev/model={MODEL}")
            assert len(owned) == count, kind
            assert all(each["metadata"]["ownerReferences"][0]["name"] == MODEL for each in owned)
        assert "Normal" in world.reported("Serving")


# event: Operator | the store moves from claims to a bucket | the previous revision, until the new one's artefact is
#   there, unless `rollout.strategy` is `Recreate` | Ready `RollingOut`, then `Preparing`
def test_a_model_moves_with_its_store_from_a_claim_to_a_bucket(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        first = world.user.get("im", MODEL)["status"]["serving"]["revision"]
        operator.wait_quiet()
        assert operator.terminate()[0] == 0
    bucket = {"uri": "s3://models/team", "secretRef": "keys"}
    store = {"claim": STORE, "size": "1Gi", "accessMode": "ReadWriteMany", "bucket": bucket}
    with world.operator(store=store) as operator:
        operator.wait_ready()
        address = f"s3://models/team/{world.user.name}"

        def addresses() -> dict[str, list[str]]:
            """Return the addresses of buckets that pods fetch from, by Deployment."""
            found = {}
            for each in world.user.items("deployments"):
                fetch = each["spec"]["template"]["spec"]["initContainers"][0]
                found[each["metadata"]["name"]] = [
                    variable["value"]
                    for variable in fetch["env"]
                    if variable["name"] == "ENGINEWRIGHT_STORE"
                ]
            return found

        eventually(lambda: len(addresses()) == 2, 20, "the new revision's canary", interval=0.1)
        assert addresses().pop(f"{MODEL}-cpu") == []
        assert [address] in addresses().values()

        def is_updating() -> bool:
            status = world.user.get("im", MODEL)["status"]
            return bool(status["serving"]["revision"] == first != status["revision"])

        eventually(is_updating, 20, "the status, which is written last", interval=0.1)
        assert world.user.condition(MODEL, "Available")["status"] == "True"


def test_a_store_in_a_bucket_needs_no_claim(world: World) -> None:
    bucket = {"uri": "s3://models/team", "secretRef": "keys", "serviceAccountName": "default"}
    store = {"claim": STORE, "size": "1Gi", "accessMode": "ReadWriteOnce", "bucket": bucket}
    with world.operator(store=store) as operator:
        world.bring_up(operator)
        assert world.user.items("pvc") == []
        pods = world.user.items("pods", f"enginewright.dev/model={MODEL}")
        assert pods
        for each in pods:
            volumes = [volume["name"] for volume in each["spec"]["volumes"] if "secret" in volume]
            assert volumes == ["store"]


def test_what_has_not_changed_costs_nothing_also_after_a_restart(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_relisted().wait_quiet()
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
        world.know_image()
        world.prepare(REFUSED)
        refused = world.user.wait_condition(MODEL, "Ready", "False", "OpsetUnsupported", 20)
        assert "export with opset 26" in refused["message"]
        assert world.user.condition(MODEL, "Stalled")["status"] == "True"
        assert "Warning" in world.reported("OpsetUnsupported")
        operator.wait_quiet()
        assert len(world.jobs("prepare")) == 1  # what cannot succeed is not repeated

        world.user.apply(model(uri="https://example.com/corrected.onnx"))
        world.prepare(GOOD, count=2)
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


# event: Operator | the operator is killed, at any point | all pods | nothing
def test_the_operator_may_be_killed_at_any_point(world: World) -> None:
    """Each step starts with a new process, which continues from the killed one's state."""
    job: dict[str, Any] = {}
    pod = ""

    def asked() -> None:
        world.job("probe")

    def known() -> None:
        world.know_image()

    def preparing() -> None:
        nonlocal job, pod
        job = world.job("prepare")
        pod = played.start_pod(world.user, job)
        played.run_stages(world.user, pod, {"fetch": {"ok": True}}, running="validate")

    def prepared() -> None:
        played.run_stages(world.user, pod, GOOD)
        played.complete_job(world.user, job["metadata"]["name"])
        eventually(lambda: world.user.get("deployment", f"{MODEL}-cpu"), 20, interval=0.1)

    def serving() -> None:
        world.serve()

    def nothing_new() -> None:
        pass

    world.user.apply(model())
    for step in (asked, known, preparing, prepared, serving, nothing_new):
        with world.operator() as operator:
            operator.wait_ready()
            step()
            operator.kill()
        world.system.delete("lease", "enginewright")  # as if it had expired
    with world.operator() as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        world.user.wait_condition(MODEL, "Ready", "True", "Serving", 20)
    assert len(world.jobs("prepare")) == 1
    assert len(world.jobs("probe")) == 1


def test_what_happened_while_it_was_away_is_seen(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_quiet()
    world.user.delete("service", MODEL)
    world.user.kubectl("scale", "deployment", f"{MODEL}-cpu", "--replicas=5")
    with world.operator() as operator:
        operator.wait_ready()
        eventually(lambda: world.user.get("service", MODEL), 20, interval=0.1)
        eventually(
            lambda: world.user.get("deployment", f"{MODEL}-cpu")["spec"]["replicas"] == 1,
            20,
            interval=0.1,
        )


# event: Operator | somebody edits an object of the operator | what the model specifies; the edit
#   is undone | Warning Event `EditUndone` with the edit and its author
def test_somebodys_edit_is_undone_and_additions_are_left(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        world.user.kubectl("label", "deployment", f"{MODEL}-cpu", "example.com/theirs=yes")
        world.user.kubectl("set", "image", f"deployment/{MODEL}-cpu", "server=example.com/evil:1")

        def restored() -> bool:
            deployment = world.user.get("deployment", f"{MODEL}-cpu")
            (server,) = deployment["spec"]["template"]["spec"]["containers"]
            return bool(server["image"] == CPU_IMAGE)

        eventually(restored, 20, interval=0.1)
        labels = world.user.get("deployment", f"{MODEL}-cpu")["metadata"]["labels"]
        assert labels["example.com/theirs"] == "yes"
        world.user.kubectl("scale", "deployment", f"{MODEL}-cpu", "--replicas=7")
        text = f"reverted kubectl's change of spec.replicas in Deployment {MODEL}-cpu"
        eventually(
            lambda: [
                each for each in world.user.items("events") if each["message"].startswith(text)
            ],
            20,
            interval=0.1,
        )
        assert world.user.get("deployment", f"{MODEL}-cpu")["spec"]["replicas"] == 1


def test_a_deleted_model_is_let_go_and_its_name_can_be_used_again(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_quiet()
        writes = operator.writes()
        world.user.delete("im", MODEL)
        operator.wait_quiet()
        assert operator.writes() == writes  # garbage collection is Kubernetes', not ours

        # Here nobody collects: the new model must wait for the old one's objects, not take them.
        world.user.apply(model())
        world.user.wait_condition(MODEL, "Ready", "False", "Preparing", 20)
        old_uid = world.job("prepare")["metadata"]["uid"]
        owner = world.user.get("im", MODEL)["metadata"]["uid"]
        operator.wait_passes(operator.passes() + 2)
        assert world.job("prepare")["metadata"]["uid"] == old_uid
        selector = f"enginewright.dev/model={MODEL}"
        kinds = "jobs,deployments,services,controllerrevisions,pdb"
        world.user.kubectl("delete", kinds, "--selector", selector)

        def made_anew() -> bool:
            jobs = world.jobs("prepare")
            return [job["metadata"]["ownerReferences"][0]["uid"] for job in jobs] == [owner]

        eventually(made_anew, 20, interval=0.1)


# event: Operator | the namespace is being deleted | what is there, until Kubernetes deletes it |
#   nothing
def test_a_namespace_that_is_being_deleted_is_left_alone(world: World) -> None:
    """Nothing can be made in it, and a controller that goes on trying costs thousands of requests."""
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


def test_an_object_of_somebody_else_is_not_taken(world: World) -> None:
    ports = [{"port": 5432}]
    theirs = made("Service", MODEL, spec={"selector": {"app": "database"}, "ports": ports})
    world.user.apply(theirs)
    with world.operator() as operator:
        operator.wait_ready()
        world.user.apply(model())
        world.know_image()
        world.prepare(GOOD)
        text = f"Service {MODEL} exists and is not managed"
        assert text in world.reported("ApplyFailed")
        refused = world.user.wait_condition(MODEL, "Ready", "False", "ApplyFailed", 20)
        assert text in refused["message"]
        assert world.user.get("service", MODEL)["spec"]["selector"] == {"app": "database"}
        world.user.delete("service", MODEL)
        world.serve()


def test_classes_count_nodes_and_name_each_other(world: World) -> None:
    def wait_ready(name: str, status: str, reason: str) -> None:
        def is_so() -> bool:
            conditions = world.user.get("aclass", name).get("status", {}).get("conditions", [])
            return [(each["status"], each["reason"]) for each in conditions] == [(status, reason)]

        eventually(is_so, 20, f"{name} {reason}", interval=0.1)

    with world.operator() as operator:
        operator.wait_ready()
        wait_ready("cpu", "True", "NodesFound")
        world.user.apply(accelerator_class("l4", gpu="l4"))
        wait_ready("l4", "False", "NoMatchingNode")
        world.user.kubectl("label", "node", "node-1", "gpu=l4")
        for name in ("cpu", "l4"):
            wait_ready(name, "False", "OverlappingClass")
        operator.wait_quiet()
        writes = operator.writes()
        passes = operator.total("controller_runtime_reconcile_total", controller="acceleratorclass")
        world.user.kubectl("annotate", "node", "node-1", "example.com/heartbeat=1")
        world.user.kubectl("label", "node", "node-1", "example.com/zone=a")
        eventually(
            lambda: (
                operator.total("controller_runtime_reconcile_total", controller="acceleratorclass")
                >= passes + 2
            ),
            20,
            interval=0.1,
        )
        assert operator.writes() == writes
    world.user.delete("aclass", "l4")


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
    process = OperatorProcess(limited, world.system.name, world.folder, settings=settings)
    with process as operator:
        world.bring_up(operator)
        world.user.apply(model(uri="https://example.com/second.onnx"))
        world.job("prepare", 2)
        world.user.apply(model(uri="https://example.com/third.onnx"))
        world.job("prepare", 2)  # the third Job; the second, which still ran, is deleted
        world.reported("Serving")
        operator.wait_quiet()
        assert operator.total("rest_client_requests_total", method="DELETE") == 1
        for client in ("rest_client", "enginewright_lease"):
            assert operator.total(f"{client}_requests_total", code="403") == 0
        assert "level=error" not in operator.log
        assert "orbidden" not in operator.log  # nor of kopf's watches


def test_missing_definitions_are_waited_for(
    bare_kubeconfig: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    with OperatorProcess(bare_kubeconfig, "default", tmp_path) as operator:
        eventually(lambda: "install Enginewright's CRDs" in operator.log, 20, interval=0.1)
        assert operator.get("/healthz")[0] == 200
        assert operator.get("/readyz")[0] == 503
        code, seconds = operator.terminate()
        assert (code, seconds < 5) == (0, True)  # likewise


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


def test_many_models(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints how long 300 models take; asserts only that each gets its Job and costs little."""
    count = 300
    with world.operator() as operator:
        operator.wait_ready()
        world.know_image()
        operator.wait_quiet()
        before = operator.writes()
        text = "\n---\n".join(
            json.dumps(model(f"many-{n}", f"https://example.com/{n}.onnx")) for n in range(count)
        )
        started = time.monotonic()
        world.user.kubectl("create", "--filename", "-", stdin=text)
        created = time.monotonic() - started
        eventually(lambda: len(world.jobs("prepare")) >= count, 120, "Jobs", interval=0.5)
        jobs = time.monotonic() - started
        operator.wait_quiet()
        writes, passes = operator.writes() - before, operator.passes()
        cpu = operator.total("process_cpu_seconds_total")
        memory = operator.total("process_resident_memory_bytes") / 2**20
    assert len(world.jobs("prepare")) == count
    assert writes <= 4 * count
    with world.operator() as operator:
        started = time.monotonic()
        operator.wait_ready().wait_passes(count)
        restarted = time.monotonic() - started
        assert operator.writes() == 0
    with capsys.disabled():
        print(
            f"\n{count} models: created in {created:.1f} s, all Jobs after {jobs:.1f} s,"
            f" {writes / count:.2f} writes and {passes / count:.2f} passes each,"
            f" {1000 * cpu / count:.1f} ms CPU each, {memory:.0f} MiB;"
            f" restart: all looked at after {restarted:.1f} s, 0 writes"
        )
    for path in ("enginewright.dev/v1alpha1", "batch/v1"):  # at once; kubectl takes its time
        plural = "jobs" if path.startswith("batch") else "inferencemodels"
        world.user.kubectl("delete", "--raw", f"/apis/{path}/namespaces/{world.user.name}/{plural}")
