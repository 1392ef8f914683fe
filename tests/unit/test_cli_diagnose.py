"""What `explain`, `placement`, `diff`, `logs` and `bundle` say of models in the world that plans are tested in."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.kube.api import JsonObject, Listing
from enginewright.kube.errors import Forbidden
from enginewright.kube.pod_http import BadAnswer, PodAddress
from enginewright.kube.resources import (
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    EVENTS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    Resource,
)
from enginewright_cli.cluster import ClusterError
from enginewright_cli.diagnose import bundle, logs
from enginewright_cli.diagnose.compare import diff, place
from enginewright_cli.diagnose.explain import explain
from enginewright_cli.diagnose.reading import ModelObjects, read_objects
from enginewright_cli.diagnose.result import Explanation, ModelRow
from enginewright_cli.diagnose.view import show_diff, show_explanation, show_placement
from enginewright_cli.diagnose.watching import list_rows
from enginewright_cli.reporting import CommandError
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check, FallbackVerdict, Verdict
from rich.console import Console

from tests.support.optional import present
from tests.support.plan_objects import MODEL, NAMESPACE, OTHER, SECOND, make_object, verdict
from tests.support.plan_world import World, serving

KINDS = (INFERENCE_MODELS, INFERENCE_ENGINES, JOBS, PODS, DEPLOYMENTS, CONTROLLER_REVISIONS, NODES)


def read_all(world: World, said: Verdict | str | None = None, **more: Any) -> ModelObjects:
    """Return what a reader who may read everything finds; all serving pods say the same."""
    objects = {kind: tuple(world.all(kind.kind)) for kind in (*KINDS, EVENTS)}
    objects[NODES] = tuple(world.nodes)
    objects_read = ModelObjects(NAMESPACE, MODEL, objects)
    verdicts = {pod.name: said for pod in objects_read.serving} if said else {}
    return ModelObjects(NAMESPACE, MODEL, objects, verdicts=verdicts, **more)


def render(explanation: Explanation) -> str:
    printed = io.StringIO()
    show_explanation(explanation, Console(file=printed, width=200))
    return printed.getvalue()


def preparation_fails() -> World:
    return World().settle().job_fails(Reason.DIGEST_MISMATCH, "fetch", "the digest is abc")


def preparation_runs() -> World:
    return World().settle().stage_runs("convert")


def pod_has_no_node() -> World:
    return World().settle().unschedulable("0/3 nodes are available: 3 Insufficient cpu.")


def node_is_down() -> World:
    world = World().settle().stage_runs("convert")
    world.node_goes_down()
    return world


def canary_is_rejected() -> World:
    world = serving()
    world.edit(source=OTHER).job_fails(Reason.INVALID_MODEL, "validate", "node a has no output")
    return world


def is_paused() -> World:
    return serving().edit(source=OTHER, rollout={"paused": True}).job_succeeds(SECOND)


@pytest.mark.parametrize(
    ("start", "state", "objects", "cause", "command"),
    [
        (
            preparation_fails,
            "stalled",
            ("InferenceModel", "Job", "Pod"),
            "DigestMismatch: the digest is abc",
            f"kubectl -n {NAMESPACE} edit inferencemodel {MODEL}",
        ),
        (
            preparation_runs,
            "working",
            ("InferenceModel", "Pod"),
            "it runs",
            f"status {MODEL} -n {NAMESPACE} --watch",
        ),
        (
            pod_has_no_node,
            "working",
            ("InferenceModel", "Pod"),
            "Insufficient cpu",
            "describe pod/",
        ),
        (node_is_down, "working", ("InferenceModel", "Node", "Pod"), "", "describe node/node-1"),
        (
            canary_is_rejected,
            "stalled",
            ("InferenceModel", "Job", "Pod"),
            "InvalidModel: node a has no output",
            "enginewright preflight MODEL.onnx",
        ),
        (
            is_paused,
            "stalled",
            ("InferenceModel",),
            "Suspended",
            f"enginewright resume {MODEL} -n {NAMESPACE}",
        ),
    ],
)
def test_the_chain_ends_with_the_cause_its_remedy_and_a_command(
    start: Callable[[], World], state: str, objects: tuple[str, ...], cause: str, command: str
) -> None:
    explanation = explain(read_all(start()))
    assert explanation.state == state
    kinds = dict.fromkeys(link.object.partition(" ")[0] for link in explanation.chain)
    assert tuple(kinds) == objects, render(explanation)
    text = render(explanation)
    assert explanation.cause, text
    assert cause in f"{explanation.cause.reason}: {explanation.cause.message}", text
    assert command in explanation.command


def test_a_model_that_serves_says_so_and_a_broken_check_is_its_cause() -> None:
    world = serving()
    explanation = explain(read_all(world, verdict()))
    assert (explanation.state, explanation.cause, explanation.command) == ("ready", None, "")
    broken = explain(read_all(world, verdict(failed={Check.PLACEMENT: Reason.PROVIDER_MISSING})))
    assert broken.state == "impaired"
    assert broken.cause
    assert (broken.cause.part, broken.cause.reason) == (
        "check placement is failed",
        "ProviderMissing",
    )
    assert broken.remedy == Reason.PROVIDER_MISSING.remedy


def test_what_the_operator_has_not_seen_names_the_operator() -> None:
    world = World()
    explanation = explain(read_all(world))
    assert explanation.state == "working"
    assert "get deployments,pods" in explanation.command


def test_an_event_is_the_cause_where_nothing_else_says_one() -> None:
    world = (
        World()
        .settle()
        .job_pod_becomes(
            initContainerStatuses=[
                {"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}
            ]
        )
    )
    pod = world.the("Pod")
    event = make_object(
        "Event",
        "e1",
        NAMESPACE,
        type="Warning",
        reason="FailedMount",
        involvedObject={"kind": "Pod", "name": pod["metadata"]["name"], "uid": "u"},
        message="MountVolume.SetUp failed for volume x",
        lastTimestamp="2026-11-21T12:00:00Z",
    )
    world.kube.put(event)
    explanation = explain(read_all(world))
    assert explanation.cause
    assert (explanation.cause.part, explanation.cause.reason) == ("Event", "FailedMount")
    assert f"describe pod/{pod['metadata']['name']}" in explanation.command


class Denied:
    """The API server for a user who may not read some kinds."""

    def __init__(self, world: World, *kinds: Resource) -> None:
        self._kube = world.kube
        self._kinds = kinds

    async def list(self, resource: Resource, namespace: str | None = None, **more: Any) -> Listing:
        self._check(resource)
        return await self._kube.list(resource, namespace, **more)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> JsonObject:
        self._check(resource)
        return await self._kube.get(resource, namespace, name)

    def _check(self, resource: Resource) -> None:
        if resource in self._kinds:
            raise Forbidden(f"{resource.plural} is forbidden", code=403)


class Silent:
    """Pods that may not be asked."""

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:
        del pod, path, query
        raise BadAnswer("the API server responded with 403", 403)

    async def close(self) -> None:
        """Do nothing."""


async def test_half_of_the_rights_give_half_of_the_answer() -> None:
    world = preparation_fails()
    api: Any = Denied(world, PODS, EVENTS, NODES)
    objects_read = await read_objects(api, Silent(), NAMESPACE, MODEL)
    explanation = explain(objects_read)
    assert explanation.cause
    assert explanation.cause.reason == "DigestMismatch"
    assert explanation.notes == ("you may not read events, pods",)

    hidden: Any = Denied(serving(), INFERENCE_MODELS, CONTROLLER_REVISIONS)
    objects_read = await read_objects(hidden, Silent(), NAMESPACE, MODEL)
    assert explain(objects_read).state == "unknown"
    assert len(objects_read.serving) == 2
    assert any("inferencemodels" in note for note in objects_read.unread)
    assert any("pods/proxy" in note for note in objects_read.unread)

    everything: Any = Denied(world, *KINDS, EVENTS, *list_labelled())
    with pytest.raises(ClusterError, match="you may read nothing"):
        await read_objects(everything, Silent(), NAMESPACE, MODEL)
    with pytest.raises(
        ClusterError, match=f"not found in namespace {NAMESPACE}; existing: {MODEL}"
    ):
        await read_objects(world.kube, Silent(), NAMESPACE, "other")


def list_labelled() -> tuple[Resource, ...]:
    from enginewright_cli.diagnose import reading  # noqa: PLC0415 - its table

    return reading._LABELLED


def test_placement_says_where_nodes_run_or_why_that_is_not_known() -> None:
    world = serving()
    fallback = FallbackVerdict(active=True, nodes_total=105, nodes_elsewhere=5, compute_share=0.2)
    placement = place(read_all(world, verdict("openvino", fallback)))
    assert {(pod.nodes_elsewhere, pod.backend, pod.state) for pod in placement.pods} == {
        (5, "openvino", "ok")
    }
    printed = io.StringIO()
    show_placement(placement, Console(file=printed, width=200))
    assert "5 of 105 nodes, 20% of the time" in printed.getvalue()
    silent = place(read_all(world, "you may not ask"))
    assert {(pod.nodes_total, pod.message) for pod in silent.pods} == {(None, "you may not ask")}
    assert place(read_all(World())).pods == ()


def test_a_canary_is_compared_with_what_serves() -> None:
    world = serving(rollout={"canary": {"replicas": 1, "hold": "60s", "steps": ["50%"]}})
    nothing = diff(read_all(world))
    assert (nothing.differences, "no other revision" in nothing.notes[0]) == ((), True)
    world.edit(source=OTHER).job_succeeds(SECOND)
    difference = diff(read_all(world, verdict()))
    rows = {row.what: row for row in difference.differences}
    assert difference.active == world.status["active"]["revision"]
    assert difference.target == world.status["target"]["revision"]
    assert not rows["model"].same
    assert rows["class cpu: image"].same
    printed = io.StringIO()
    show_diff(difference, Console(file=printed, width=200))
    assert difference.target in printed.getvalue()


def test_the_log_is_that_of_what_failed() -> None:
    objects_read = read_all(preparation_fails())
    assert logs.choose(objects_read, None).container.name == "fetch"
    with pytest.raises(CommandError, match="no pod has run stage build; stages with a log: fetch"):
        logs.choose(objects_read, "build")
    with pytest.raises(CommandError, match=f"no container of InferenceModel {MODEL} has run"):
        logs.choose(read_all(World().settle()), None)


def test_an_archive_for_support_has_no_secrets() -> None:
    world = serving()
    secret = "s3cret"
    (model,) = world.all("InferenceModel")
    model["spec"]["source"]["uri"] = f"https://me:{secret}@example.com/m.onnx?token={secret}"
    model["metadata"].setdefault("annotations", {})[
        "kubectl.kubernetes.io/last-applied-configuration"
    ] = secret
    for pod in world.all("Pod"):
        container = {"name": "server", "env": [{"name": "TOKEN", "value": secret}]}
        pod["spec"] = {**pod["spec"], "containers": [container]}
    packed = bundle.pack(
        read_all(world, verdict()),
        {"pod-server": f"get https://me:{secret}@example.com/x"},
        {"enginewright": "1"},
        datetime(2026, 11, 27, tzinfo=UTC),
    )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        texts = {
            member.name.partition("/")[2]: present(archive.extractfile(member)).read().decode()
            for member in archive.getmembers()
        }
    assert {"objects/pods.yaml", "explanation.json", "placement.json"} <= texts.keys()
    assert [name for name, text in texts.items() if secret in text] == []
    assert "example.com/m.onnx" in texts["objects/inferencemodels.yaml"]
    assert bundle.REMOVED in texts["objects/pods.yaml"]
    assert json.loads(texts["explanation.json"])["state"] == "ready"


def test_models_that_are_not_ready_come_first() -> None:
    def row(name: str, world: World) -> Mapping[str, Any]:
        (model,) = world.all("InferenceModel")
        return {**model, "metadata": {**model["metadata"], "name": name}}

    rows = list_rows([dict(row("a", serving())), dict(row("b", preparation_runs()))])
    assert [(item.name, item.ready, item.doing) for item in rows] == [
        ("b", "False", "convert"),
        ("a", "True", ""),
    ]
    assert isinstance(rows[0], ModelRow)
