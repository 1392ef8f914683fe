"""What the operator asks a Job or a serving pod to do: one JSON document in one variable.

Tasks are transport: only their `recipe` decides how an artefact is produced, so only the recipe and
the artefact's inputs enter its key.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from pydantic import Field

from enginewright_contract.base import Message
from enginewright_contract.collection import ClusterUid
from enginewright_contract.serving_options import ServingOptions

TASK_VARIABLE: Final = "ENGINEWRIGHT_TASK"
# characters of a task in one variable, of which Linux takes 128 KiB; a longer task goes on in others
PART_OF_TASK: Final = 120_000
ROOT_VARIABLE: Final = "ENGINEWRIGHT_ROOT"  # prefix of every path; unset in pods
SHARED_RESULTS_VARIABLE: Final = "ENGINEWRIGHT_ANSWERS"  # folder of shared results; unset in pods
STORE_VARIABLE: Final = "ENGINEWRIGHT_STORE"  # address of the store's bucket; unset: a volume
CACHE_VARIABLE: Final = "ENGINEWRIGHT_CACHE"  # HOST:PORT of the node's cache; unset: there is none
IMAGES_VARIABLE: Final = "ENGINEWRIGHT_IMAGES"  # repository for OCI images of artefacts
# networks, with commas, that sources may not be in, besides link-local ones and metadata services
REFUSED_NETWORKS_VARIABLE: Final = "ENGINEWRIGHT_REFUSED_NETWORKS"
WORK_PATH: Final = "/work"  # emptyDir shared by the stages of one pod
STORE_PATH: Final = "/store"  # the store's volume
STORE_CREDENTIALS_PATH: Final = "/store-credentials"  # of its bucket, one file per key
IMAGES_CREDENTIALS_PATH: Final = "/images-credentials"  # of that repository, likewise
CREDENTIALS_PATH: Final = "/credentials"  # spec.source.secretRef, one file per key
SAMPLES_CREDENTIALS_PATH: Final = "/samples-credentials"
CALIBRATION_CREDENTIALS_PATH: Final = "/calibration-credentials"
SOURCE_PATH: Final = "/source"  # the claim of a pvc:// source, read-only
SAMPLES_PATH: Final = "/samples"  # the claim of pvc:// samples, read-only
CALIBRATION_PATH: Final = "/calibration"  # the claim of pvc:// calibration data, read-only
EXTENSIONS_PATH: Final = "/extensions"  # claims of pvc:// extensions, one folder each, read-only
PROCESSING_PATH: Final = "/processing"  # claims of pvc:// steps, one folder each, read-only
PROCESSING_CREDENTIALS_PATH: Final = "/processing-credentials"  # one folder per step
ARTIFACT_PATH: Final = "/artifact"  # emptyDir of a serving pod
ARTIFACT_IMAGE_PATH: Final = "/artifact-image"  # OCI image of the artefact, where a pod mounts one
STABLE_PATH: Final = f"{ARTIFACT_PATH}/.stable"  # manifest and golden samples of `stable_key`
STABLE_FAILURE: Final = "failure"  # file there instead: why they were not fetched
TERMINATION_LOG: Final = "/dev/termination-log"
PROBE_LANE_PATH: Final = "/tmp/enginewright-probe"  # noqa: S108 - not shared with other pods; see probe_token
RUNTIME_CACHE_PATH: Final = "/tmp/enginewright-runtime-cache"  # noqa: S108 - likewise; see runtime_cache
POD_INFO_PATH: Final = "/podinfo"  # the pod's annotations, a downwardAPI volume
TOKENS_PATH: Final = "/run/enginewright/tokens"  # spec.serving.auth, one file per client
TLS_PATH: Final = "/run/enginewright/tls"  # spec.serving.tls: tls.crt and tls.key
RELEASE_FILE: Final = "release"
SHADOW_FILE: Final = "shadow"
TIMES_FILE: Final = "start-times"
HTTP_PORT: Final = 8080
GRPC_PORT: Final = 8001  # Triton's default
LIVE_PATH: Final = "/v2/health/live"  # of the Open Inference Protocol
READY_PATH: Final = "/v2/health/ready"
MOST_STEPS: Final = 2  # before the model, and after: digests must fit a termination message
SIDECAR_PORT: Final = 8081  # docs/sidecar.md; of an engine Job's build stage: /progress

PREPARE_STAGES: Final = ("fetch", "validate", "convert", "golden", "quantize", "publish")
LOOKUP_STAGE: Final = "lookup"  # looks for an engine in the store before a device is requested
SIDECAR: Final = "sidecar"  # name of the container and of its port
PARSE_STAGE: Final = "parse"  # in preflight: asks a parser whose library builds only on a device
EXAMINE_STAGE: Final = "examine"  # in preflight: loads and times a model as its serving pod would
FETCH_ARTIFACT: Final = "fetch-artifact"  # init container of a serving pod
ENGINE_STAGES: Final = ("build", "verify", "benchmark", "publish-engine")


def task_variables(text: str) -> dict[str, str]:
    """Return the variables that hold a task; a reader of the first alone cannot parse a longer task, and fails."""
    parts = [text[start : start + PART_OF_TASK] for start in range(0, len(text), PART_OF_TASK)]
    return {_part(number): part for number, part in enumerate(parts)}


def task_text(variables: Mapping[str, str]) -> str:
    """Return the task in some variables; empty: there is none."""
    parts: list[str] = []
    while (part := variables.get(_part(len(parts)))) is not None:
        parts.append(part)
    return "".join(parts)


def _part(number: int) -> str:
    return f"{TASK_VARIABLE}_{number}" if number else TASK_VARIABLE


class ShapeProfile(Message):
    """Sizes of one dynamic input; the three lists have the input's rank."""

    input: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    low: float | None = None  # range of generated golden inputs
    high: float | None = None


Precision: TypeAlias = Literal["FP32", "FP16", "BF16", "FP8", "INT8"]
# Precision of what a quantized model does not quantize, unless it is FP32.
Rest: TypeAlias = Literal["FP16"]
# Which sums of UINT8 x INT8 products a model must tolerate: only `exact` ones, or `any`, also saturating ones.
Int8Products: TypeAlias = Literal["any", "exact"]


class Preprocessing(Message):
    """How an image is converted to one sample of the model's input: (value / scale - mean) / std."""

    width: int
    height: int
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    color: Literal["RGB", "BGR", "Gray"] = "RGB"
    scale: float = 255.0
    mean: tuple[float, ...] = ()  # one per channel, or one for all; (): 0
    std: tuple[float, ...] = ()  # likewise; (): 1


class Calibration(Message):
    """Data from which the ranges of quantized tensors are computed."""

    uri: str  # .npz, or a folder or archive of .npy files or of images
    samples: int | None = None  # maximum number used
    method: Literal["MinMax", "Entropy", "Percentile"] = "MinMax"
    preprocessing: Preprocessing | None = None  # for images


class Quantization(Message):
    """How a model is quantized to INT8 or FP8."""

    calibration: Calibration | None = None  # without it dynamic quantization, only for backend cpu
    per_channel: bool = True
    max_excluded_share: float = 0.25  # of the quantizable nodes that may stay unquantized
    rest: Rest | None = None  # for backends with engines; None: FP32


class OutputTolerance(Message):
    """Tolerances of one output, which override the recipe's."""

    name: str
    rtol: float | None = None
    atol: float | None = None
    accept_unjudged: bool = False  # whether parts that the samples do not move may stay unjudged


class Extension(Message):
    """A library of operators that ONNX Runtime or TensorRT does not have."""

    uri: str = ""  # "": in the runtime image
    sha256: str = ""  # likewise
    type: Literal["TensorRTPlugin", "CustomOperators", "ONNXRuntimeExtensions"]


class Processing(Message):
    """Addresses of ONNX models that run on the CPU around the served model, in their order."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def steps(self) -> dict[str, str]:
        """Return the addresses by the name of their step: before-0, before-1, after-0."""
        return {
            f"{stage}-{number}": uri
            for stage, uris in (("before", self.before), ("after", self.after))
            for number, uri in enumerate(uris)
        }


class Recipe(Message):
    """Everything that decides how a model is prepared."""

    backend: str  # that will serve the model
    backend_version: str | None = None  # of its library, unless known by ONNX Runtime's
    ort_version: str  # of the image that prepares and serves
    max_opset: int
    max_ir_version: int
    shapes: tuple[ShapeProfile, ...] = ()
    target_opset: int | None = None  # by default converted only if the runtime needs it
    precision: Precision | None = None  # by default automatic
    allowed_precisions: tuple[Precision, ...] = ()  # automatic: what every class can run
    quantization: Quantization | None = None
    # What INT8 for a CPU must tolerate: by default no INT8 for CPUs or, before the field existed, any
    int8_products: Int8Products | None = None
    extensions: tuple[Extension, ...] = ()
    processing: Processing | None = None
    samples_uri: str | None = None
    rtol: float | None = None  # with neither: by the type of the values and the precision
    atol: float | None = None
    outputs: tuple[OutputTolerance, ...] = ()

    @property
    def rest(self) -> Rest | None:
        """Return the precision of what is not quantized, unless it is FP32."""
        return self.quantization.rest if self.quantization else None


class PrepareTask(Message):
    """Input of every stage of a prepare Job."""

    job: str  # name of the Job: reports go to reports/<job>/ in the store
    source_uri: str
    source_sha256: str | None = None
    # digests in the spec of the steps of recipe.processing, by name of the step
    steps_sha256: dict[str, str] = Field(default_factory=dict)
    # digests that the content of the addresses must still have: "model" (with its external data),
    # "samples", "calibration" and the steps; for an absent name, any content is accepted
    pinned: dict[str, str] = Field(default_factory=dict)
    # of a refresh: digests of what is prepared, by the same names. An address whose version is
    # still the one recorded with that digest is not fetched again
    fetched: dict[str, str] = Field(default_factory=dict)
    # addresses without a Secret are read anonymously: the pod's identity is the store's, not the model's
    anonymous_sources: Literal[True] | None = None
    # of the image, as probed: what the store has counts as prepared only if this pipeline has passed all
    # stages with it before. Without it every stage runs
    pipeline: str | None = None
    cluster: ClusterUid | None = None  # who uses the bucket, which `fetch` records there
    recipe: Recipe


class EngineRecipe(Message):
    """Everything that decides how an engine is built from a prepared model."""

    backend: str  # tensorrt | tensorrt-rtx
    backend_version: str  # of the image that builds and serves
    ort_version: str
    cuda_major: str | None = None
    accelerator_class: str  # its name, for people
    # product, memory, architecture and resource of its devices; else the class's name identifies them
    device: str = ""
    compute_capability: str | None = None  # "8.9"; by default that of the device it is built on
    ahead_of_time: bool = False  # built without a device, for compute_capability
    workspace_bytes: int | None = None  # as requested; by default the builder's own limit
    optimization_level: int | None = None  # 0 to HIGHEST_OPTIMIZATION, as requested


class EngineTask(Message):
    """Input of `lookup` and of every stage of an engine Job."""

    job: str
    engine_key: str
    prepared_key: str
    recipe: EngineRecipe
    # other backends on which the benchmark measures the prepared model
    benchmark_backends: tuple[str, ...] | None = None


Policy = Literal["Forbid", "Budget", "Allow"]


class Promise(Message):
    """Where the nodes of a model may run, as its owner was promised: policy, not observation."""

    policy: Policy = "Forbid"
    max_compute_share: float | None = None  # 0 to 1, with Budget
    max_node_share: float | None = None  # likewise
    asked_backend: str | None = None  # set if a less preferred one serves: BackendFallback


class ServedRevision(Message):
    """What a pod serves."""

    model: str  # name under /v2/models/
    revision: str
    prepared_key: str
    engine_key: str | None = None  # else the prepared model itself is served
    # of the revision that serves while this one is a canary: its golden outputs are compared with
    # this revision's answers
    stable_key: str | None = None
    backend: str
    compute_capability: str | None = None  # of the class; CPUs have none


class ServeTask(ServingOptions, ServedRevision):
    """Input of `fetch-artifact`, `serve` and `sidecar`; what is served comes first in its JSON."""

    auth: bool = False  # whether requests need one of the tokens in `TOKENS_PATH`
    tls: bool = False  # whether both ports speak TLS, with the certificate in `TLS_PATH`
    promise: Promise = Promise()
    drain_seconds: float | None = None  # after SIGTERM, instead of the server's default
    shadow_token: str | None = None  # of requests that are copies; without it none is
