"""A store in a bucket: one node publishes, another one fetches, and they share no path.

Last of all, since the installation's store changes: models of other tests would move.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.contract.node_cache import CACHE_PORT

from hack.samples.magika import features, label
from tests.e2e import harness, object_store
from tests.e2e.devices import CLASS, COMPONENT, nodes, proposed_class, serving_pods, set_class
from tests.e2e.files import Files
from tests.e2e.harness import Namespace, eventually, http_json, inference_model
from tests.support.node_cache import node_cache_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HOST: Final = "kubernetes.io/hostname"
OTHER_CLASS: Final = "a10"  # of node-1; CLASS is of node-2
MODELS: Final = ("on-cpu", "on-gpus")
SCRIPT: Final = b"import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n\n\nmain()\n" * 4


@dataclass(frozen=True)
class Kept:
    """A namespace, and its part of the bucket as the server keeps it."""

    namespace: Namespace
    folder: Path

    def manifests(self, kind: str) -> list[str]:
        """Return the keys of the artefacts of one kind."""
        return sorted(path.parent.name for path in (self.folder / kind).glob("*/manifest.json"))


@pytest.fixture(scope="module")
def bucket(
    l4: Namespace,
    new_namespace: Callable[[], Namespace],
    file_server: Files,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kept]:
    """A namespace with models, whose store is its part of a bucket."""
    proposed_class(l4, OTHER_CLASS)
    set_class(l4, OTHER_CLASS, aheadOfTime=True, backends=["tensorrt-rtx"])
    folder: Path = tmp_path_factory.mktemp("bucket")
    with object_store.serving(folder) as secret:
        uri = f"store.bucket.uri=s3://{object_store.BUCKET}/artefacts"
        keeps = "store.cache.keepFree=0%"  # whatever the disk of this machine has
        harness.upgrade(uri, "store.bucket.secretRef=store", keeps)
        namespace = new_namespace()
        source = {"uri": file_server.url("magika.onnx")}
        build = {"podTemplate": {"nodeSelector": {HOST: "node-1"}}}
        serve = {"nodeSelector": {HOST: "node-2"}}
        both = [{"class": CLASS}, {"class": OTHER_CLASS}]
        namespace.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "store"},
                "stringData": secret,
            },
            inference_model(
                "on-cpu", "", source=source, backends=["cpu"], build=build, podTemplate=serve
            ),
            inference_model("on-gpus", "", source=source, accelerators=both),
        )
        yield Kept(namespace, folder / "s3" / object_store.BUCKET / "artefacts" / namespace.name)
        namespace.kubectl("delete", "im", *MODELS)
        harness.upgrade("store.bucket.uri=", "store.bucket.secretRef=")


def test_what_one_node_publishes_another_one_serves(bucket: Kept) -> None:
    namespace = bucket.namespace
    namespace.wait_ready("on-cpu", 120)
    selector = f"enginewright.dev/model=on-cpu,{COMPONENT}=prepare"
    assert nodes(namespace.items("pods", selector)) == {"node-1"}
    assert nodes(serving_pods(namespace, "on-cpu")) == {"node-2"}
    tensor = {"name": "bytes", "shape": [1, 2048], "datatype": "INT32", "data": features(SCRIPT)}
    with namespace.forward("service/on-cpu", 80) as url:
        answer = http_json(f"{url}/v2/models/on-cpu/infer", {"inputs": [tensor]})
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

    def fetched() -> str:
        names = {pod["metadata"]["name"] for pod in serving_pods(namespace, "on-cpu")}
        if len(names - {first}) != 1:
            return ""
        (second,) = names - {first}
        log = namespace.kubectl("logs", second, "--container", "fetch-artifact")
        return log if "all digests match" in log else ""

    log = eventually(fetched, 120, "the second pod")
    assert re.search(r", (\S+ \S+), \1 of it from the node's cache, all digests match", log), log
    after = cache_metrics(installed, "node-2")
    assert after["reads_total hit"] > before["reads_total hit"]
    namespace.wait_ready("on-cpu", 120)


def test_engines_of_two_nodes_are_built_of_one_prepared_model(bucket: Kept) -> None:
    namespace = bucket.namespace
    namespace.wait_condition("on-gpus", "EnginesReady", "True", "Built", 240)
    engines = namespace.items("inferenceengines")
    assert bucket.manifests("engines") == sorted(each["spec"]["key"] for each in engines)
    assert len({each["spec"]["preparedKey"] for each in engines}) == 1
    assert nodes(namespace.items("pods", f"{COMPONENT}=engine")) == {"node-1", "node-2"}
    namespace.wait_condition("on-gpus", "Ready", "False", "DriverMissing", 120)
    for name, node in ((CLASS, "node-2"), (OTHER_CLASS, "node-1")):
        (pod,) = serving_pods(namespace, "on-gpus", name)
        assert nodes([pod]) == {node}


def test_pods_share_no_volume_and_only_those_that_fetch_have_the_secret(bucket: Kept) -> None:
    assert bucket.namespace.items("persistentvolumeclaims") == []
    pods: list[dict[str, Any]] = bucket.namespace.items("pods")
    kinds = {kind for pod in pods for each in pod["spec"]["volumes"] for kind in each}
    assert kinds <= {"name", "emptyDir", "secret", "configMap", "downwardAPI"}
    for pod in serving_pods(bucket.namespace, "on-cpu"):
        for container in pod["spec"]["containers"]:
            mounted = {each["name"] for each in container["volumeMounts"]}
            assert "store" not in mounted
