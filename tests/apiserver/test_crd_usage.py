"""The resources in kubectl: defaults, explain, scale, columns, status."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from enginewright.api.conditions import Condition
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import (
    InferenceModelStatus,
    ModelSummary,
    Preparation,
    Prepared,
    ServingClass,
    ServingState,
)
from enginewright.api.job_failure import JobFailure

from tests.e2e.harness import REPOSITORY, Namespace
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver

EVERYTHING = """
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata: {name: resnet50}
spec:
  source:
    uri: s3://models/resnet50/model.onnx
    sha256: 9f2c0000000000000000000000000000000000000000000000000000000000ff
    secretRef: {name: s3-reader}
    refreshInterval: 0s
  extensions: [{type: ONNXRuntimeExtensions}]
  processing:
    before:
      - uri: s3://models/resnet50/decode.onnx
        sha256: 9f2c0000000000000000000000000000000000000000000000000000000000ff
        secretRef: {name: s3-reader}
    after: [{uri: s3://models/resnet50/labels.onnx}]
  targetOpset: 17
  precision: INT8
  quantization:
    calibration: {uri: s3://models/resnet50/calib.npz, samples: 512, method: MinMax}
    perChannel: true
    maxExcludedShare: 25%
    rest: FP32
  shapes:
    - {input: images, min: [1,3,224,224], opt: [8,3,224,224], max: [32,3,224,224], range: {low: "0", high: "1"}}
  parity: {samples: {uri: s3://models/resnet50/golden.npz}, rtol: "0.01", atol: "1e-3", outputs: [{name: y, acceptUnjudged: true}]}
  backends: [tensorrt, cuda]
  replicas: 2
  accelerators:
    - {class: a100-80gb, replicas: 2}
    - {class: l4, replicas: 4}
  build:
    workspace: 4Gi
    optimizationLevel: 4
    timeout: 1h
    resources: {}
    interim: CPU
    choose: Fastest
    podTemplate:
      labels: {kueue.x-k8s.io/queue-name: builds}
      nodeSelector: {pool: builds}
      tolerations: [{key: builds, operator: Exists}]
      priorityClassName: low
      securityContext: {runAsUser: 1000, fsGroup: 1000}
  fallback: {policy: Budget, maxComputeShare: "2%", maxNodeShare: "5%"}
  rollout:
    strategy: Surge
    canary: {replicas: 1, steps: ["10%", "50%"], hold: 5m, minSamples: 400, probeTraffic: true}
    analysis: {maxLatencyRatio: "1.2", maxErrorShare: "0.1%", maxMemoryGrowth: "20%", maxOutputDifference: "0.05"}
    onFailure: Rollback
    allowSignatureChange: false
    progressTimeout: 30m
    paused: false
  serving:
    maxQueue: 256
    batching: {maxSize: 8, maxDelay: 5ms}
    requestTimeout: 10s
    accessLog: {sample: 0.1%, failed: All}
    tracing: {endpoint: "http://collector.monitoring:4318", sample: 0.1%}
    embeddings: {pooling: Mean, normalize: true, output: last_hidden_state, mask: attention_mask}
    maxConcurrentRuns: 2
    startupTimeout: 20m
    auth: {secretRef: {name: clients}}
    tls: {secretRef: {name: certificate}}
    terminationGracePeriod: 2m
    sidecar:
      resources: {requests: {cpu: 10m}}
      env: [{name: LEVEL, value: debug}]
  podTemplate:
    labels: {team: vision}
    env:
      - {name: OMP_NUM_THREADS, value: "4"}
      - {name: KEY, valueFrom: {secretKeyRef: {name: keys, key: a}}}
    topologySpreadConstraints:
      - {topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, maxSkew: 1, minDomains: 2}
      - {topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, maxSkew: 2}
    volumes:
      - {name: data, persistentVolumeClaim: {claimName: data}}
      - {name: config, configMap: {name: config}}
    volumeMounts:
      - {name: data, mountPath: /data, readOnly: true}
      - {name: config, mountPath: /etc/config, subPath: a, readOnly: false}
    securityContext: {runAsUser: 1000, fsGroup: 2000, supplementalGroups: [3000]}
    containerSecurityContext: {readOnlyRootFilesystem: false}
    annotations: {example.com/note: "a note, of any kind"}
    resources: {requests: {cpu: 2, memory: 4Gi}, limits: {memory: 8Gi, nvidia.com/gpu: "1"}}
    nodeSelector: {disk: ssd}
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
    affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
    serviceAccountName: reader
    imagePullSecrets: [{name: registry}]
    runtimeClassName: nvidia
    priorityClassName: high
"""

NOW = datetime(2026, 11, 21, 4, 44, 30, tzinfo=UTC)
STATUS = InferenceModelStatus(
    observed_generation=1,
    replicas=6,
    selector="enginewright.dev/model=resnet50",
    revision="5d41402abc",
    conditions=(
        Condition(
            type="Ready",
            status="True",
            reason="Serving",
            message="all 6 pods of revision 5d41402abc are ready",
            observed_generation=1,
            last_transition_time=NOW,
        ),
    ),
    preparation=Preparation(
        inputs_hash="ab" * 32,
        job="resnet50-prepare-1",
        stage="validate",
        attempt=2,
        failure=JobFailure(
            stage="fetch",
            reason="SourceUnreachable",
            message="no route to host",
            time=NOW,
            attempts=1,
        ),
    ),
    prepared=Prepared(
        inputs_hash="ab" * 32,
        key="cd" * 32,
        model_digest="ef" * 32,
        opset=17,
        ir_version=8,
        nodes=122,
        size_bytes=102_400_000_000,
    ),
    serving=ServingState(
        revision="5d41402abc",
        prepared_key="cd" * 32,
        model_digest="ef" * 32,
        backend="openvino",
        classes=(
            ServingClass(class_name="a100-80gb", backend="openvino", replicas=2, ready_replicas=2),
            ServingClass(class_name="l4", backend="cpu", replicas=4, ready_replicas=4),
        ),
    ),
    summary=ModelSummary(
        backend="openvino",
        placement="97% OpenVINO",
        classes="a100-80gb 2/2, l4 4/4",
        p99="12ms",
        revision="5d41402abc",
    ),
)


def smallest(**spec: Any) -> dict[str, Any]:
    return make_object(
        "InferenceModel", "resnet50", spec={"source": {"uri": "pvc://models/model.onnx"}, **spec}
    )


def write_status(namespace: Namespace) -> None:
    body = {"status": STATUS.model_dump(mode="json", by_alias=True, exclude_none=True)}
    namespace.patch("inferencemodel", "resnet50", body, "status")


def get_scale(namespace: Namespace) -> dict[str, Any]:
    models = f"/apis/enginewright.dev/v1alpha1/namespaces/{namespace.name}/inferencemodels"
    return dict(json.loads(namespace.kubectl("get", "--raw", f"{models}/resnet50/scale")))


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of `kubectl get` by column; cells are cut where the header's words begin."""
    header, *lines = text.splitlines()
    names, starts = zip(
        *((match[0], match.start()) for match in re.finditer(r"\S+", header)), strict=True
    )
    ends = [*starts[1:], None]
    return [
        {
            name: line[start:end].strip()
            for name, start, end in zip(names, starts, ends, strict=True)
        }
        for line in lines
    ]


def test_an_address_is_enough_and_the_rest_is_filled_in(namespace: Namespace) -> None:
    namespace.apply(smallest())
    assert namespace.get("inferencemodel", "resnet50")["spec"] == {
        "source": {"uri": "pvc://models/model.onnx", "refreshInterval": "0s"},
        "replicas": 1,
        "build": {"choose": "First", "interim": "None", "timeout": "1h"},
        "fallback": {"policy": "Forbid"},
        "rollout": {
            "strategy": "Surge",
            "canary": {"replicas": 1, "hold": "1m", "minSamples": 200, "probeTraffic": True},
            "analysis": {
                "maxLatencyRatio": "1.2",
                "maxErrorShare": "0.1%",
                "maxMemoryGrowth": "20%",
            },
            "onFailure": "Rollback",
            "allowSignatureChange": False,
            "paused": False,
        },
        "serving": {
            "maxQueue": 256,
            "requestTimeout": "60s",
            "batching": {"maxSize": 32, "maxDelay": "0s"},
        },
    }


def test_the_servers_defaults_are_the_models_defaults(namespace: Namespace) -> None:
    namespace.apply(smallest())
    stored = InferenceModel.model_validate(namespace.get("inferencemodel", "resnet50"))
    assert stored.spec == InferenceModel.model_validate(smallest()).spec


def test_every_field_is_accepted_and_survives(namespace: Namespace) -> None:
    body = yaml.safe_load(EVERYTHING)
    namespace.apply(body)
    assert namespace.get("im", "resnet50")["spec"] == body["spec"]


def test_the_largest_object_is_within_the_cost_of_the_rules(namespace: Namespace) -> None:
    sizes = [2**31 - 1] * 16
    labels = {f"example.com/{number:063}": "x" * 63 for number in range(64)}
    quantities = {f"example.com/{number}": "123456789Ki" for number in range(6)}
    resources = {"cpu": "1", "memory": "1Gi", **quantities}
    namespace.apply(
        smallest(
            shapes=[
                {"input": f"{number:0256}", "min": sizes, "opt": sizes, "max": sizes,
                 "range": {"low": "-1e-99", "high": "1e+99"}}
                for number in range(64)
            ],
            accelerators=[{"class": f"{number:063}"} for number in range(16)],
            build={"resources": {"requests": resources, "limits": resources}},
            podTemplate={
                "labels": labels, "nodeSelector": labels,
                "annotations": dict.fromkeys(labels, "x" * 1000),
                "resources": {"requests": resources, "limits": resources},
            },
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("im.spec.shapes", "Larger requests are rejected."),
        (
            "im.spec.shapes",
            "min <[]integer> -required- Smallest size of every dimension, such as [1, 3, 224, 224];",
        ),
        ("im.spec.source.uri", "External data files must be in the same folder."),
        ("im.spec.build.interim", "What serves on a class until its first engine is built"),
        ("im.spec.podTemplate.tolerations.effect", "Effect of the taint; absent: every effect."),
        ("im.status.serving", "The revision that serves now; absent: none."),
        ("aclass.spec.computeCapability", 'in quotes, such as "8.9".'),
    ],
)
def test_explain_teaches_every_field(namespace: Namespace, field: str, sentence: str) -> None:
    assert sentence in " ".join(namespace.kubectl("explain", field).split())


def test_scale(namespace: Namespace) -> None:
    namespace.apply(smallest())
    write_status(namespace)
    namespace.kubectl("scale", "inferencemodel/resnet50", "--replicas=3")
    assert namespace.get("im", "resnet50")["spec"]["replicas"] == 3
    scale = get_scale(namespace)
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 6, "selector": "enginewright.dev/model=resnet50"}


def test_columns(namespace: Namespace) -> None:
    namespace.apply(smallest())
    write_status(namespace)
    (row,) = table(namespace.kubectl("get", "im"))
    assert row.pop("AGE")
    assert row == {
        "NAME": "resnet50",
        "READY": "True",
        "REASON": "Serving",
        "STAGE": "",
        "BACKEND": "openvino",
        "PLACEMENT": "97% OpenVINO",
        "CLASSES": "a100-80gb 2/2, l4 4/4",
        "P99": "12ms",
        "REVISION": "5d41402abc",
    }
    (wide,) = table(namespace.kubectl("get", "im", "--output", "wide"))
    assert wide["DIGEST"] == "ef" * 32
    assert wide["OPSET"] == "17"


def test_columns_of_classes(namespace: Namespace) -> None:
    spec = {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100"},
        "resourceName": "nvidia.com/mig-1g.10gb",
        "computeCapability": "8.0",
        "backends": ["tensorrt", "cuda"],
    }
    namespace.apply(make_object("AcceleratorClass", "mig-1g-10gb", spec=spec))
    status = {"status": {"observedGeneration": 1, "nodes": 3}}
    namespace.patch("aclass", "mig-1g-10gb", status, "status")
    (row,) = table(namespace.kubectl("get", "aclass", "mig-1g-10gb"))
    assert row["NODES"] == "3"
    assert row["BACKENDS"] == '["tensorrt","cuda"]'
    assert row["RESOURCE"] == "nvidia.com/mig-1g.10gb"
    stored = namespace.get("aclass", "mig-1g-10gb")
    assert stored["spec"] == {**spec, "aheadOfTime": False}
    namespace.delete("aclass", "mig-1g-10gb")


def test_a_status_survives_and_leaves_the_spec_alone(namespace: Namespace) -> None:
    namespace.apply(smallest())
    before = namespace.get("im", "resnet50")
    write_status(namespace)
    namespace.kubectl("wait", "--for=condition=Ready", "im/resnet50", "--timeout=10s")
    after = namespace.get("im", "resnet50")
    assert InferenceModel.model_validate(after).status == STATUS
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    namespace.apply(smallest(replicas=2) | {"status": {"replicas": 99}})
    changed = namespace.get("im", "resnet50")
    assert changed["status"] == after["status"]
    assert changed["metadata"]["generation"] == before["metadata"]["generation"] + 1


@pytest.mark.parametrize("page", ["resource", "accelerators"])
def test_the_documentation_can_be_applied(namespace: Namespace, page: str) -> None:
    text = (REPOSITORY / f"docs/{page}.md").read_text()
    blocks = re.findall(r"```yaml\n(apiVersion: .*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        namespace.kubectl("create", "--dry-run=server", "--filename", "-", stdin=block)


@pytest.mark.parametrize("flag", ["--server-side", "--server-side=false"])
def test_a_model_that_the_operator_has_not_seen_is_not_finished(
    namespace: Namespace, flag: str
) -> None:
    """Tools that follow kstatus take a status without an observed generation for finished."""
    manifest = yaml.safe_dump(smallest())
    shown = namespace.kubectl("apply", flag, "--output=json", "--filename=-", stdin=manifest)
    unseen = {"observedGeneration": -1}
    assert json.loads(shown).get("status", unseen) == unseen
    for listed in (namespace.get("im", "resnet50"), *namespace.items("im")):
        assert listed["status"] == unseen
        assert InferenceModel.model_validate(listed).status == InferenceModelStatus(
            observed_generation=-1
        )
    (row,) = table(namespace.kubectl("get", "im"))
    assert row["NAME"] == "resnet50"
    scale = get_scale(namespace)
    assert scale["status"] == {"replicas": 0}
    write_status(namespace)
    namespace.kubectl("apply", flag, "--filename=-", stdin=manifest)
    stored = namespace.get("im", "resnet50")
    assert InferenceModel.model_validate(stored).status == STATUS
