"""Specifications that the API server rejects, with messages that state what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.harness import CommandError, Namespace
from tests.support.api_requests import RefusedError
from tests.support.plan_objects import made

pytestmark = pytest.mark.apiserver

Spec = dict[str, Any]

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
BUNDLED = "ONNXRuntimeExtensions"
LEAST = "write every dimension as a fixed size, 0 where it may be empty, never -1 or a name"


def uri(text: str) -> Spec:
    return {"source": {"uri": text}}


def shape(**changed: object) -> Spec:
    profile = {"input": "x", "min": [1, 3], "opt": [8, 3], "max": [32, 3], **changed}
    return {"shapes": [{name: value for name, value in profile.items() if value is not None}]}


def resources(**sides: Spec) -> Spec:
    return {"podTemplate": {"resources": sides}}


def pod(**fields: object) -> Spec:
    return {"podTemplate": fields}


def mounted(path: str) -> Spec:
    volume = {"name": "data", "emptyDir": {}}
    return pod(volumes=[volume], volumeMounts=[{"name": "data", "mountPath": path}])


def laid(*rows: tuple[str, str, object, str]) -> list[tuple[str, Spec, str, str]]:
    """Return the rows of which each has the field that is named, and what is written there, without an index."""
    found = []
    for wrong, where, value, sentence in rows:
        change: Any = value
        for name in reversed(where.partition("[")[0].split(".")):
            change = {name: change}
        found.append((wrong, change, f"spec.{where}", sentence))
    return found


TAKEN = "this path is reserved for the operator or the image: choose another one, such as /data"
BAD_POD_FIELDS: list[tuple[str, Spec, str, str]] = [
    *laid(
        (
            "root in a Job",
            "build.podTemplate.securityContext.runAsUser",
            0,
            "greater than or equal to 1",
        ),
        (
            "a name of ours on a Job",
            "build.podTemplate.labels",
            {"enginewright.dev/model": "other"},
            "names below enginewright.dev/ belong to the operator",
        ),
        (
            "a start without time",
            "serving.startupTimeout",
            "0s",
            "write a startupTimeout between 10s and 24h",
        ),
        ("an end in words", "serving.terminationGracePeriod", "a minute", DURATION),
        (
            "given up before the usual start",
            "rollout.progressTimeout",
            "5m",
            "write a rollout.progressTimeout of at least serving.startupTimeout",
        ),
    ),
    *(
        (
            f"a variable of ours: {name}",
            change,
            place,
            "variables that begin with ENGINEWRIGHT_ belong to the operator",
        )
        for name, change, place in (
            (
                "server's",
                pod(env=[{"name": "ENGINEWRIGHT_TASK", "value": "{}"}]),
                "spec.podTemplate.env[0].name",
            ),
            (
                "sidecar's",
                {"serving": {"sidecar": {"env": [{"name": "ENGINEWRIGHT_ROOT", "value": "/"}]}}},
                "spec.serving.sidecar.env[0].name",
            ),
        )
    ),
    (
        "a variable with two values",
        pod(env=[{"name": "A", "value": "b", "valueFrom": {}}]),
        "spec.podTemplate.env[0]",
        "write value or valueFrom, not both",
    ),
    (
        "a variable twice",
        pod(env=[{"name": "A", "value": "b"}, {"name": "A", "value": "c"}]),
        "spec.podTemplate.env[1]",
        "Duplicate value",
    ),
    *(
        (
            f"a volume of ours: {name}",
            pod(volumes=[{"name": name, "emptyDir": {}}]),
            "spec.podTemplate.volumes[0].name",
            "belong to the operator: choose another name",
        )
        for name in ("artifact", "podinfo", "store", "tmp", "enginewright-x")
    ),
    (
        "a volume of no kind",
        pod(volumes=[{"name": "data"}]),
        "spec.podTemplate.volumes[0]",
        "write exactly one of configMap, csi, downwardAPI, emptyDir",
    ),
    (
        "a volume of two kinds",
        pod(volumes=[{"name": "data", "emptyDir": {}, "secret": {"secretName": "a"}}]),
        "spec.podTemplate.volumes[0]",
        "write exactly one of",
    ),
    *(
        (f"mounted at {path}", mounted(path), "spec.podTemplate.volumeMounts[0].mountPath", TAKEN)
        for path in ("/", "/tmp", "/tmp/", "/store", "/artifact/x", "/podinfo/", "/opt", "/dev/shm")
    ),
    *(
        (
            f"mounted at {path}",
            mounted(path),
            "spec.podTemplate.volumeMounts[0].mountPath",
            "write an absolute path without ':', '.', '..' and empty components",
        )
        for path in ("data", "/data/../store", "//store", "/./store", "/a:b")
    ),
    (
        "a mount without its volume",
        pod(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        "spec.podTemplate.volumeMounts",
        "name one of podTemplate.volumes in each volumeMount",
    ),
    (
        "minDomains for a wish",
        pod(
            topologySpreadConstraints=[
                {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}
            ]
        ),
        "spec.podTemplate.topologySpreadConstraints[0]",
        "minDomains requires whenUnsatisfiable: DoNotSchedule",
    ),
    (
        "root",
        pod(securityContext={"runAsUser": 0}),
        "spec.podTemplate.securityContext.runAsUser",
        "greater than or equal to 1",
    ),
    (
        "given up before the start",
        {"rollout": {"progressTimeout": "20m"}, "serving": {"startupTimeout": "1h"}},
        "spec.rollout.progressTimeout",
        "write a rollout.progressTimeout of at least serving.startupTimeout",
    ),
    (
        "a precision that the backend has not",
        {"precision": "FP16", "backends": ["cpu", "cuda"]},
        "spec.precision",
        "backend cpu does not run FP16: change precision or backends",
    ),
    *(
        (
            f"a precision that the interim on {interim} has not",
            {"precision": precision, "backends": ["tensorrt"], "build": {"interim": interim}},
            "spec.build.interim",
            f"the interim {interim} does not run {precision}: change precision or build.interim",
        )
        for interim, precision in (("CPU", "FP16"), ("CUDA", "INT8"))
    ),
    *(
        (
            f"a comparison of {' and '.join(backends)}",
            {"backends": backends, "build": {"choose": "Fastest"}},
            "spec.build.choose",
            "write tensorrt or tensorrt-rtx first in backends, and another after it",
        )
        for backends in (["tensorrt"], ["openvino", "cpu"])
    ),
]


BAD_MODELS: list[tuple[str, Spec, str, str]] = [
    # what is wrong, the spec's change, the field that is named, the sentence
    *laid(
        (
            "processing without steps",
            "processing",
            {"before": []},
            "write at least one step in before or after, or remove processing",
        ),
        (
            "a step at an unknown address",
            "processing.before[0].uri",
            [{"uri": "ftp://host/a.onnx"}],
            "start with one of https://",
        ),
        (
            "a step with a short digest",
            "processing.after[0].sha256",
            [{"uri": "pvc://a/b.onnx", "sha256": "9f2c"}],
            SHA256,
        ),
        (
            "three steps",
            "processing.after",
            [{"uri": "pvc://a/b.onnx"}] * 3,
            "must have at most 2 items",
        ),
        ("no address", "source.uri", None, "Required value"),
        ("short digest", "source.sha256", "9f2c", SHA256),
        ("digest in capitals", "source.sha256", "A" * 64, SHA256),
        ("digest with its algorithm", "source.sha256", "sha256:" + "a" * 64, SHA256),
        ("secret that is no name", "source.secretRef.name", "My Secret", OBJECT_NAME),
        ("interval in words", "source.refreshInterval", "10 minutes", DURATION),
        (
            "interval of seconds",
            "source.refreshInterval",
            "30s",
            "write 0s for never, or an interval of at least 1m",
        ),
        ("opset of another age", "targetOpset", 3, "greater than or equal to 7"),
        (
            "unknown precision",
            "precision",
            "fp16",
            'supported values: "FP32", "FP16", "BF16", "FP8", "INT8"',
        ),
        (
            "nothing to calibrate with",
            "precision",
            "FP8",
            "precision FP8 needs calibration data: write quantization.calibration.uri",
        ),
        ("an input twice", "shapes[1]", shape()["shapes"] * 2, 'Duplicate value: {"input":"x"}'),
        ("negative tolerance", "parity.rtol", "-0.1", TOLERANCE),
        ("tolerance in words", "parity.atol", "small", TOLERANCE),
        ("tolerance without quotes", "parity.rtol", 0.01, "must be of type string"),
        (
            "a backend twice",
            "backends",
            ["cpu", "openvino", "cpu"],
            "name each backend once, the preferred one first",
        ),
        (
            "unknown backend",
            "backends[0]",
            ["gpu"],
            'supported values: "tensorrt", "tensorrt-rtx", "cuda", "openvino", "cpu"',
        ),
        ("no backend", "backends", [], "at least 1 items"),
        ("fewer than no replicas", "replicas", -1, "greater than or equal to 0"),
        ("too many replicas", "replicas", 1001, "less than or equal to 1000"),
        (
            "a class twice",
            "accelerators[1]",
            [{"class": "l4"}, {"class": "l4"}],
            'Duplicate value: {"class":"l4"}',
        ),
        (
            "class that is no name",
            "accelerators[0].class",
            [{"class": "NVIDIA L4"}],
            "write at most 63 lowercase letters, digits and '-'",
        ),
        ("timeout in words", "build.timeout", "soon", DURATION),
        ("empty timeout", "build.timeout", "", DURATION),
        ("timeout too short", "build.timeout", "10s", "write a timeout between 1m and 168h"),
        ("workspace in words", "build.workspace", "lots", QUANTITY),
        (
            "optimization level above TensorRT's",
            "build.optimizationLevel",
            6,
            "should be less than or equal to 5",
        ),
        (
            "negative optimization level",
            "build.optimizationLevel",
            -1,
            "should be greater than or equal to 0",
        ),
        ("unknown interim", "build.interim", "GPU", 'supported values: "None", "CUDA", "CPU"'),
        ("unknown choice", "build.choose", "Best", 'supported values: "First", "Fastest"'),
        (
            "request above limit, as numbers",
            "build.resources",
            {"requests": {"cpu": 2}, "limits": {"cpu": "500m"}},
            "the request for cpu must not exceed its limit",
        ),
        (
            "budget without a share",
            "fallback",
            {"policy": "Budget"},
            'policy Budget needs a share: write maxComputeShare: "2%", maxNodeShare: "5%" or both',
        ),
        (
            "share without a budget",
            "fallback",
            {"policy": "Forbid", "maxNodeShare": "5%"},
            "maxComputeShare and maxNodeShare require policy: Budget; remove them or set that policy",
        ),
        ("share without a percent sign", "rollout.analysis.maxErrorShare", "0.1", PERCENT),
        (
            "unknown strategy",
            "rollout.strategy",
            "RollingUpdate",
            'supported values: "Surge", "InPlace", "Recreate"',
        ),
        (
            "canary of less than no pods",
            "rollout.canary.replicas",
            -1,
            "greater than or equal to 0",
        ),
        (
            "latency ratio below 1",
            "rollout.analysis.maxLatencyRatio",
            "0.9",
            'write a ratio of at least 1 in quotes, such as "1.2"',
        ),
        ("step of a canary without a percent sign", "rollout.canary.steps[0]", ["25"], PERCENT),
        ("route without a gateway", "serving.route.parentRefs", [], "should have at least 1 items"),
        ("no queue", "serving.maxQueue", 0, "greater than or equal to 1"),
        (
            "requests that wait too long",
            "serving.batching.maxDelay",
            "2s",
            "write a time from 0s to 1s, such as 5ms",
        ),
        (
            "a timeout of days",
            "serving.requestTimeout",
            "48h",
            "write a requestTimeout between 0s and 24h",
        ),
        (
            "a share of the requests that is none",
            "serving.accessLog.sample",
            "0.01",
            "write a share as a percentage between 0% and 100%",
        ),
        (
            "failed requests of an unknown kind",
            "serving.accessLog.failed",
            "Some",
            'supported values: "None", "ServerErrors", "All"',
        ),
        (
            "no run at a time",
            "serving.maxConcurrentRuns",
            0,
            "should be greater than or equal to 1",
        ),
        ("batches of nothing", "serving.batching.maxSize", 0, "greater than or equal to 1"),
        (
            "autoscaling the wrong way round",
            "serving.autoscaling",
            {"minReplicas": 8, "maxReplicas": 2},
            "write a minReplicas of at most maxReplicas",
        ),
        (
            "label that is no name",
            "podTemplate.labels",
            {"my team": "x"},
            "write label names as Kubernetes has them: app or example.com/team",
        ),
        (
            "label with a value that is none",
            "podTemplate.nodeSelector",
            {"disk": "a b"},
            "write label values of at most 63 letters, digits, '-', '_' and '.'",
        ),
        (
            "the operator's own label",
            "podTemplate.labels",
            {"enginewright.dev/model": "x"},
            "names below enginewright.dev/ belong to the operator: choose another prefix",
        ),
        (
            "the operator's own annotation",
            "podTemplate.annotations",
            {"enginewright.dev/x": "x"},
            "names below enginewright.dev/ belong to the operator: choose another prefix",
        ),
        (
            "unknown effect of a taint",
            "podTemplate.tolerations[0].effect",
            [{"effect": "Never"}],
            'supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"',
        ),
    ),
    (
        "unknown scheme",
        uri("ftp://host/model.onnx"),
        "spec.source.uri",
        "start with one of https://, http://, s3://, gs://, az://, hf://, oci://, pvc://",
    ),
    *(
        (
            f"an extension {wrong}",
            {"extensions": [extension]},
            "spec.extensions[0]",
            "write uri and sha256 of the library, or neither with type ONNXRuntimeExtensions",
        )
        for wrong, extension in (
            ("without a library", {"type": "CustomOperators"}),
            ("without a digest", {"type": "CustomOperators", "uri": "pvc://a/b.so"}),
            ("of the image with an address", {"type": BUNDLED, "uri": "pvc://a/b.so"}),
            ("of the image with a digest", {"type": BUNDLED, "sha256": "0" * 64}),
        )
    ),
    ("no scheme", uri("model.onnx"), "spec.source.uri", "start with one of https://"),
    (
        "host without path",
        uri("https://host"),
        "spec.source.uri",
        "write SCHEME://HOST-OR-BUCKET/PATH, down to the file or folder",
    ),
    ("claim without path", uri("pvc://models"), "spec.source.uri", PVC),
    ("path without claim", uri("pvc:///model.onnx"), "spec.source.uri", PVC),
    ("claim that is no name", uri("pvc://My_Models/model.onnx"), "spec.source.uri", PVC),
    (
        "path out of the claim",
        uri("pvc://models/../other/model.onnx"),
        "spec.source.uri",
        "write the path of the file inside the claim without '..'",
    ),
    (
        "credentials in the address",
        uri("https://me:secret@host/model.onnx"),
        "spec.source.uri",
        "put them into a Secret and name it in secretRef",
    ),
    (
        "quantization with another precision",
        {"precision": "FP16", "quantization": {"perChannel": True}},
        "spec.quantization",
        "quantization requires precision INT8 or FP8, or no precision; change precision",
    ),
    (
        "min above opt",
        shape(min=[9, 3]),
        "spec.shapes[0]",
        "input x: write sizes with min <= opt <= max in every dimension",
    ),
    (
        "opt above max",
        shape(opt=[8, 4]),
        "spec.shapes[0]",
        "input x: write sizes with min <= opt <= max in every dimension",
    ),
    (
        "ranks that differ",
        shape(opt=[8, 3, 224]),
        "spec.shapes[0]",
        "input x: give min, opt and max the same number of dimensions, the rank of the input",
    ),
    ("size of zero", shape(min=[0, 3], opt=[0, 3]), "spec.shapes[0].opt", DIMENSION),
    ("least size of -1", shape(min=[-1, 3]), "spec.shapes[0].min", LEAST),
    ("size of -1", shape(max=[-1, 3]), "spec.shapes[0].max", DIMENSION),
    ("size in words", shape(max=["batch", 3]), "spec.shapes[0].max[0]", "must be of type integer"),
    ("min without dimensions", shape(min=[]), "spec.shapes[0]", "the same number of dimensions"),
    ("no opt", shape(opt=None), "spec.shapes[0].opt", "Required value"),
    (
        "range the wrong way round",
        shape(range={"low": "1", "high": "0.5"}),
        "spec.shapes[0].range",
        "write a low that is less than high",
    ),
    (
        "range in words",
        shape(range={"low": "none", "high": "1"}),
        "spec.shapes[0].range.low",
        'write a decimal number in quotes, such as "0.01", "1e-3" or "-2.5"',
    ),
    (
        "quantity in words",
        resources(requests={"cpu": "two"}),
        "spec.podTemplate.resources.requests[cpu]",
        QUANTITY,
    ),
    (
        "negative quantity",
        resources(limits={"memory": -1}),
        "spec.podTemplate.resources.limits[memory]",
        QUANTITY,
    ),
    (
        "request above limit",
        resources(requests={"memory": "2Gi"}, limits={"memory": "1024Mi"}),
        "spec.podTemplate.resources",
        "the request for memory must not exceed its limit: lower the request or raise the limit",
    ),
    (
        "share above the whole",
        {"fallback": {"policy": "Budget", "maxNodeShare": "150%"}},
        "spec.fallback.maxNodeShare",
        PERCENT,
    ),
    (
        "route for an address",
        {"serving": {"route": {"parentRefs": [{"name": "a"}], "hostnames": ["10.0.0.1"]}}},
        "spec.serving.route.hostnames[0]",
        "write a hostname in lowercase",
    ),
    *(
        (
            f"a collector at {endpoint}",
            {"serving": {"tracing": {"endpoint": endpoint}}},
            "spec.serving.tracing.endpoint",
            "write the base of the collector's URL",
        )
        for endpoint in ("collector:4318", "http://me:secret@collector", "http://a/b?token=1")
    ),
    (
        "a certificate from nowhere",
        {"serving": {"tls": {"secretRef": {}}}},
        "spec.serving.tls.secretRef.name",
        "Required value",
    ),
    (
        "tokens from nowhere",
        {"serving": {"auth": {}}},
        "spec.serving.auth.secretRef",
        "Required value",
    ),
    (
        "autoscaling without an end",
        {"serving": {"autoscaling": {"minReplicas": 1}}},
        "spec.serving.autoscaling.maxReplicas",
        "Required value",
    ),
]

BAD_NAMES = ["9lives", "a.b", "x" * 41, "ends-"]

BAD_CLASSES: list[tuple[str, Spec, str, str]] = [
    *laid(
        ("no nodes", "nodeSelector", None, "Required value"),
        (
            "every node",
            "nodeSelector",
            {},
            "write at least one label of the nodes, such as kubernetes.io/os: linux",
        ),
        ("no backends", "backends", None, "Required value"),
        (
            "a backend twice",
            "backends",
            ["cpu", "cpu"],
            "name each backend once, the preferred one first",
        ),
        (
            "resource without a domain",
            "resourceName",
            "gpu",
            "write an extended resource as DOMAIN/NAME, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb",
        ),
        (
            "capability without a dot",
            "computeCapability",
            "89",
            'write the compute capability as MAJOR.MINOR in quotes, such as "8.9"',
        ),
        ("capability without quotes", "computeCapability", 8.9, "must be of type string"),
        (
            "ahead of time for nothing",
            "aheadOfTime",
            True,
            'write computeCapability, such as "8.9", or set aheadOfTime to false',
        ),
    ),
    (
        "two ways to a device",
        {"resourceName": "nvidia.com/gpu", "device": {"deviceClassName": "gpu.nvidia.com"}},
        "spec.device",
        "either as resourceName, of a device plugin, or as device",
    ),
    (
        "no condition for devices",
        {
            "device": {
                "deviceClassName": "gpu.nvidia.com",
                "selectors": [{"cel": {"expression": ""}}],
            }
        },
        "spec.device.selectors[0].cel.expression",
        "at least 1 char",
    ),
]


def merged(base: Spec, change: Spec) -> Spec:
    """Return `base` with `change` laid over it; None removes a field, {} empties it."""
    result = dict(base)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif value and isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merged(result[name], value)
        else:
            result[name] = value
    return result


def inference_model(change: Spec, name: str = "resnet50") -> Spec:
    """Return an InferenceModel with a minimal spec, merged with `change`."""
    return made("InferenceModel", name, spec=merged(uri("pvc://models/model.onnx"), change))


def refusal(namespace: Namespace, body: Spec) -> str:
    """Return the user's error message when `body` is rejected."""
    with pytest.raises(RefusedError) as reported:
        namespace.create(body, dry_run=True)
    return str(reported.value)


@pytest.fixture(scope="module")
def place(new_namespace: Callable[[], Namespace]) -> Namespace:
    """One namespace for all tests, as nothing is ever stored in it."""
    return new_namespace()


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [pytest.param(*rest, id=wrong) for wrong, *rest in (*BAD_MODELS, *BAD_POD_FIELDS)],
)
def test_a_bad_model_is_refused_with_the_remedy(
    place: Namespace, change: Spec, field: str, sentence: str
) -> None:
    reported = refusal(place, inference_model(change))
    assert f"{field}: " in reported
    assert sentence in reported
    assert "evaluation" not in reported  # no rule stumbles over what another one is there to refuse


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_cannot_be_a_services_is_refused(place: Namespace, name: str) -> None:
    reported = refusal(place, inference_model({}, name))
    assert "metadata.name: Invalid value" in reported
    if name != "ends-":  # which the API server refuses for every kind, before our rule
        assert (
            "write at most 40 lowercase letters, digits and '-', beginning with a letter"
            in reported
        )


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [pytest.param(*rest, id=wrong) for wrong, *rest in BAD_CLASSES],
)
def test_a_bad_class_is_refused_with_the_remedy(
    place: Namespace, change: Spec, field: str, sentence: str
) -> None:
    good: Spec = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
    reported = refusal(place, made("AcceleratorClass", "l4", spec=merged(good, change)))
    assert f"{field}: " in reported
    assert sentence in reported
    assert "evaluation" not in reported


def test_a_class_with_a_dot_in_its_name_is_refused(place: Namespace) -> None:
    good: Spec = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
    reported = refusal(place, made("AcceleratorClass", "mig-1g.10gb", spec=good))
    assert "metadata.name: Invalid value" in reported
    assert "write at most 63 lowercase letters, digits and '-'" in reported


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"precison": "FP16"}, "spec.precison"),
        ({"source": {"url": "pvc://models/model.onnx"}}, "spec.source.url"),
        ({"shapes": [{"input": "x", "min": [1], "opt": [1], "max": [1], "maximum": [1]}]},
         "spec.shapes[0].maximum"),
        ({"podTemplate": {"hostNetwork": True}}, "spec.podTemplate.hostNetwork"),
    ],
)  # fmt: skip
def test_a_typo_is_refused_by_kubectl(place: Namespace, change: Spec, field: str) -> None:
    with pytest.raises(CommandError) as reported:
        place.apply(inference_model(change))
    assert f'unknown field "{field}"' in reported.value.stderr
