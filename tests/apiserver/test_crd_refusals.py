"""Specifications that the API server rejects, with messages that state what to write instead."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.harness import CommandError, Namespace
from tests.support.api_requests import RefusedError
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver

Spec = dict[str, Any]
Case = tuple[
    str, Spec, str, str
]  # its name, the spec's change, the field that the message names, the message
Table = dict[str, dict[str, list[Any]]]  # values by field by message

SHA256 = "write the sha256 as 64 lowercase hexadecimal digits, as `sha256sum FILE` prints it"
PVC = (
    "write pvc://CLAIM/PATH: the name of a PersistentVolumeClaim in this namespace and the path of"
    " the file inside it"
)
DURATION = "write a duration in whole hours, minutes and seconds: 1h, 90s, 1h30m, or 0s for none"
PERCENT = 'write a share as a percentage between 0% and 100%, such as "2%" or "0.1%"'
TOLERANCE = (
    'write a tolerance as a decimal number of at least 0 in quotes, such as "0.01" or "1e-3"'
)
QUANTITY = "write a quantity as Kubernetes does: 2, 500m, 4Gi"
OBJECT_NAME = "write the name of a Kubernetes object: lowercase letters, digits, '-' and '.'"
DIMENSION = "write every dimension as a fixed size of at least 1, never 0, -1 or a name"
LEAST = "write every dimension as a fixed size, 0 where it may be empty, never -1 or a name"
ONCE = "name each backend once, the preferred one first"
OUR_NAMES = "names below enginewright.dev/ belong to the operator: choose another prefix"
PROGRESS = "write a rollout.progressTimeout of at least serving.startupTimeout"
BUNDLED = "ONNXRuntimeExtensions"
STEP = {"uri": "pvc://a/b.onnx"}


def shape(**changes: object) -> list[Spec]:
    profile = {"input": "x", "min": [1, 3], "opt": [8, 3], "max": [32, 3], **changes}
    return [{name: value for name, value in profile.items() if value is not None}]


def mount(path: str) -> Spec:
    volume = {"name": "data", "emptyDir": {}}
    mounts = [{"name": "data", "mountPath": path}]
    return {"podTemplate": {"volumes": [volume], "volumeMounts": mounts}}


def of_changes(table: Table) -> Iterator[Case]:
    """Yield the cases of a table whose values are changes of the whole spec."""
    for sentence, fields in table.items():
        for where, changes in fields.items():
            for change in changes:
                yield f"{where} of {change}", change, f"spec.{where}", sentence


def of_fields(table: Table) -> Iterator[Case]:
    """Yield the cases of a table whose values belong to the field, up to its first index."""
    for sentence, fields in table.items():
        for where, values in fields.items():
            for value in values:
                change = value
                for name in reversed(where.partition("[")[0].split(".")):
                    change = {name: change}
                yield f"{where}={value}", change, f"spec.{where}", sentence


BAD_POD_FIELDS = [
    *of_fields(
        {
            "greater than or equal to 1": {
                "build.podTemplate.securityContext.runAsUser": [0],
                "podTemplate.securityContext.runAsUser": [0],
            },
            "names below enginewright.dev/ belong to the operator": {
                "build.podTemplate.labels": [{"enginewright.dev/model": "other"}],
            },
            "write a startupTimeout between 10s and 24h": {"serving.startupTimeout": ["0s"]},
            DURATION: {"serving.terminationGracePeriod": ["a minute"]},
            PROGRESS: {"rollout.progressTimeout": ["5m"]},
            "variables that begin with ENGINEWRIGHT_ belong to the operator": {
                "podTemplate.env[0].name": [[{"name": "ENGINEWRIGHT_TASK", "value": "{}"}]],
                "serving.sidecar.env[0].name": [[{"name": "ENGINEWRIGHT_ROOT", "value": "/"}]],
            },
            "write value or valueFrom, not both": {
                "podTemplate.env[0]": [[{"name": "A", "value": "b", "valueFrom": {}}]],
            },
            "Duplicate value": {
                "podTemplate.env[1]": [[{"name": "A", "value": "b"}, {"name": "A", "value": "c"}]],
            },
            "belong to the operator: choose another name": {
                "podTemplate.volumes[0].name": [
                    [{"name": name, "emptyDir": {}}]
                    for name in ("artifact", "podinfo", "store", "tmp", "enginewright-x")
                ],
            },
            "write exactly one of configMap, csi, downwardAPI, emptyDir": {
                "podTemplate.volumes[0]": [
                    [{"name": "data"}],
                    [{"name": "data", "emptyDir": {}, "secret": {"secretName": "a"}}],
                ],
            },
            "name one of podTemplate.volumes in each volumeMount": {
                "podTemplate.volumeMounts": [[{"name": "data", "mountPath": "/data"}]],
            },
            "minDomains requires whenUnsatisfiable: DoNotSchedule": {
                "podTemplate.topologySpreadConstraints[0]": [
                    [{"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]
                ],
            },
        }
    ),
    *of_changes(
        {
            "this path is reserved for the operator or the image: choose another one, such as /data": {
                "podTemplate.volumeMounts[0].mountPath": [
                    *map(mount, ("/", "/tmp", "/tmp/", "/store", "/artifact/x", "/podinfo/")),
                    *map(mount, ("/opt", "/dev/shm")),
                ],
            },
            "write an absolute path without ':', '.', '..' and empty components": {
                "podTemplate.volumeMounts[0].mountPath": [
                    *map(mount, ("data", "/data/../store", "//store", "/./store", "/a:b"))
                ],
            },
            PROGRESS: {
                "rollout.progressTimeout": [
                    {"rollout": {"progressTimeout": "20m"}, "serving": {"startupTimeout": "1h"}}
                ],
            },
            "backend cpu does not run FP16: change precision or backends": {
                "precision": [{"precision": "FP16", "backends": ["cpu", "cuda"]}],
            },
            **{
                f"the interim {interim} does not run {precision}: change precision or build.interim": {
                    "build.interim": [
                        {
                            "precision": precision,
                            "backends": ["tensorrt"],
                            "build": {"interim": interim},
                        }
                    ]
                }
                for interim, precision in (("CPU", "FP16"), ("CUDA", "INT8"))
            },
            "write tensorrt or tensorrt-rtx first in backends, and another after it": {
                "build.choose": [
                    {"backends": backends, "build": {"choose": "Fastest"}}
                    for backends in (["tensorrt"], ["openvino", "cpu"])
                ],
            },
        }
    ),
]


BAD_MODELS = [
    *of_fields(
        {
            "write at least one step in before or after, or remove processing": {
                "processing": [{"before": []}],
            },
            "must have at most 2 items": {"processing.after": [[STEP] * 3]},
            "Required value": {"source.uri": [None], "shapes[0].opt": [shape(opt=None)]},
            SHA256: {
                "processing.after[0].sha256": [[{**STEP, "sha256": "9f2c"}]],
                "source.sha256": ["9f2c", "A" * 64, "sha256:" + "a" * 64],
            },
            OBJECT_NAME: {"source.secretRef.name": ["My Secret"]},
            DURATION: {"source.refreshInterval": ["10 minutes"], "build.timeout": ["soon", ""]},
            "write 0s for never, or an interval of at least 1m": {
                "source.refreshInterval": ["30s"],
            },
            "greater than or equal to 7": {"targetOpset": [3]},
            'supported values: "FP32", "FP16", "BF16", "FP8", "INT8"': {"precision": ["fp16"]},
            "precision FP8 needs calibration data: write quantization.calibration.uri": {
                "precision": ["FP8"],
            },
            'Duplicate value: {"input":"x"}': {"shapes[1]": [shape() * 2]},
            TOLERANCE: {"parity.rtol": ["-0.1"], "parity.atol": ["small"]},
            "must be of type string": {"parity.rtol": [0.01]},
            "must be of type boolean": {
                "parity.outputs[0].acceptUnjudged": [[{"name": "y", "acceptUnjudged": "yes"}]],
            },
            ONCE: {"backends": [["cpu", "openvino", "cpu"]]},
            'supported values: "tensorrt", "tensorrt-rtx", "cuda", "openvino", "cpu"': {
                "backends[0]": [["gpu"]],
            },
            "at least 1 items": {"backends": [[]], "serving.route.parentRefs": [[]]},
            "greater than or equal to 0": {
                "replicas": [-1],
                "build.optimizationLevel": [-1],
                "rollout.canary.replicas": [-1],
            },
            "greater than or equal to 1": {
                "serving.maxQueue": [0],
                "serving.maxConcurrentRuns": [0],
                "serving.batching.maxSize": [0],
            },
            "less than or equal to 1000": {"replicas": [1001]},
            'Duplicate value: {"class":"l4"}': {"accelerators[1]": [[{"class": "l4"}] * 2]},
            "write at most 63 lowercase letters, digits and '-'": {
                "accelerators[0].class": [[{"class": "NVIDIA L4"}]],
            },
            "write a timeout between 1m and 168h": {"build.timeout": ["10s"]},
            QUANTITY: {
                "build.workspace": ["lots"],
                "podTemplate.resources.requests[cpu]": [{"cpu": "two"}],
                "podTemplate.resources.limits[memory]": [{"memory": -1}],
            },
            "should be less than or equal to 5": {"build.optimizationLevel": [6]},
            'supported values: "None", "CUDA", "CPU"': {"build.interim": ["GPU"]},
            'supported values: "First", "Fastest"': {"build.choose": ["Best"]},
            "the request for cpu must not exceed its limit": {
                "build.resources": [{"requests": {"cpu": 2}, "limits": {"cpu": "500m"}}],
            },
            "the request for memory must not exceed its limit: lower the request or raise the limit": {
                "podTemplate.resources": [
                    {"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}}
                ],
            },
            'policy Budget needs a share: write maxComputeShare: "2%", maxNodeShare: "5%" or both': {
                "fallback": [{"policy": "Budget"}],
            },
            "maxComputeShare and maxNodeShare require policy: Budget; remove them or set that policy": {
                "fallback": [{"policy": "Forbid", "maxNodeShare": "5%"}],
            },
            PERCENT: {
                "rollout.analysis.maxErrorShare": ["0.1"],
                "rollout.canary.steps[0]": [["25"]],
                "serving.accessLog.sample": ["0.01"],
            },
            'supported values: "Surge", "InPlace", "Recreate"': {
                "rollout.strategy": ["RollingUpdate"],
            },
            'write a ratio of at least 1 in quotes, such as "1.2"': {
                "rollout.analysis.maxLatencyRatio": ["0.9"],
            },
            "write a time from 0s to 1s, such as 5ms": {"serving.batching.maxDelay": ["2s"]},
            "write a requestTimeout between 0s and 24h": {"serving.requestTimeout": ["48h"]},
            'supported values: "None", "ServerErrors", "All"': {
                "serving.accessLog.failed": ["Some"],
            },
            "write a minReplicas of at most maxReplicas": {
                "serving.autoscaling": [{"minReplicas": 8, "maxReplicas": 2}],
            },
            "write label names as Kubernetes has them: app or example.com/team": {
                "podTemplate.labels": [{"my team": "x"}],
            },
            "write label values of at most 63 letters, digits, '-', '_' and '.'": {
                "podTemplate.nodeSelector": [{"disk": "a b"}],
            },
            OUR_NAMES: {
                "podTemplate.labels": [{"enginewright.dev/model": "x"}],
                "podTemplate.annotations": [{"enginewright.dev/x": "x"}],
            },
            'supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"': {
                "podTemplate.tolerations[0].effect": [[{"effect": "Never"}]],
            },
            "start with one of https://, http://, s3://, gs://, az://, hf://, oci://, pvc://": {
                "source.uri": ["ftp://host/model.onnx", "model.onnx"],
                "processing.before[0].uri": [[{"uri": "ftp://host/a.onnx"}]],
            },
            "write uri and sha256 of the library, or neither with type ONNXRuntimeExtensions": {
                "extensions[0]": [
                    [{"type": "CustomOperators"}],
                    [{"type": "CustomOperators", "uri": "pvc://a/b.so"}],
                    [{"type": BUNDLED, "uri": "pvc://a/b.so"}],
                    [{"type": BUNDLED, "sha256": "0" * 64}],
                ],
            },
            "write SCHEME://HOST-OR-BUCKET/PATH, down to the file or folder": {
                "source.uri": ["https://host"],
            },
            PVC: {
                "source.uri": ["pvc://models", "pvc:///model.onnx", "pvc://My_Models/model.onnx"],
            },
            "write the path of the file inside the claim without '..'": {
                "source.uri": ["pvc://models/../other/model.onnx"],
            },
            "put them into a Secret and name it in secretRef": {
                "source.uri": [
                    f"{scheme}://me:secret@host/model.onnx"
                    for scheme in ("https", "http", "s3", "gs", "az", "hf", "oci")
                ],
            },
            "input x: write sizes with min <= opt <= max in every dimension": {
                "shapes[0]": [shape(min=[9, 3]), shape(opt=[8, 4])],
            },
            "input x: give min, opt and max the same number of dimensions, the rank of the input": {
                "shapes[0]": [shape(opt=[8, 3, 224]), shape(min=[])],
            },
            DIMENSION: {
                "shapes[0].opt": [shape(min=[0, 3], opt=[0, 3])],
                "shapes[0].max": [shape(max=[-1, 3])],
            },
            LEAST: {"shapes[0].min": [shape(min=[-1, 3])]},
            "must be of type integer": {"shapes[0].max[0]": [shape(max=["batch", 3])]},
            "write a low that is less than high": {
                "shapes[0].range": [shape(range={"low": "1", "high": "0.5"})],
            },
            'write a decimal number in quotes, such as "0.01", "1e-3" or "-2.5"': {
                "shapes[0].range.low": [shape(range={"low": "none", "high": "1"})],
            },
            "embeddings are of texts, which a tokenizer's step makes tokens of": {
                "serving.embeddings": [{"pooling": "Mean"}],
            },
            'supported values: "Mean", "CLS", "Last", "None"': {
                "serving.embeddings.pooling": ["Max"],
            },
            "write the base of the collector's URL": {
                "serving.tracing.endpoint": [
                    "collector:4318",
                    "http://me:secret@collector",
                    "http://a/b?token=1",
                ],
            },
        }
    ),
    *of_changes(
        {
            "quantization requires precision INT8 or FP8, or no precision; change precision": {
                "quantization": [{"precision": "FP16", "quantization": {"perChannel": True}}],
            },
            "the rest in FP16 is for engines: write precision INT8 or FP8": {
                "quantization.rest": [
                    {"quantization": {"rest": "FP16"}},
                    {"precision": "INT8", "quantization": {"rest": "FP16"}, "backends": ["cpu"]},
                    {
                        "precision": "INT8",
                        "quantization": {"rest": "FP16"},
                        "backends": ["tensorrt"],
                        "build": {"interim": "CPU"},
                    },
                ],
            },
            'supported values: "FP32", "FP16"': {
                "quantization.rest": [{"precision": "INT8", "quantization": {"rest": "BF16"}}],
            },
            PERCENT: {
                "fallback.maxNodeShare": [
                    {"fallback": {"policy": "Budget", "maxNodeShare": "150%"}}
                ],
            },
            "write a hostname in lowercase": {
                "serving.route.hostnames[0]": [
                    {
                        "serving": {
                            "route": {"parentRefs": [{"name": "a"}], "hostnames": ["10.0.0.1"]}
                        }
                    }
                ],
            },
            "Required value": {
                "serving.tls.secretRef.name": [{"serving": {"tls": {"secretRef": {}}}}],
                "serving.auth.secretRef": [{"serving": {"auth": {}}}],
                "serving.autoscaling.maxReplicas": [
                    {"serving": {"autoscaling": {"minReplicas": 1}}}
                ],
            },
        }
    ),
]

BAD_NAMES = ["9lives", "a.b", "x" * 41, "ends-"]

GOOD_CLASS: Spec = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
BAD_CLASSES = [
    *of_fields(
        {
            "Required value": {"nodeSelector": [None], "backends": [None]},
            "write at least one label of the nodes, such as kubernetes.io/os: linux": {
                "nodeSelector": [{}],
            },
            ONCE: {"backends": [["cpu", "cpu"]]},
            "write an extended resource as DOMAIN/NAME, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb": {
                "resourceName": ["gpu"],
            },
            'write the compute capability as MAJOR.MINOR in quotes, such as "8.9"': {
                "computeCapability": ["89"],
            },
            "must be of type string": {"computeCapability": [8.9]},
            'write computeCapability, such as "8.9", or set aheadOfTime to false': {
                "aheadOfTime": [True],
            },
        }
    ),
    *of_changes(
        {
            "either as resourceName, of a device plugin, or as device": {
                "device": [
                    {
                        "resourceName": "nvidia.com/gpu",
                        "device": {"deviceClassName": "gpu.nvidia.com"},
                    }
                ],
            },
            "at least 1 char": {
                "device.selectors[0].cel.expression": [
                    {
                        "device": {
                            "deviceClassName": "gpu",
                            "selectors": [{"cel": {"expression": ""}}],
                        }
                    }
                ],
            },
        }
    ),
]


def merge(base: Spec, change: Spec) -> Spec:
    """Return `base` with `change` laid over it; None removes a field, {} empties it."""
    result = dict(base)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif value and isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merge(result[name], value)
        else:
            result[name] = value
    return result


def inference_model(change: Spec, name: str = "resnet50") -> Spec:
    """Return an InferenceModel with a minimal spec, merged with `change`."""
    minimal = {"source": {"uri": "pvc://models/model.onnx"}}
    return make_object("InferenceModel", name, spec=merge(minimal, change))


def refuse(namespace: Namespace, body: Spec) -> str:
    """Return the user's error message for a body that is rejected."""
    with pytest.raises(RefusedError) as refusal:
        namespace.create(body, dry_run=True)
    return str(refusal.value)


@pytest.fixture(scope="module")
def place(new_namespace: Callable[[], Namespace]) -> Namespace:
    """One namespace for all tests, as nothing is ever stored in it."""
    return new_namespace()


@pytest.mark.parametrize(
    ("body", "field", "sentence"),
    [
        *(
            pytest.param(inference_model(change), field, sentence, id=name)
            for name, change, field, sentence in (*BAD_MODELS, *BAD_POD_FIELDS)
        ),
        *(
            pytest.param(
                make_object("AcceleratorClass", "l4", spec=merge(GOOD_CLASS, change)),
                field,
                sentence,
                id=f"class {name}",
            )
            for name, change, field, sentence in BAD_CLASSES
        ),
    ],
)
def test_an_invalid_spec_is_refused_with_the_remedy(
    place: Namespace, body: Spec, field: str, sentence: str
) -> None:
    refusal = refuse(place, body)
    assert f"{field}: " in refusal
    assert sentence in refusal
    assert "evaluation" not in refusal  # no rule fails on what another rule refuses


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_no_service_can_have_is_refused(place: Namespace, name: str) -> None:
    refusal = refuse(place, inference_model({}, name))
    assert "metadata.name: Invalid value" in refusal
    if name != "ends-":  # which the API server refuses for every kind, before our rule
        remedy = "write at most 40 lowercase letters, digits and '-', beginning with a letter"
        assert remedy in refusal


def test_a_class_with_a_dot_in_its_name_is_refused(place: Namespace) -> None:
    refusal = refuse(place, make_object("AcceleratorClass", "mig-1g.10gb", spec=GOOD_CLASS))
    assert "metadata.name: Invalid value" in refusal
    assert "write at most 63 lowercase letters, digits and '-'" in refusal


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"precison": "FP16"}, "spec.precison"),
        ({"source": {"url": "pvc://models/model.onnx"}}, "spec.source.url"),
        ({"shapes": shape(maximum=[1])}, "spec.shapes[0].maximum"),
        ({"podTemplate": {"hostNetwork": True}}, "spec.podTemplate.hostNetwork"),
    ],
)
def test_a_typo_is_refused_by_kubectl(place: Namespace, change: Spec, field: str) -> None:
    with pytest.raises(CommandError) as refusal:
        place.apply(inference_model(change))
    assert f'unknown field "{field}"' in refusal.value.stderr
