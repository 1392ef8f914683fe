"""A store in a bucket: one node publishes, another one fetches, and they share no path.

The installation's store changes, so this module runs last: models of other tests would move.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from enginewright_contract.node_cache import CACHE_PORT
from onnx import TensorProto, helper, numpy_helper

from hack.samples.magika import label, tensor
from tests.e2e import harness, object_store
from tests.e2e.devices import CLASS, COMPONENT, nodes, serving_pods, set_class, wait_proposed_class
from tests.e2e.files import Files
from tests.e2e.harness import Namespace, eventually, inference_model
from tests.e2e.object_store import ObjectStore
from tests.support.node_cache import node_cache_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HOST: Final = "kubernetes.io/hostname"
OTHER_CLASS: Final = "a10"  # of node-1; CLASS is of node-2
LARGE: Final = "large"
MODELS: Final = ("on-cpu", "on-gpus", LARGE)
PART: Final = 16 << 20  # bytes, of which the runtime makes four requests at a time
SIXTH: Final = "partNumber=6"  # at least two parts are stored before this request
WIDTH: Final = 16
WEIGHTS: Final = np.random.default_rng(5).standard_normal((WIDTH, 100 * 2**14), np.float32)
SCRIPT: Final = b"import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n\n\nmain()\n" * 4


@dataclass(frozen=True)
class Kept:
    """A namespace, and its part of the bucket as the server keeps it."""

    namespace: Namespace
    folder: Path
    server: ObjectStore
    killed: threading.Event  # of the server, while the large model is published

    def manifests(self, kind: str) -> list[str]:
        """Return the keys of the artefacts of one kind."""
        return sorted(path.parent.name for path in (self.folder / kind).glob("*/manifest.json"))

    def files(self) -> dict[str, Path]:
        """Return the files of all artefacts by their digests."""
        return {path.name: path for path in (self.folder / "files").glob("*")}

    def incomplete(self) -> int:
        """Return the bytes of uploads that have begun."""
        parts = (self.server.folder / ".sgwtmp").rglob("*")
        return sum(path.stat().st_size for path in parts if path.is_file())


@pytest.fixture(scope="module")
def bucket(
    l4: Namespace,
    new_namespace: Callable[[], Namespace],
    file_server: Files,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kept]:
    """A namespace with models, whose store is its part of a bucket."""
    wait_proposed_class(l4, OTHER_CLASS)
    set_class(l4, OTHER_CLASS, aheadOfTime=True, backends=["tensorrt-rtx"])
    folder: Path = tmp_path_factory.mktemp("bucket")
    with object_store.serving(folder) as server:
        uri = f"store.bucket.uri=s3://{object_store.BUCKET}/artefacts"
        keeps = "store.cache.keepFree=0%"  # however full this machine's disk is
        harness.upgrade(uri, "store.bucket.secretRef=store", keeps)
        namespace = new_namespace()
        source = {"uri": file_server.url("magika.onnx")}
        stored = {"uri": f"s3://{object_store.BUCKET}/large.onnx", "secretRef": {"name": "store"}}
        onnx.save(large(), server.folder / "large.onnx")
        killed = server.kill_at("PUT", SIXTH)
        build = {"podTemplate": {"nodeSelector": {HOST: "node-1"}}}
        serve = {"nodeSelector": {HOST: "node-2"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}}
        secret |= {"stringData": server.secret}
        both = [{"class": CLASS}, {"class": OTHER_CLASS}]
        namespace.apply(
            secret,
            inference_model(
                "on-cpu", "", source=source, backends=["cpu"], build=build, podTemplate=serve
            ),
            inference_model("on-gpus", "", source=source, accelerators=both),
            inference_model(
                LARGE, "", source=stored, backends=["cpu"], precision="FP32", replicas=0
            ),
        )
        yield Kept(namespace, server.folder / "artefacts" / namespace.name, server, killed)
        namespace.kubectl("delete", "im", *MODELS)
        harness.upgrade("store.bucket.uri=", "store.bucket.secretRef=")


def large() -> onnx.ModelProto:
    """Return x [n, 16] to y [n, 1]: its weights take time to transfer, but little to compute with."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("x", WIDTH), ("y", 1))
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"], name="widen"),
        helper.make_node("ReduceMax", ["wide"], ["y"], axes=[1], name="largest"),
    ]
    graph = helper.make_graph(nodes, LARGE, [x], [y], [numpy_helper.from_array(WEIGHTS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def failures(pods: list[dict[str, Any]], container: str) -> list[str]:
    """Return the termination messages of a container of these pods, where it failed."""
    kinds = ("initContainerStatuses", "containerStatuses")
    statuses = [item for pod in pods for kind in kinds for item in pod["status"].get(kind, ())]
    return [
        ended["message"]
        for status in statuses
        if status["name"] == container
        for ended in (status[state].get("terminated", {}) for state in ("state", "lastState"))
        if ended.get("exitCode")
    ]


# fault: Store | the server of a bucket ends while an artefact is published
def test_a_bucket_server_killed_during_publishing_gets_the_whole_model(
    bucket: Kept,
) -> None:
    """Other models are prepared at the same time."""
    namespace = bucket.namespace
    assert bucket.killed.wait(240)
    assert 2 * PART <= bucket.incomplete() < WEIGHTS.nbytes
    published = bucket.manifests("prepared")
    selector = f"enginewright.dev/model={LARGE},{COMPONENT}=prepare"

    def publish_failures() -> list[str]:
        return failures(namespace.items("pods", selector), "publish")

    (message,) = eventually(publish_failures, 120, "the end of the stage that publishes")
    assert "StoreUnavailable" in message
    assert bucket.manifests("prepared") == published
    assert all(path.stat().st_size < WEIGHTS.nbytes for path in bucket.files().values())
    bucket.server.start()

    def key_of_prepared(model: dict[str, Any]) -> str:
        return str(model.get("status", {}).get("prepared", {}).get("key", ""))

    key = namespace.watch("im", LARGE, key_of_prepared, 240, "the prepared model")
    assert key not in published
    assert key in bucket.manifests("prepared")
    assert max(path.stat().st_size for path in bucket.files().values()) > WEIGHTS.nbytes
    for digest, path in bucket.files().items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


def test_a_node_serves_a_model_published_by_another_node(bucket: Kept) -> None:
    namespace = bucket.namespace
    namespace.wait_ready("on-cpu", 120)
    selector = f"enginewright.dev/model=on-cpu,{COMPONENT}=prepare"
    assert nodes(namespace.items("pods", selector)) == {"node-1"}
    assert nodes(serving_pods(namespace, "on-cpu")) == {"node-2"}
    answer = namespace.infer("on-cpu", tensor(SCRIPT))
    assert label(answer["outputs"][0]["data"]) == "python"
    serving = namespace.get("im", "on-cpu")["status"]["serving"]
    assert serving["preparedKey"] in bucket.manifests("prepared")


def cache_metrics(installed: Namespace, node: str) -> dict[str, float]:
    """Return the metrics of the cache of one node."""
    pods = installed.items("pods", "app.kubernetes.io/component=node-cache")
    (name,) = (pod["metadata"]["name"] for pod in pods if nodes([pod]) == {node})
    path = f"/api/v1/namespaces/{installed.name}/pods/{name}:{CACHE_PORT}/proxy/metrics"
    return node_cache_metrics(installed.kubectl("get", "--raw", path))


def test_the_second_pod_of_a_node_reads_from_its_cache(bucket: Kept, installed: Namespace) -> None:
    namespace = bucket.namespace
    namespace.wait_ready("on-cpu", 120)
    (first,) = (pod["metadata"]["name"] for pod in serving_pods(namespace, "on-cpu"))
    before = cache_metrics(installed, "node-2")
    assert before["writes_total stored"] > 0, "the first pod has offered what it read"
    namespace.kubectl("scale", "im/on-cpu", "--replicas=2")

    def fetch_log() -> str:
        names = {pod["metadata"]["name"] for pod in serving_pods(namespace, "on-cpu")}
        if len(names - {first}) != 1:
            return ""
        (second,) = names - {first}
        log = namespace.kubectl("logs", second, "--container", "fetch-artifact")
        return log if "all digests match" in log else ""

    log = eventually(fetch_log, 120, "the second pod")
    assert re.search(r", (\S+ \S+), \1 of it from the node's cache, all digests match", log), log
    after = cache_metrics(installed, "node-2")
    assert after["reads_total hit"] > before["reads_total hit"]
    namespace.wait_ready("on-cpu", 120)


def test_engines_of_two_nodes_are_built_of_one_prepared_model(bucket: Kept) -> None:
    namespace = bucket.namespace
    namespace.wait_condition("on-gpus", "EnginesReady", "True", "Built", 240)
    engines = namespace.items("inferenceengines")
    assert bucket.manifests("engines") == sorted(engine["spec"]["key"] for engine in engines)
    assert len({engine["spec"]["preparedKey"] for engine in engines}) == 1
    assert nodes(namespace.items("pods", f"{COMPONENT}=engine")) == {"node-1", "node-2"}
    namespace.wait_condition("on-gpus", "Ready", "False", "DriverMissing", 120)
    for name, node in ((CLASS, "node-2"), (OTHER_CLASS, "node-1")):
        (pod,) = serving_pods(namespace, "on-gpus", name)
        assert nodes([pod]) == {node}


def test_pods_share_no_volume_and_only_those_that_fetch_have_the_secret(bucket: Kept) -> None:
    assert bucket.namespace.items("persistentvolumeclaims") == []
    pods: list[dict[str, Any]] = bucket.namespace.items("pods")
    kinds = {kind for pod in pods for item in pod["spec"]["volumes"] for kind in item}
    assert kinds <= {"name", "emptyDir", "secret", "configMap", "downwardAPI"}
    for pod in serving_pods(bucket.namespace, "on-cpu"):
        for container in pod["spec"]["containers"]:
            mounted = {item["name"] for item in container["volumeMounts"]}
            assert "store" not in mounted


# fault: Store | the server of a bucket ends while an artefact is fetched
def test_a_pod_serves_after_its_bucket_server_was_killed_during_fetching(
    bucket: Kept,
) -> None:
    namespace = bucket.namespace
    killed = bucket.server.kill_after(WEIGHTS.nbytes // 2)  # through one connection: of one file
    namespace.kubectl("scale", f"im/{LARGE}", "--replicas=1")
    assert killed.wait(120)

    def fetch_failures() -> list[str]:
        return failures(serving_pods(namespace, LARGE), "fetch-artifact")

    messages = eventually(fetch_failures, 120, "the end of the stage that fetches")
    assert "StoreUnavailable" in messages[0]
    (pod,) = serving_pods(namespace, LARGE)
    assert not any(item.get("started") for item in pod["status"]["containerStatuses"])
    bucket.server.start()
    namespace.wait_ready(LARGE, 240)
    (now,) = serving_pods(namespace, LARGE)
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    log = namespace.kubectl("logs", pod["metadata"]["name"], "--container", "fetch-artifact")
    assert "all digests match" in log
    x = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}
    answer = namespace.infer(LARGE, x)
    assert answer["outputs"][0]["data"] == pytest.approx([WEIGHTS.sum(axis=0).max()], rel=1e-3)
