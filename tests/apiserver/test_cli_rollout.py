"""`enginewright status`, `rollback`, `promote`, `pause` and `resume` against a real API server.

The operator runs in the last test only: the others write its status and revisions themselves.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import (
    CANARY,
    CLASS,
    PROMOTE,
    REVISION,
    ROLLBACK,
    SERVE,
    TRACK,
    of_model,
)
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.manifests.snapshot import ClassSnapshot, Revision, Snapshot, controller_revision
from enginewright_contract.measurements import LatencySeries, Measurements

from tests.apiserver.test_pods_through_proxy import ADDRESS, PodServer, server
from tests.apiserver.world import World, model
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.command_line import run_command
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver
__all__ = ["server"]  # a fixture

NAME = "m"
OLD, GOOD, NEW = "0000000001", "0000000002", "0000000003"


@dataclass(frozen=True)
class Desk:
    """The command line, and the model that it is used on."""

    namespace: Namespace

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str]:
        """Run a command; return its exit code and what it prints."""
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or self.namespace.kubeconfig)}
        code, output, errors = run_command([*arguments, "-n", self.namespace.name], environment)
        return code, output + errors

    def model(self) -> dict[str, Any]:
        return self.namespace.get("inferencemodel", NAME)

    def annotations(self) -> dict[str, str]:
        """Return the annotations for the operator."""
        annotations = self.model()["metadata"].get("annotations", {})
        return {name: annotations[name] for name in (PROMOTE, ROLLBACK) if name in annotations}

    def status(self, **status: Any) -> None:
        """Write the model's status, as the operator would."""
        written = {"observedGeneration": 1, "target": None, **status}
        self.namespace.patch("im", NAME, {"status": written}, "status")

    def store(self, revision: str, number: int, outcome: RevisionOutcome | None) -> None:
        """Store a revision, as the operator would."""
        model = InferenceModel.model_validate(self.model())
        snapshot = Snapshot(
            prepared_key=str(number) * 64,
            model_digest=str(number) * 64,
            classes=(ClassSnapshot(name="cpu", backend="cpu", image=f"example.com/cpu:{number}"),),
            max_queue=8,
            store_claim="store",
        )
        stored = controller_revision(model, Revision(name=revision, snapshot=snapshot), number)
        stored["metadata"]["annotations"] = outcome.annotations() if outcome else {}
        self.namespace.put(stored)

    def run_pod(self, name: str, revision: str, **labels: str) -> None:
        """Create a ready pod of a revision with the address of the server that answers for it."""
        labels = {**of_model(NAME, SERVE), REVISION: revision, CLASS: "cpu", **labels}
        spec = {"containers": [{"name": "sidecar", "image": "example.com/cpu:1"}]}
        self.namespace.create(make_object("Pod", name, labels=labels, spec=spec))
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T12:03:10Z"}
        status = {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
        self.namespace.patch("pod", name, {"status": {**status, "conditions": [ready]}}, "status")

    def reject(self, revision: str) -> None:
        """Record that a revision failed, as the operator would."""
        ((name, value),) = outcome("Rejected", 3, "ParityFailed").annotations().items()
        patch = {"metadata": {"annotations": {name: value}}}
        self.namespace.patch("controllerrevision", f"{NAME}-{revision}", patch)


def outcome(state: str, minute: int, reason: str = "") -> RevisionOutcome:
    return RevisionOutcome.model_validate(
        {"state": state, "at": f"2026-11-20T12:{minute:02}:00Z", "reason": reason}
    )


@pytest.fixture
def desk(namespace: Namespace) -> Desk:
    """A model with two earlier revisions, the later of which is active, and one that is rolled out."""
    namespace.apply(model())
    desk = Desk(namespace)
    desk.store(OLD, 1, outcome("Promoted", 1))
    desk.store(GOOD, 2, outcome("Promoted", 2))
    desk.store(NEW, 3, None)
    desk.status(revision=NEW, active={"revision": GOOD}, target=target())
    return desk


def target(phase: str = "Analyzing", **more: Any) -> dict[str, Any]:
    return {"revision": NEW, "phase": phase, "step": 1, "since": "2026-11-20T12:03:00Z", **more}


def test_refusals_write_nothing(desk: Desk) -> None:
    code, shown = desk.run("rollback", NAME, "--to", "nosuch")
    assert (code, "revision nosuch is unknown; known revisions:" in shown) == (1, True)
    for item in (OLD, GOOD, NEW, "Promoted", "model 111111111111", "example.com/cpu:1"):
        assert item in shown
    desk.status(
        revision=NEW,
        active={"revision": GOOD},
        target=target("Held", reason="SignatureChanged", message="input x is gone"),
    )
    code, shown = desk.run("promote", NAME)
    assert (code, "spec.rollout.allowSignatureChange" in shown) == (1, True), shown
    assert desk.annotations() == {}


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    at = "2026-11-20T12:03:00Z"
    details = {"message": f"{reason}!", "lastTransitionTime": at}
    return {"type": kind, "status": status, "reason": reason, **details}


def test_the_status_of_a_canary(desk: Desk, server: PodServer) -> None:
    played.add_account(desk.namespace)
    desk.run_pod("stable", GOOD)
    desk.run_pod("new", NEW, **{TRACK: CANARY})
    desk.status(
        revision=NEW,
        active={"revision": GOOD},
        target=target(),
        conditions=[condition("Ready", "False", "Analyzing")],
    )
    start = time.time() - 4000
    series = LatencySeries(
        source="golden",
        name="s",
        count=4000,
        windows=tuple((start + 10 * index, 0.01 + 0.0001 * (index % 7)) for index in range(400)),
    )
    # one server answers for both: its measurements are those of the new revision
    measured = Measurements(model=NAME, revision=NEW, since=start, latencies=(series,))
    server.say(measured.to_json())

    def status_with_measurements() -> dict[str, Any]:
        code, shown = desk.run("status", NAME, "--json")
        assert code == 0, shown
        status: dict[str, Any] = json.loads(shown)
        return {} if any("does not report" in item for item in status["notes"]) else status

    status = eventually(status_with_measurements, 30, "measurements")
    assert (status["verdict"], status["reason"]) == ("progressing", "Analyzing")
    for arm, revision, number in (("stable", GOOD, 2), ("new", NEW, 3)):
        assert (status[arm]["revision"], status[arm]["model_digest"]) == (
            revision,
            str(number) * 64,
        )
        (cpu,) = status[arm]["classes"]
        assert (cpu["image"], cpu["pods"], cpu["ready"]) == (f"example.com/cpu:{number}", 1, 1)
    assert status["progress"]["phase"] == "Analyzing"
    assert status["progress"]["left_seconds"] == 0
    assert [item["revision"] for item in status["history"]] == [NEW, GOOD, OLD]
    assert [item["outcome"] for item in status["history"]] == ["", "Promoted", "Promoted"]
    assert status["notes"] == []
    assert {path.rpartition("/")[2] for path, _ in server.requests()} == {"measurements"}

    server.say(json.dumps({"detail": "not found"}), 404)
    code, shown = desk.run("status", NAME)
    assert (code, "not reported by this version" in shown) == (0, True), shown
    assert "Analyzing, step 1 of 1" in shown


def test_the_status_of_a_rejection_ends_a_watch(desk: Desk) -> None:
    desk.reject(NEW)
    desk.status(
        revision=NEW,
        active={"revision": GOOD},
        lastFailure={"revision": NEW, "stage": "analysis", "reason": "ParityFailed"},
        conditions=[
            condition("Ready", "False", "ParityFailed"),
            condition("Stalled", "True", "ParityFailed"),
            condition("RolledBack", "True", "ParityFailed"),
        ],
    )
    code, shown = desk.run("status", NAME, "--watch", "--json")
    (line,) = shown.splitlines()
    status = json.loads(line)
    assert (code, status["verdict"], status["last_failure"]["stage"]) == (1, "rejected", "analysis")
    assert status["history"][0]["reason"] == "ParityFailed"
    code, shown = desk.run("status", "other")
    assert (code, "existing: m" in shown) == (2, True)


def test_wrong_arguments_are_refused(desk: Desk) -> None:
    code, shown = desk.run("rollback", "other")
    assert code == 2
    assert f"not found in namespace {desk.namespace.name}; existing: m" in shown
    code, shown = desk.run("pause", NAME, "--context", "nosuch")
    assert (code, "nosuch" in shown) == (2, True), shown
    assert desk.run("rollback")[0] == 64


def test_a_context_is_chosen(desk: Desk, tmp_path: Path) -> None:
    config = yaml.safe_load(desk.namespace.kubeconfig.read_text())
    (context,) = config["contexts"]
    config["contexts"] = [{**context, "name": "other"}]
    config["current-context"] = "gone"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    code, shown = desk.run("pause", NAME, "--context", "other", kubeconfig=path)
    assert (code, desk.model()["spec"]["rollout"]["paused"]) == (0, True), shown


def test_rollouts_are_paused_and_resumed(desk: Desk) -> None:
    spec = desk.model()["spec"]
    for command, paused in (("pause", True), ("pause", True), ("resume", False)):
        code, shown = desk.run(command, NAME)
        assert (code, "warning" in shown) == (0, False), shown
        assert desk.model()["spec"]["rollout"].pop("paused") is paused
    assert desk.model()["spec"]["source"] == spec["source"]
    managed = desk.namespace.kubectl("get", "im", NAME, "-o", "json", "--show-managed-fields")
    assert "enginewright-cli" in {
        item["manager"] for item in json.loads(managed)["metadata"]["managedFields"]
    }


def test_pausing_what_gitops_manages_warns(desk: Desk) -> None:
    manager = ("--force-conflicts", "--field-manager=argocd-controller")
    apply = ("apply", "--server-side", *manager, "--filename", "-")
    desk.namespace.kubectl(*apply, stdin=json.dumps(model()))
    code, shown = desk.run("pause", NAME)
    assert (code, "Argo CD (argocd-controller) manages this model" in shown) == (0, True), shown
    assert desk.model()["spec"]["rollout"]["paused"] is True


def test_the_operator_goes_back_and_forth(world: World) -> None:
    """A revision that serves is rolled back and promoted again by the real operator."""
    desk = Desk(world.user)
    body = model()
    body["spec"]["rollout"] = {"canary": {"replicas": 0}}

    def active() -> str:
        return str(desk.model()["status"].get("active", {}).get("revision", ""))

    def goes_to(revision: str) -> None:
        """Roll the Deployment out, once the operator has given it this revision."""
        eventually(lambda: current() == revision, 20, f"revision {revision}", interval=0.1)
        played.roll_out(world.user, f"{NAME}-cpu")
        eventually(lambda: active() == revision, 20, f"{revision} to be active", interval=0.1)

    def current() -> str:
        labels = world.user.get("deployment", f"{NAME}-cpu")["metadata"]["labels"]
        return str(labels[REVISION])

    with world.operator() as operator:
        operator.wait_ready()
        world.probe_images()
        world.user.apply(body)
        world.prepare()
        world.serve()
        first = active()
        body["spec"]["serving"] = {"maxQueue": 7}
        world.user.apply(body)
        eventually(lambda: current() != first, 20, "the update", interval=0.1)
        second = current()
        goes_to(second)

        assert desk.run("rollback", NAME)[0] == 0
        goes_to(first)
        code, shown = desk.run("status", NAME, "--json")
        status = json.loads(shown)
        assert (code, status["verdict"], status["reason"]) == (1, "rejected", "RolledBackByUser")
        assert status["stable"]["revision"] == first
        outcomes = {item["revision"]: item["outcome"] for item in status["history"]}
        assert outcomes == {first: "Promoted", second: "Rejected"}

        assert desk.run("promote", NAME)[0] == 0
        goes_to(second)
        code, shown = desk.run("status", NAME, "--watch", "--json")
        status = json.loads(shown.splitlines()[-1])
        assert (code, status["verdict"], status["stable"]["revision"]) == (0, "healthy", second)
