"""The main job: a manifest becomes a Service that answers and behaves as a Kubernetes user expects."""

import contextlib
import http.client
import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from enginewright.plan.rollout.proofs import proofs
from enginewright_contract.task import Promise
from enginewright_contract.verdict import Verdict
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from hack.samples.magika import label, tensor
from tests.e2e.files import Files
from tests.e2e.harness import SHORT_HOLD, Namespace, eventually, http_json, inference_model
from tests.e2e.test_fallback import metrics, value
from tests.support.certificates import Authority

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GUARDED = "enginewright.dev/model=guarded,enginewright.dev/component=serve"
PYTHON_SOURCE = b"""\
import asyncio

async def main() -> None:
    async with asyncio.timeout(3):
        await asyncio.sleep(1)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def served(namespace: Namespace) -> Namespace:
    namespace.apply(inference_model("magika", "magika.onnx"))
    namespace.wait_ready("magika")
    return namespace


@pytest.fixture(scope="module")
def elsewhere(
    namespace: Namespace, new_namespace: Callable[[], Namespace], file_server: Files
) -> Namespace:
    """Models for later tests, applied when no test counts the operator's writes; a second namespace."""
    namespace.apply(inference_model("classify", "classify.onnx", backends=["cpu"]))
    elsewhere = new_namespace()
    source = {"uri": file_server.url("magika.onnx")}
    elsewhere.apply(inference_model("remote", "", source=source))
    return elsewhere


def test_the_service_answers_a_meaningful_request(served: Namespace) -> None:
    answer = served.infer("magika", tensor(PYTHON_SOURCE))
    with served.forward("service/magika", 80) as url:
        execution = http_json(f"{url}/v2/models/magika/execution")
    assert label(answer["outputs"][0]["data"]) == "python"
    assert "OpenVINOExecutionProvider" in json.dumps(execution)


def test_scale_puts_pods_on_both_nodes(served: Namespace) -> None:
    served.kubectl("scale", "im/magika", "--replicas=2")
    served.kubectl("wait", "--for=condition=Ready=False", "im/magika", "--timeout=30s")
    served.wait_ready("magika")
    pods = served.items("pods", "enginewright.dev/model=magika,enginewright.dev/component=serve")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    assert served.get("inferencemodel", "magika")["status"]["replicas"] == 2


def test_a_second_apply_and_a_restart_write_nothing(
    served: Namespace, installed: Namespace
) -> None:
    served.apply(inference_model("magika", "magika.onnx", replicas=2))
    served.wait_ready("magika")
    eventually(
        lambda: _is_measured(served, "magika"), 120, "the baselines of both pods in the status"
    )
    _wait_idle(installed, 0)
    writes, versions, passes = _writes(installed), _versions(served), _passes(installed)
    assert "unchanged" in served.apply(inference_model("magika", "magika.onnx", replicas=2))
    # an unchanged object causes no event; an annotation does, so that the operator reconciles again
    served.kubectl("annotate", "im/magika", "example.com/note=seen", "--overwrite")
    _wait_idle(installed, passes)
    assert _writes(installed) == writes
    assert _versions(served) == versions

    installed.kubectl("rollout", "restart", "deployment/enginewright")
    installed.kubectl("rollout", "status", "deployment/enginewright", "--timeout=90s")
    _wait_idle(installed, 0)
    assert _versions(served) == versions
    assert _writes(installed) == 0, installed.kubectl("logs", "deployment/enginewright")


@pytest.mark.usefixtures("elsewhere")
def test_an_update_replaces_the_model_without_a_gap(served: Namespace) -> None:
    rollout = {"canary": SHORT_HOLD}
    served.apply(
        inference_model("magika", "magika.onnx", serving={"maxQueue": 17}, rollout=rollout)
    )
    served.kubectl("wait", "--for=condition=Ready=False", "im/magika", "--timeout=30s")
    assert served.condition("magika", "Available")["status"] == "True"
    served.wait_ready("magika")


def test_tls_and_tokens_by_secret(namespace: Namespace, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue(), authority.issue()

    def secret(name: str, kind: str, **contents: str) -> None:
        metadata = {"name": name, "namespace": namespace.name}
        body = {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata}
        namespace.apply({**body, "stringData": contents})

    secret("certificate", "kubernetes.io/tls", **first.files)
    secret("clients", "Opaque", shop="t0ken-of-the-shop")
    references = {"tls": "certificate", "auth": "clients"}
    serving = {field: {"secretRef": {"name": name}} for field, name in references.items()}
    namespace.apply(inference_model("guarded", "magika.onnx", serving=serving))
    namespace.wait_ready("guarded")
    pods = {entry["metadata"]["uid"] for entry in namespace.items("pods", GUARDED)}
    context = ssl.create_default_context(cafile=authority.path)
    with namespace.forward("service/guarded", 443) as url:
        port = int(url.rpartition(":")[2])

        def request(token: str) -> tuple[int, str]:
            """Return the status of a request, and the certificate in use."""
            connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
            with contextlib.closing(connection):
                connection.connect()
                certificate = connection.sock.getpeercert(binary_form=True)
                headers = {"Authorization": f"Bearer {token}"}
                connection.request("GET", "/v2/models/guarded", headers=headers)
                return connection.getresponse().status, str(certificate)

        assert request("wrong")[0] == 401
        status, before = request("t0ken-of-the-shop")
        assert status == 200
        secret("certificate", "kubernetes.io/tls", **second.files)
        secret("clients", "Opaque", shop="t0ken-after-it")
        eventually(lambda: request("t0ken-after-it")[0] == 200, 180, "the new token")
        assert request("t0ken-of-the-shop")[0] == 401
        eventually(lambda: request("t0ken-after-it")[1] != before, 180, "the new certificate")
    assert {entry["metadata"]["uid"] for entry in namespace.items("pods", GUARDED)} == pods
    namespace.kubectl("delete", "im", "guarded")


def test_deleting_leaves_only_the_cache(namespace: Namespace) -> None:
    namespace.apply(inference_model("shortlived", "magika.onnx"))
    eventually(lambda: namespace.items("jobs", "enginewright.dev/model=shortlived"), 60)
    namespace.kubectl("delete", "im/shortlived", "--wait=true")
    kinds = "jobs,pods,deployments,services,poddisruptionbudgets,controllerrevisions"
    eventually(
        lambda: not namespace.items(kinds, "enginewright.dev/model=shortlived"), 90, "the removal"
    )
    assert namespace.items("persistentvolumeclaims")


def zeros(*shape: int) -> InferInput:
    x = InferInput("x", shape, "FP32")
    x.set_data_from_numpy(np.zeros(shape, np.float32), binary_data=True)
    return x


@pytest.mark.usefixtures("elsewhere")
def test_declared_shapes_on_the_cpu_backend_with_tritons_client(namespace: Namespace) -> None:
    """Without shapes, every size of a dynamic dimension is served; declared shapes are limits."""
    namespace.wait_ready("classify")
    with namespace.forward("service/classify", 80) as url:
        client = InferenceServerClient(url.removeprefix("http://"))
        assert client.infer("classify", [zeros(1, 3, 64, 416)]).get_response()["outputs"]
    profile = {"input": "x", "min": [1, 3, 48, 192], "opt": [2, 3, 48, 192], "max": [4, 3, 48, 192]}

    def revision() -> str:
        return str(namespace.get("inferencemodel", "classify")["status"]["serving"]["revision"])

    before = revision()
    namespace.apply(
        inference_model(
            "classify",
            "classify.onnx",
            backends=["cpu"],
            shapes=[profile],
            # fewer shapes than before
            rollout={"allowSignatureChange": True, "canary": SHORT_HOLD},
        )
    )
    eventually(lambda: revision() != before, 180, "the revision with declared shapes")
    namespace.wait_ready("classify")
    with namespace.forward("service/classify", 80) as url:
        client = InferenceServerClient(url.removeprefix("http://"))
        name = client.get_model_metadata("classify")["outputs"][0]["name"]
        scores = client.infer("classify", [zeros(2, 3, 48, 192)]).as_numpy(name)
        assert scores.shape == (2, 2)
        np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-3)
        (counted,) = client.get_inference_statistics("classify")["model_stats"]
        assert counted["inference_stats"]["success"]["count"] >= 1
        assert counted["last_inference"]
        exposed = metrics(namespace, "classify")
        assert value(exposed, "enginewright_request_duration_seconds_count", 'code="2xx"') >= 1
        assert value(exposed, "enginewright_request_bytes_sum") > 2 * 3 * 48 * 192 * 4
        assert value(exposed, "enginewright_requests_in_flight") == 0
        with pytest.raises(InferenceServerException, match="4"):
            client.infer("classify", [zeros(9, 3, 48, 192)])
    namespace.kubectl("delete", "im", "classify")


def test_a_source_over_http_serves(elsewhere: Namespace) -> None:
    elsewhere.wait_ready("remote")
    eventually(lambda: _is_measured(elsewhere, "remote"), 120, "the verdict")
    document = {"inputs": [tensor(PYTHON_SOURCE)]}
    with elsewhere.forward("service/remote", 80) as url:
        for count in range(1, 9):  # each on a new connection
            answer = http_json(f"{url}/v2/models/remote/infer", document)
            assert label(answer["outputs"][0]["data"]) == "python"
            (counted,) = http_json(f"{url}/v2/models/remote/stats")["model_stats"]
            assert counted["inference_count"] == count


def _is_measured(served: Namespace, model: str) -> bool:
    """Return whether all sidecars have their baselines and the status reports the measurements."""
    pods = served.items("pods", f"enginewright.dev/model={model},enginewright.dev/component=serve")
    path = "/api/v1/namespaces/{}/pods/{}:8081/proxy/verdict"
    names = [pod["metadata"]["name"] for pod in pods]
    answers = [served.kubectl("get", "--raw", path.format(served.name, name)) for name in names]
    verdicts = [*map(Verdict.model_validate_json, answers)]
    proven = proofs(verdicts, Promise())
    summary = served.get("inferencemodel", model)["status"]["summary"]
    if proven is None or not all(verdict.baseline for verdict in verdicts):
        return False
    return bool(summary.get("p99", "") == proven.p99)


def _metrics(installed: Namespace) -> str:
    pods = installed.items(
        "pods", "app.kubernetes.io/name=enginewright,app.kubernetes.io/component=operator"
    )
    (pod,) = (
        entry["metadata"]["name"] for entry in pods if "deletionTimestamp" not in entry["metadata"]
    )
    path = f"/api/v1/namespaces/{installed.name}/pods/{pod}:8080/proxy/metrics"
    return installed.kubectl("get", "--raw", path)


def _writes(installed: Namespace) -> float:
    """Count the operator's API requests that are not reads."""
    pattern = r'^rest_client_requests_total\{[^}]*method="(?!GET)[A-Z]+"[^}]*\} ([0-9.e+]+)$'
    return sum(float(value) for value in re.findall(pattern, _metrics(installed), re.MULTILINE))


def _passes(installed: Namespace) -> float:
    """Count the reconcile passes of all controllers."""
    pattern = r"^controller_runtime_reconcile_total\{[^}]*\} ([0-9.e+]+)$"
    return sum(float(item) for item in re.findall(pattern, _metrics(installed), re.MULTILINE))


def _wait_idle(installed: Namespace, passes: float) -> None:
    """Wait until the operator has made more than `passes` passes and is idle."""

    def idle() -> bool:
        pattern = r"^workqueue_depth\{[^}]*\} ([0-9.e+]+)$"
        depths = re.findall(pattern, _metrics(installed), re.MULTILINE)
        return _passes(installed) > passes and all(float(depth) == 0 for depth in depths)

    eventually(idle, 60, "an idle queue")


def _versions(namespace: Namespace) -> dict[str, str]:
    kinds = "inferencemodels,jobs,deployments,services,poddisruptionbudgets,controllerrevisions,persistentvolumeclaims"
    return {
        f"{entry['kind']}/{entry['metadata']['name']}": json.dumps(
            [entry["metadata"].get("generation"), entry.get("spec"), entry.get("status")]
        )
        for entry in namespace.items(kinds)
        if entry["metadata"]["name"].startswith(("magika", "enginewright"))
    }
