"""Engines on real nodes: three classes of GPUs, one engine for each key, what the store loses, no traffic without a driver."""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from driver import gpus
from driver.layout import Gpus
from enginewright_contract.report import read_termination_message

from hack.samples.magika import features, label
from tests.e2e import stored
from tests.e2e.devices import (
    CLASS,
    COMPONENT,
    SHAPES,
    engine_jobs,
    engines_of,
    nodes,
    proposed_class,
    serving_pods,
    set_class,
)
from tests.e2e.harness import FEWER_GPUS, Namespace, cases, eventually, http_json, inference_model
from tests.e2e.test_fallback import MAKEFILE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ADDED: Final = "a10"  # of node-1, at first
AWAITED: Final = "rtx-pro-6000"  # of node-1, later
CAPABILITIES: Final = {CLASS: "8.9", ADDED: "8.6", AWAITED: "12.0"}
ON_CPUS: Final = (  # tests of the same model on CPUs
    "test_what_is_deleted_and_applied_again_builds_only_the_engine_of_a_class_more",
    "test_what_is_damaged_is_refused_reported_and_made_again_while_others_serve",
)
SHARING: Final = [f"sharing-{number}" for number in range(10)]


def labels(product: str) -> dict[str, str]:
    """Return the labels of node-1 with GPUs of this product."""
    return gpus.labels(Gpus(1, product, None, FEWER_GPUS))


def built_by(namespace: Namespace) -> dict[str, str]:
    """Return the class of every Job that builds an engine of model `ahead`, by the Job's identity."""
    return {
        job["metadata"]["uid"]: name
        for name, engine in engines_of(namespace, "ahead").items()
        for job in engine_jobs(namespace, engine)
    }


def ready_since(obj: Mapping[str, Any]) -> float:
    """Return how many seconds after its creation an object has become ready."""
    (ready,) = (each for each in obj["status"]["conditions"] if each["type"] == "Ready")
    assert ready["status"] == "True"
    began, ended = obj["metadata"]["creationTimestamp"], ready["lastTransitionTime"]
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def start_times(namespace: Namespace, model: str) -> str:
    """Return how long a model and its slowest pod took until they were ready."""
    pods = max(ready_since(pod) for pod in serving_pods(namespace, model))
    whole = ready_since(namespace.get("inferencemodel", model))
    return (
        f"ready {whole:.0f} s after it was applied, its pods {pods:.0f} s after they were created"
    )


def prepare_pod(namespace: Namespace, model: str) -> dict[str, Any]:
    """Return the pod that has prepared a model, once it has ended."""

    def ended() -> dict[str, Any]:
        pods = namespace.items("pods", f"{COMPONENT}=prepare,enginewright.dev/model={model}")
        return pods[0] if [each["status"]["phase"] for each in pods] == ["Succeeded"] else {}

    return eventually(ended, 60, f"the end of the Job of {model}")


def stages_run(pod: Mapping[str, Any]) -> list[str]:
    """Return the stages of a prepare Job's pod that had something to do."""
    status = pod["status"]
    reports = [
        read_termination_message(each["state"]["terminated"]["message"])
        for each in (*status["initContainerStatuses"], *status["containerStatuses"])
    ]
    return [
        each.stage for each in reports if each and not each.message.startswith("nothing to do: ")
    ]


def timeline(namespace: Namespace, model: str) -> str:
    """Return when what happened until a model was ready, in seconds after it was applied."""
    applied = namespace.get("inferencemodel", model)
    job = prepare_pod(namespace, model)
    pod = serving_pods(namespace, model)[0]
    (deployment,) = namespace.items("deployments", f"enginewright.dev/model={model}")
    times = {"Job's pod": job["metadata"]["creationTimestamp"]}
    for one in (job, pod):
        status = one["status"]
        for each in (*status["initContainerStatuses"], *status["containerStatuses"]):
            state = each["state"].get("terminated") or each["state"]["running"]
            times[each["name"]] = state["startedAt"]
        if one is job:
            times["Job's pod ended"] = status["containerStatuses"][0]["state"]["terminated"][
                "finishedAt"
            ]
            times["Deployment"] = deployment["metadata"]["creationTimestamp"]
            times["pod"] = pod["metadata"]["creationTimestamp"]
    for name, one in (("pod ready", pod), ("model ready", applied)):
        (ready,) = (each for each in one["status"]["conditions"] if each["type"] == "Ready")
        times[name] = ready["lastTransitionTime"]
    began = datetime.fromisoformat(applied["metadata"]["creationTimestamp"])
    return ", ".join(
        f"{name} {(datetime.fromisoformat(at) - began).total_seconds():.0f}"
        for name, at in times.items()
    )


@pytest.fixture(scope="module")
def classes(l4: Namespace) -> Iterator[Namespace]:
    """Classes of three products, one of which no node has yet; all build ahead of time."""
    assert proposed_class(l4, ADDED)["computeCapability"] == CAPABILITIES[ADDED]
    set_class(l4, ADDED, aheadOfTime=True, backends=["tensorrt-rtx"])
    product = "nvidia.com/gpu.product"
    spec = {
        "nodeSelector": {product: labels(AWAITED)[product]},
        "resourceName": "nvidia.com/gpu",
        "computeCapability": CAPABILITIES[AWAITED],
        "backends": ["tensorrt-rtx"],
        "aheadOfTime": True,
    }
    kind = {"apiVersion": "enginewright.dev/v1alpha1", "kind": "AcceleratorClass"}
    l4.apply({**kind, "metadata": {"name": AWAITED}, "spec": spec})
    yield l4
    l4.kubectl("label", "node", "node-1", "--overwrite", *_assigned(labels(ADDED)))
    l4.kubectl("delete", "acceleratorclass", AWAITED)


def _assigned(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]


@pytest.fixture(scope="module")
def digest(model_files: Path) -> str:
    """The digest of the model that is served on GPUs, as its spec has it."""
    return hashlib.sha256((model_files / "magika.onnx").read_bytes()).hexdigest()


def ahead_on(digest: str, *classes: str) -> dict[str, Any]:
    """Return a model that is served on some classes of GPUs."""
    accelerators = [{"class": each} for each in classes]
    source = {"uri": "pvc://models/magika.onnx", "sha256": digest}
    return inference_model("ahead", "", accelerators=accelerators, source=source)


def on_cpus() -> dict[str, Any]:
    """Return the same model for CPUs, in two pods."""
    return inference_model("on-cpus", "magika.onnx", backends=["cpu"], replicas=2)


@pytest.fixture(scope="module")
def ahead(request: pytest.FixtureRequest, classes: Namespace, digest: str) -> Namespace:
    """Real models whose engines are built by real TensorRT-RTX, without the GPUs."""
    classes.apply(ahead_on(digest, CLASS, AWAITED))
    if cases(request, "test_nodes_outside_the_engine_are_judged_by_the_policy"):
        classes.apply(inference_model("partly", "partly-supported.onnx", on=CLASS, shapes=SHAPES))
    if cases(request, *ON_CPUS):
        classes.apply(on_cpus())
    classes.wait_condition("ahead", "EnginesReady", "True", "Built", 240)
    return classes


def test_the_engines_report_their_size_time_digest_and_target(ahead: Namespace) -> None:
    names = engines_of(ahead, "ahead")
    assert set(names) == {CLASS, AWAITED}
    for name, engine_name in names.items():
        assert engine_name.startswith(f"tensorrt-rtx-{name}-")
        engine = ahead.get("inferenceengine", engine_name)["status"]["engine"]
        assert engine["computeCapabilities"] == [CAPABILITIES[name]]
        assert engine["sizeBytes"] > 1_000_000
        assert engine["buildMilliseconds"] > 0
        assert len(engine["sha256"]) == 64
        assert engine["nodesAccelerated"] == engine["nodesTotal"] > 0
    header, row = ahead.kubectl("get", "ieng", names[CLASS]).strip().splitlines()
    assert header.split()[:3] == ["NAME", "READY", "REASON"]
    assert row.split()[1:3] == ["True", "Built"]


def test_they_were_built_without_a_device_on_nodes_of_their_class_if_it_has_any(
    ahead: Namespace,
) -> None:
    selected = {CLASS: "NVIDIA-L4", AWAITED: None}
    for name, engine in engines_of(ahead, "ahead").items():
        (job,) = engine_jobs(ahead, engine)
        pod = job["spec"]["template"]["spec"]
        assert pod.get("nodeSelector", {}).get("nvidia.com/gpu.product") == selected[name]
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert "nvidia.com/gpu" not in container.get("resources", {}).get("limits", {})


def test_without_a_driver_it_gets_no_traffic_and_says_why(ahead: Namespace) -> None:
    found = ahead.wait_condition("ahead", "Ready", "False", "DriverMissing", 120)
    assert "libcuda.so.1" in found["message"]
    assert ahead.condition("ahead", "PlacementVerified")["reason"] == "DriverMissing"
    assert ahead.condition("ahead", "Available")["status"] == "False"
    endpoints = ahead.items("endpointslices", "kubernetes.io/service-name=ahead")
    ready = [
        each
        for one in endpoints
        for each in one.get("endpoints") or ()
        if each["conditions"].get("ready")
    ]
    assert ready == []
    assert nodes(serving_pods(ahead, "ahead", CLASS)) == {"node-2"}
    assert nodes(serving_pods(ahead, "ahead", AWAITED)) == {""}, "it has no node yet"


def test_what_is_deleted_and_applied_again_builds_only_the_engine_of_a_class_more(
    ahead: Namespace, digest: str
) -> None:
    ahead.wait_ready("on-cpus")
    print("new:", start_times(ahead, "on-cpus"))
    built = built_by(ahead)
    ahead.kubectl("delete", "im", "ahead", "on-cpus", "--wait=true")
    ahead.apply(ahead_on(digest, *CAPABILITIES), on_cpus())
    ahead.wait_condition("ahead", "EnginesReady", "True", "Built", 120)
    ahead.wait_ready("on-cpus", 120)
    print("known:", start_times(ahead, "on-cpus"))
    print("seconds after it was applied:", timeline(ahead, "on-cpus"))
    assert stages_run(prepare_pod(ahead, "on-cpus")) == ["fetch"]
    jobs = ahead.items("jobs", f"{COMPONENT}=prepare,enginewright.dev/model=ahead")
    assert not jobs, "its content is known by digest"
    now = built_by(ahead)
    assert built.items() < now.items(), "no Job was made again"
    assert [name for job, name in now.items() if job not in built] == [ADDED]
    wait_on(ahead, CLASS, "node-2")
    wait_on(ahead, ADDED, "node-1")
    wait_on(ahead, AWAITED, "")
    deployments = ahead.items("deployments", "enginewright.dev/model=ahead")
    found = sorted(each["metadata"]["labels"]["enginewright.dev/class"] for each in deployments)
    assert found == sorted(CAPABILITIES)
    assert nodes(serving_pods(ahead, "on-cpus")) == {"node-1", "node-2"}


def wait_on(namespace: Namespace, name: str, node: str) -> None:
    """Wait until the pods of a class of model `ahead` are on a node; "": none has them."""

    def there() -> bool:
        return nodes(serving_pods(namespace, "ahead", name)) == {node}

    eventually(there, 60, f"the pods of {name} on {node or 'no node'}")


# event: Classes | a node gets the labels of another class's devices | all pods; those of the other class start
#   there, with the engine that they have | Ready of both classes: `NodesFound`, `NoMatchingNode`
def test_a_node_that_gets_the_labels_of_a_class_gets_its_pods_and_nothing_is_built(
    ahead: Namespace,
) -> None:
    built = built_by(ahead)
    ahead.kubectl("label", "node", "node-1", "--overwrite", *_assigned(labels(AWAITED)))
    wait_on(ahead, AWAITED, "node-1")

    def reason(name: str) -> str:
        return str(ahead.get("acceleratorclass", name)["status"]["conditions"][0]["reason"])

    eventually(lambda: reason(AWAITED) == "NodesFound", 60, "the class with a node")
    eventually(lambda: reason(ADDED) == "NoMatchingNode", 60, "the class without")
    (left,) = serving_pods(ahead, "ahead", ADDED)
    # as the node's drain would
    ahead.kubectl("delete", "pod", left["metadata"]["name"], "--wait=false")
    wait_on(ahead, ADDED, "")
    ahead.kubectl("label", "node", "node-1", "--overwrite", *_assigned(labels(ADDED)))
    wait_on(ahead, ADDED, "node-1")
    assert built_by(ahead) == built
    assert ahead.condition("ahead", "EnginesReady")["reason"] == "Built"


def test_what_serves_until_the_first_engine_is_built_goes_on_if_that_cannot_serve(
    ahead: Namespace,
) -> None:
    """The engine is real, and nothing can load it here; the CPUs of the nodes can serve meanwhile."""
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "none"}}

    def bridged(workspace: str, **build: Any) -> dict[str, Any]:
        chosen = {"interim": "CPU", "workspace": workspace, **build}
        return inference_model("bridged", "magika.onnx", on=CLASS, build=chosen)

    ahead.apply(bridged("1Gi"))
    ahead.wait_condition("bridged", "EnginesReady", "True", "Built", 240)
    ahead.apply(bridged("2Gi", podTemplate=nowhere))  # another engine, which waits for its node
    ahead.wait_condition("bridged", "Ready", "True", "ServingInterim", 180)

    def queued() -> bool:
        return bool(ahead.condition("bridged", "EnginesReady")["reason"] == "Queued")

    eventually(queued, 60, "the engine that waits for its node")
    ahead.wait_condition("bridged", "FallbackActive", "False", "NoFallback", 60)
    assert ahead.get("im", "bridged")["status"]["summary"]["backend"] == "cpu (interim)"

    def alone() -> list[dict[str, Any]]:
        found = serving_pods(ahead, "bridged", CLASS)
        return found if len(found) == 1 else []

    (pod,) = eventually(alone, 60, "the pod of the interim, and no other")
    assert nodes([pod]) == {"node-2"}
    answers_right(ahead, pod)
    ahead.apply(bridged("2Gi"))
    ahead.wait_condition("bridged", "EnginesReady", "True", "Built", 120)
    found = ahead.wait_condition("bridged", "RolledBack", "True", "DriverMissing", 120)
    assert "restored" in found["message"]
    assert ahead.condition("bridged", "Available")["status"] == "True"
    answers_right(ahead, pod)
    ahead.kubectl("delete", "im", "bridged", "--wait=true")


def answers_right(namespace: Namespace, pod: Mapping[str, Any]) -> None:
    """Send a request to the Service of model `bridged`, of which this pod still serves."""
    sent = {"name": "bytes", "shape": [1, 2048], "datatype": "INT32", "data": features(MAKEFILE)}
    with namespace.forward("service/bridged", 80) as url:
        answer = http_json(f"{url}/v2/models/bridged/infer", {"inputs": [sent]})
    assert label(answer["outputs"][0]["data"]) == "makefile"
    now = namespace.get("pod", pod["metadata"]["name"])
    assert all(each["restartCount"] == 0 for each in now["status"]["containerStatuses"])


def test_ten_models_of_one_key_are_built_once(ahead: Namespace, model_files: Path) -> None:
    """Without pods: what they share is at stake. The last may be applied when the first is prepared already."""
    digest = hashlib.sha256((model_files / "linear-2.onnx").read_bytes()).hexdigest()
    source = {"uri": "pvc://models/linear-2.onnx", "sha256": digest}
    fixed: dict[str, Any] = {"source": source, "on": CLASS, "replicas": 0}
    ahead.apply(*(inference_model(name, "", **fixed) for name in SHARING))
    for name in SHARING:
        ahead.wait_condition(name, "EnginesReady", "True", "Built", 240)
    (engine,) = {engines_of(ahead, name)[CLASS] for name in SHARING}
    assert len(engine_jobs(ahead, engine)) == 1
    prepared = {ahead.get("im", name)["status"]["prepared"]["key"] for name in SHARING}
    assert len(prepared) == 1
    jobs = ahead.items(
        "jobs", f"{COMPONENT}=prepare,enginewright.dev/model in ({','.join(SHARING)})"
    )
    assert len(jobs) == 1
    ahead.kubectl("delete", "im", *SHARING)


def test_a_deleted_engine_comes_from_the_store_if_it_is_whole_there(ahead: Namespace) -> None:
    names = engines_of(ahead, "ahead")
    deleted = {name: ahead.get("inferenceengine", names[name]) for name in (CLASS, AWAITED)}
    cut = stored.volume(ahead) / "engines" / deleted[AWAITED]["spec"]["key"]
    stored.truncate(stored.engine_file(cut))
    ahead.kubectl("delete", "ieng", names[CLASS], names[AWAITED])

    def again(name: str) -> dict[str, Any]:
        engine = ahead.get("inferenceengine", names[name])
        same = engine["metadata"]["uid"] == deleted[name]["metadata"]["uid"]
        return {} if same else dict(engine.get("status", {}).get("engine", {}))

    found = eventually(lambda: again(CLASS), 120, "the engine from the store")
    assert found["cached"] is True
    assert found["sha256"] == deleted[CLASS]["status"]["engine"]["sha256"]
    assert "store" in ahead.kubectl("describe", "ieng", names[CLASS])
    found = eventually(lambda: again(AWAITED), 120, "the engine that was cut")
    assert not found.get("cached"), "it was built"
    assert stored.is_intact(cut)


# fault: Store | a file or a manifest is corrupted, truncated, swapped or removed, or names what is not its own
def test_what_is_damaged_is_refused_reported_and_made_again_while_others_serve(
    ahead: Namespace,
) -> None:
    ahead.wait_condition("ahead", "EnginesReady", "True", "Built", 120)
    ahead.wait_ready("on-cpus")
    store = stored.volume(ahead)
    names = engines_of(ahead, "ahead")
    engines = {
        name: store / "engines" / ahead.get("inferenceengine", names[name])["spec"]["key"]
        for name in (CLASS, ADDED)
    }
    serving = ahead.get("im", "on-cpus")["status"]["serving"]
    prepared = store / "prepared" / serving["preparedKey"]
    swapped, corrupted = engines.values()
    recipe = stored.manifest(swapped)["engine"]["recipe"]
    stored.mistake(swapped, corrupted)
    stored.corrupt(stored.engine_file(corrupted))
    stored.lie(prepared)
    replaced, left = serving_pods(ahead, "on-cpus")
    for pod in (*(pod for name in engines for pod in serving_pods(ahead, "ahead", name)), replaced):
        ahead.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")

    for name in engines:
        refused = functools.partial(refusal, ahead, "ahead", name)
        assert "EngineCorrupt" in eventually(refused, 60, f"the refusal by the pod of {name}")
    refused = functools.partial(refusal, ahead, "on-cpus")
    assert "ArtifactCorrupt" in eventually(refused, 60, "the refusal by the pod on a CPU")
    eventually(functools.partial(stored.holds, swapped, recipe), 120, "the engine of its own class")
    for artifact in (*engines.values(), prepared):
        eventually(functools.partial(stored.is_intact, artifact), 120, f"{artifact}")
        assert ahead.condition("on-cpus", "Available")["status"] == "True"
    ahead.wait_condition("ahead", "EnginesReady", "True", "Built", 120)
    ahead.wait_ready("on-cpus", 120)
    pods = {pod["metadata"]["uid"]: pod for pod in serving_pods(ahead, "on-cpus")}
    survivor = pods.pop(left["metadata"]["uid"])
    assert all(each["restartCount"] == 0 for each in survivor["status"]["containerStatuses"])
    for model in ("ahead", "on-cpus"):  # of several engines, that of the first
        assert "is damaged: " in ahead.kubectl("describe", "im", model), "an Event says what"


def refusal(namespace: Namespace, model: str, on: str = "") -> str:
    """Return what the first container of a model's pods said when it failed: nothing is loaded before it succeeds."""
    said = []
    for pod in serving_pods(namespace, model, on):
        for each in pod["status"].get("initContainerStatuses", ())[:1]:
            ended = [each[state].get("terminated", {}) for state in ("state", "lastState")]
            said += [one["message"] for one in ended if one.get("exitCode")]
    return "".join(said)


def test_nodes_outside_the_engine_are_judged_by_the_policy(ahead: Namespace) -> None:
    found = ahead.wait_condition("partly", "Ready", "False", "NodeFallback", 240)
    assert "volume (Det)" in found["message"]
    assert ahead.condition("partly", "EnginesReady")["status"] == "True"
    assert not ahead.items("deployments", "enginewright.dev/model=partly")
    name = engines_of(ahead, "partly")[CLASS]
    ahead.apply(
        inference_model(
            "partly",
            "partly-supported.onnx",
            on=CLASS,
            shapes=SHAPES,
            fallback={"policy": "Budget", "maxNodeShare": "40%"},
        )
    )
    ahead.wait_condition("partly", "Ready", "False", "DriverMissing", 120)
    assert len(engine_jobs(ahead, name)) == 1, "the policy decides nothing of the engine"
    ahead.kubectl("delete", "im", "partly", "--wait=true")
