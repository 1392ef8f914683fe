"""Engines on real nodes: three classes of GPUs, one engine for each key, what the store loses, no traffic without a driver."""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from driver import gpus
from driver.layout import Gpus

from hack.samples.magika import label, tensor
from tests.e2e import stored
from tests.e2e.devices import (
    CLASS,
    COMPONENT,
    SHAPES,
    engine_jobs,
    engines_of,
    nodes,
    serving_pods,
    set_class,
    wait_proposed_class,
)
from tests.e2e.harness import FEWER_GPUS, Namespace, cases, eventually, inference_model
from tests.e2e.test_fallback import MAKEFILE
from tests.support.plan_objects import make_object

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ADDED: Final = "a10"  # of node-1, at first
AWAITED: Final = "rtx-pro-6000"  # of node-1, later
CAPABILITIES: Final = {CLASS: "8.9", ADDED: "8.6", AWAITED: "12.0"}
ON_CPUS: Final = (  # tests of the same model on CPUs
    "test_models_applied_again_build_only_the_engine_of_a_new_class",
    "test_damaged_artefacts_are_refused_and_made_again_while_others_serve",
)
SHARING: Final = [f"sharing-{number}" for number in range(10)]


def labels(product: str) -> dict[str, str]:
    """Return the labels of node-1 with GPUs of this product."""
    return gpus.labels(Gpus(1, product, None, FEWER_GPUS))


def build_jobs(namespace: Namespace) -> dict[str, str]:
    """Return the class of every Job that builds an engine of model `ahead`, by the Job's identity."""
    return {
        job["metadata"]["uid"]: name
        for name, engine in engines_of(namespace, "ahead").items()
        for job in engine_jobs(namespace, engine)
    }


@pytest.fixture(scope="module")
def classes(l4: Namespace) -> Iterator[Namespace]:
    """Classes of three products, one of which no node has yet; all build ahead of time."""
    assert wait_proposed_class(l4, ADDED)["computeCapability"] == CAPABILITIES[ADDED]
    set_class(l4, ADDED, aheadOfTime=True, backends=["tensorrt-rtx"])
    product = "nvidia.com/gpu.product"
    spec = {
        "nodeSelector": {product: labels(AWAITED)[product]},
        "resourceName": "nvidia.com/gpu",
        "computeCapability": CAPABILITIES[AWAITED],
        "backends": ["tensorrt-rtx"],
        "aheadOfTime": True,
    }
    l4.apply(make_object("AcceleratorClass", AWAITED, spec=spec))
    yield l4
    l4.kubectl("label", "node", "node-1", "--overwrite", *_arguments(labels(ADDED)))
    l4.kubectl("delete", "acceleratorclass", AWAITED)


def _arguments(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]


@pytest.fixture(scope="module")
def digest(model_files: Path) -> str:
    """The digest of the model that is served on GPUs, as its spec has it."""
    return hashlib.sha256((model_files / "magika.onnx").read_bytes()).hexdigest()


def ahead_on(digest: str, *classes: str) -> dict[str, Any]:
    """Return a model that is served on some classes of GPUs."""
    accelerators = [{"class": device_class} for device_class in classes]
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


def test_a_model_without_a_driver_gets_no_traffic_and_reports_why(ahead: Namespace) -> None:
    condition = ahead.wait_condition("ahead", "Ready", "False", "DriverMissing", 120)
    assert "libcuda.so.1" in condition["message"]
    assert ahead.condition("ahead", "PlacementVerified")["reason"] == "DriverMissing"
    assert ahead.condition("ahead", "Available")["status"] == "False"
    endpoints = ahead.items("endpointslices", "kubernetes.io/service-name=ahead")
    ready = [
        item
        for one in endpoints
        for item in one.get("endpoints") or ()
        if item["conditions"].get("ready")
    ]
    assert ready == []
    assert nodes(serving_pods(ahead, "ahead", CLASS)) == {"node-2"}
    assert nodes(serving_pods(ahead, "ahead", AWAITED)) == {""}, "it has no node yet"


def test_models_applied_again_build_only_the_engine_of_a_new_class(
    ahead: Namespace, digest: str
) -> None:
    ahead.wait_ready("on-cpus")
    built = build_jobs(ahead)
    ahead.kubectl("delete", "im", "ahead", "on-cpus", "--wait=true")
    ahead.apply(ahead_on(digest, *CAPABILITIES), on_cpus())
    ahead.wait_condition("ahead", "EnginesReady", "True", "Built", 120)
    ahead.wait_ready("on-cpus", 120)
    of_cpus = f"{COMPONENT}=prepare,enginewright.dev/model=on-cpus"
    eventually(lambda: not ahead.items("jobs", of_cpus), 60, "the end of a Job with nothing to do")
    jobs = ahead.items("jobs", f"{COMPONENT}=prepare,enginewright.dev/model=ahead")
    assert not jobs, "its content is known by digest"
    now = build_jobs(ahead)
    assert built.items() < now.items(), "no Job was made again"
    assert [name for job, name in now.items() if job not in built] == [ADDED]
    wait_on(ahead, CLASS, "node-2")
    wait_on(ahead, ADDED, "node-1")
    wait_on(ahead, AWAITED, "")
    deployments = ahead.items("deployments", "enginewright.dev/model=ahead")
    names = {
        deployment["metadata"]["labels"]["enginewright.dev/class"] for deployment in deployments
    }
    assert names == CAPABILITIES.keys()
    assert nodes(serving_pods(ahead, "on-cpus")) == {"node-1", "node-2"}


def wait_on(namespace: Namespace, name: str, node: str) -> None:
    """Wait until the pods of a class of model `ahead` are on a node, or with an empty name on none."""

    def are_there() -> bool:
        return nodes(serving_pods(namespace, "ahead", name)) == {node}

    eventually(are_there, 60, f"the pods of {name} on {node or 'no node'}")


# event: Classes | a node gets the labels of another class's devices | all pods; those of the other class start
#   there, with the engine that they have | Ready of both classes: `NodesFound`, `NoMatchingNode`
def test_a_node_that_gets_the_labels_of_a_class_gets_its_pods_and_nothing_is_built(
    ahead: Namespace,
) -> None:
    built = build_jobs(ahead)
    ahead.kubectl("label", "node", "node-1", "--overwrite", *_arguments(labels(AWAITED)))
    wait_on(ahead, AWAITED, "node-1")

    def reason(name: str) -> str:
        return str(ahead.get("acceleratorclass", name)["status"]["conditions"][0]["reason"])

    eventually(lambda: reason(AWAITED) == "NodesFound", 60, "the class with a node")
    eventually(lambda: reason(ADDED) == "NoMatchingNode", 60, "the class without")
    (left,) = serving_pods(ahead, "ahead", ADDED)
    # as the node's drain would
    ahead.kubectl("delete", "pod", left["metadata"]["name"], "--wait=false")
    wait_on(ahead, ADDED, "")
    ahead.kubectl("label", "node", "node-1", "--overwrite", *_arguments(labels(ADDED)))
    wait_on(ahead, ADDED, "node-1")
    assert build_jobs(ahead) == built
    assert ahead.condition("ahead", "EnginesReady")["reason"] == "Built"


def test_an_interim_goes_on_serving_if_the_engine_cannot(
    ahead: Namespace,
) -> None:
    """The engine is real, but cannot be loaded here; CPUs serve as the interim."""
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "none"}}

    def bridge(workspace: str, **more: Any) -> None:
        build = {"interim": "CPU", "workspace": workspace, **more}
        ahead.apply(inference_model("bridged", "magika.onnx", on=CLASS, build=build))

    bridge("1Gi")
    ahead.wait_condition("bridged", "EnginesReady", "True", "Built", 240)
    bridge("2Gi", podTemplate=nowhere)  # another engine, which waits for its node
    ahead.wait_condition("bridged", "Ready", "True", "ServingInterim", 180)
    ahead.wait_condition("bridged", "EnginesReady", "False", "Queued", 60)
    ahead.wait_condition("bridged", "FallbackActive", "False", "NoFallback", 60)
    assert ahead.get("im", "bridged")["status"]["summary"]["backend"] == "cpu (interim)"

    def only_pod() -> list[dict[str, Any]]:
        pods = serving_pods(ahead, "bridged", CLASS)
        return pods if len(pods) == 1 else []

    (pod,) = eventually(only_pod, 60, "the pod of the interim, and no other")
    assert nodes([pod]) == {"node-2"}
    answers_right(ahead, pod)
    bridge("2Gi")
    ahead.wait_condition("bridged", "EnginesReady", "True", "Built", 120)
    rollback = ahead.wait_condition("bridged", "RolledBack", "True", "DriverMissing", 120)
    assert "restored" in rollback["message"]
    assert ahead.condition("bridged", "Available")["status"] == "True"
    answers_right(ahead, pod)
    ahead.kubectl("delete", "im", "bridged", "--wait=true")


def answers_right(namespace: Namespace, pod: Mapping[str, Any]) -> None:
    """Send a request to model `bridged`, which this pod serves without a restart."""
    answer = namespace.infer("bridged", tensor(MAKEFILE))
    assert label(answer["outputs"][0]["data"]) == "makefile"
    now = namespace.get("pod", pod["metadata"]["name"])
    assert all(item["restartCount"] == 0 for item in now["status"]["containerStatuses"])


def test_ten_models_of_one_key_are_built_once(ahead: Namespace, model_files: Path) -> None:
    """They have no pods. The last one may be applied after the first is prepared."""
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

    engine = eventually(lambda: again(CLASS), 120, "the engine from the store")
    assert engine["cached"] is True
    assert engine["sha256"] == deleted[CLASS]["status"]["engine"]["sha256"]
    assert "store" in ahead.kubectl("describe", "ieng", names[CLASS])
    engine = eventually(lambda: again(AWAITED), 120, "the engine that was cut")
    assert not engine.get("cached"), "it was built"
    assert stored.is_intact(cut)


# fault: Store | a file or a manifest is corrupted, truncated, swapped or removed, or names what is not its own
def test_damaged_artefacts_are_refused_and_made_again_while_others_serve(
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
    eventually(functools.partial(stored.holds, swapped, recipe), 120, "the engine of this class")
    for artifact in (*engines.values(), prepared):
        eventually(functools.partial(stored.is_intact, artifact), 120, f"{artifact}")
        assert ahead.condition("on-cpus", "Available")["status"] == "True"
    ahead.wait_condition("ahead", "EnginesReady", "True", "Built", 120)
    ahead.wait_ready("on-cpus", 120)
    pods = {pod["metadata"]["uid"]: pod for pod in serving_pods(ahead, "on-cpus")}
    survivor = pods.pop(left["metadata"]["uid"])
    assert all(item["restartCount"] == 0 for item in survivor["status"]["containerStatuses"])
    for model in ("ahead", "on-cpus"):  # of several engines, that of the first
        assert "is damaged: " in ahead.kubectl("describe", "im", model), "an Event says what"


def refusal(namespace: Namespace, model: str, on: str = "") -> str:
    """Return the termination messages of the first init container of a model's pods, where it failed."""
    return "".join(
        ended["message"]
        for pod in serving_pods(namespace, model, on)
        for status in pod["status"].get("initContainerStatuses", ())[:1]
        for ended in (status[state].get("terminated", {}) for state in ("state", "lastState"))
        if ended.get("exitCode")
    )


def test_nodes_outside_the_engine_are_judged_by_the_policy(ahead: Namespace) -> None:
    condition = ahead.wait_condition("partly", "Ready", "False", "NodeFallback", 240)
    assert "volume (Det)" in condition["message"]
    assert ahead.condition("partly", "EnginesReady")["status"] == "True"
    assert not ahead.items("deployments", "enginewright.dev/model=partly")
    name = engines_of(ahead, "partly")[CLASS]
    fixed: dict[str, Any] = {"on": CLASS, "shapes": SHAPES}
    budget = {"policy": "Budget", "maxNodeShare": "40%"}
    ahead.apply(inference_model("partly", "partly-supported.onnx", fallback=budget, **fixed))
    ahead.wait_condition("partly", "Ready", "False", "DriverMissing", 120)
    assert len(engine_jobs(ahead, name)) == 1, "the policy decides nothing of the engine"
    ahead.kubectl("delete", "im", "partly", "--wait=true")
