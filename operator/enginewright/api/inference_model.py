"""InferenceModel: the model to serve, as its owner specifies it."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, TypeAlias

from enginewright_contract.engines import HIGHEST_OPTIMIZATION
from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.precisions import RUNS
from enginewright_contract.schemes import SCHEMES, forms, secret_keys
from enginewright_contract.task import MOST_STEPS
from pydantic import ConfigDict, Field

from enginewright.api.accelerator_class import Backends
from enginewright.api.base import ApiModel, ObjectMeta
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.api.markers import ATOMIC, INT32, INT64, ValidationRule, map_list, rules
from enginewright.api.pods import (
    JobTemplate,
    LocalObjectReference,
    PodTemplate,
    Resources,
)
from enginewright.api.scalars import (
    MAX_REPLICAS,
    DnsLabel,
    Duration,
    Number,
    Percent,
    Quantity,
    Sha256,
    ShortDuration,
    TensorName,
    Tolerance,
    Uri,
    between,
)
from enginewright.api.serving import Serving

_RUNS = " && ".join(  # in CEL
    f"(self.backends[0] != '{backend}' || self.precision in {sorted(precisions)})"
    for backend, precisions in RUNS.items()
)
_COMPILED = sorted(COMPILED_BACKENDS)  # likewise
_INTERIM_RUNS = " && ".join(  # likewise
    f"(self.build.interim != '{backend.upper()}' || self.precision in {sorted(RUNS[backend])})"
    for backend in ("cuda", "cpu")
)

ChannelNumbers: TypeAlias = Annotated[
    tuple[Annotated[Number, Field(description="A number in quotes.")], ...],
    Field(max_length=4),
    ATOMIC,
]
Replicas: TypeAlias = Annotated[int, Field(ge=0, le=MAX_REPLICAS), INT32]


class Precision(StrEnum):
    """Numeric precision of the served weights and activations."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "INT8"


class Source(ApiModel):
    """Address of the model and credentials for it."""

    uri: Annotated[
        Uri,
        Field(
            description="Address of the .onnx file, or of a folder or archive (.zip, .tar, .tar.gz) with one:"
            f" {forms(SCHEMES)}. External data files must be in the same folder. Credentials do not"
            " belong here."
        ),
    ]

    sha256: Sha256 | None = None
    """Digest of the .onnx file, or of the archive, as `sha256sum` prints it. Absent: the content of the first fetch is served until a refresh is requested; status.source has its digest."""

    secret_ref: Annotated[
        LocalObjectReference | None,
        Field(
            description=f"Secret of this namespace with the credentials: {secret_keys()}. Absent: the pod's own"
            " identity."
        ),
    ] = None

    refresh_interval: Annotated[
        Duration,
        ShortDuration,
        ValidationRule(
            "!self.matches('^[0-9hms]+$') || duration(self) == duration('0s')"
            " || duration(self) >= duration('1m')",
            "write 0s for never, or an interval of at least 1m",
        ),
    ] = "0s"
    """Interval at which the model's addresses are looked at again, such as 24h: changed content is fetched, prepared, verified and rolled out. 0s: only when the annotation enginewright.dev/refresh changes."""


class ExtensionSpec(ApiModel):
    """A library with operators that the model needs and ONNX Runtime does not have."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "self.type == 'ONNXRuntimeExtensions' ? !has(self.uri) && !has(self.sha256)"
                " : has(self.uri) && has(self.sha256)",
                "write uri and sha256 of the library, or neither with type ONNXRuntimeExtensions,"
                " whose library is in the runtime image",
            )
        )
    )

    uri: Uri | None = None
    """Address of the shared library."""

    sha256: Sha256 | None = None
    """Digest of the library, as `sha256sum` prints it: it is code that will run."""

    type: Literal["TensorRTPlugin", "CustomOperators", "ONNXRuntimeExtensions"]
    """TensorRTPlugin: loaded into TensorRT's registry. CustomOperators: registered with ONNX Runtime. ONNXRuntimeExtensions: the runtime image's onnxruntime-extensions, with operators for tokenizers and images."""


class ProcessingStepSpec(ApiModel):
    """An ONNX model that runs on the CPU before or after the served model."""

    uri: Uri
    """Address of the .onnx file, or of a folder or archive with one, as in spec.source."""

    sha256: Sha256 | None = None
    """Digest of the .onnx file, or of the archive, as `sha256sum` prints it. Absent: the content of the first fetch is served until a refresh is requested."""

    secret_ref: LocalObjectReference | None = None
    """Secret of this namespace with the credentials for the address, as in spec.source."""


ProcessingSteps: TypeAlias = Annotated[
    tuple[ProcessingStepSpec, ...], Field(max_length=MOST_STEPS), ATOMIC
]


class ProcessingSpec(ApiModel):
    """ONNX models that run on the CPU of the serving pod, before and after the model. Values are passed by name."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "(has(self.before) && size(self.before) > 0) || (has(self.after) && size(self.after) > 0)",
                "write at least one step in before or after, or remove processing",
            )
        )
    )

    before: ProcessingSteps = ()
    """Steps before the model, such as a tokenizer or an image decoder: their outputs become the model's inputs of the same names."""

    after: ProcessingSteps = ()
    """Steps after the model, such as the choice of labels: their inputs are the model's outputs of the same names, or any value before."""


class PreprocessingSpec(ApiModel):
    """How an image becomes a sample of the model's input: (value / scale - mean) / std."""

    width: Annotated[int, Field(ge=1, le=65536), INT32]
    """Width in pixels that images are scaled to."""

    height: Annotated[int, Field(ge=1, le=65536), INT32]
    """Height in pixels that images are scaled to."""

    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of the input's dimensions: NCHW or NHWC."""

    color: Literal["RGB", "BGR", "Gray"] = "RGB"
    """Order of the channels: RGB, BGR or Gray."""

    scale: Number = "255"
    """Divisor of every value, as a number in quotes."""

    mean: ChannelNumbers = ()
    """Mean that is then subtracted, one number in quotes per channel, or one for all; absent: 0."""

    std: ChannelNumbers = ()
    """Standard deviation by which the result is divided, one number in quotes per channel, or one for all; absent: 1."""


class CalibrationSpec(ApiModel):
    """Calibration data, from which the ranges of quantized tensors are computed."""

    uri: Uri
    """Address of a .npz file with one array per input, samples along the first axis, or of a folder or archive of .npy files or images, one per sample."""

    secret_ref: LocalObjectReference | None = None
    """Secret of this namespace with the credentials for the address."""

    preprocessing: PreprocessingSpec | None = None
    """How images become samples; required for images, unused for arrays."""

    samples: Annotated[int, Field(ge=1, le=1_000_000), INT32] | None = None
    """Number of samples to use; absent: all."""

    method: Literal["MinMax", "Entropy", "Percentile"] = "MinMax"
    """Calibration method, by which ranges are computed: MinMax, Entropy or Percentile."""


class QuantizationSpec(ApiModel):
    """How the model is quantized, with precision INT8 or FP8, or where the automatic choice finds that faster."""

    calibration: CalibrationSpec | None = None
    """Calibration data, from which the ranges of quantized tensors are computed. Absent: dynamic quantization, with ranges computed from every request, which only backend cpu supports."""

    per_channel: bool = True
    """Whether weights are quantized per channel instead of per tensor."""

    max_excluded_share: Percent = "25%"
    """Share of the nodes that may be excluded from quantization to keep the outputs within tolerance, such as "25%"."""

    rest: Literal["FP32", "FP16"] = "FP32"
    """Precision of what is not quantized: FP32, or FP16 for engines, in which single nodes stay in FP32."""


class ValueRange(ApiModel):
    """Range of the values that golden inputs are drawn from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!self.low.matches('^[-+0-9.eE]+$') || !self.high.matches('^[-+0-9.eE]+$')"
                " || double(self.low) < double(self.high)",
                "write a low that is less than high",
            )
        )
    )

    low: Number
    """Lowest value, as a number in quotes, such as "0"."""

    high: Number
    """Highest value, as a number in quotes, such as "1"."""


Shape: TypeAlias = Annotated[
    tuple[Annotated[int, INT64, Field(description="Size of one dimension.")], ...],
    Field(max_length=16),
    ATOMIC,
    ValidationRule(
        "self.all(size, size >= 1 && size <= 2147483647)",
        "write every dimension as a fixed size of at least 1, never 0, -1 or a name",
    ),
]

LeastShape: TypeAlias = Annotated[
    tuple[Annotated[int, INT64, Field(description="Size of one dimension.")], ...],
    Field(max_length=16),
    ATOMIC,
    ValidationRule(
        "self.all(size, size >= 0 && size <= 2147483647)",
        "write every dimension as a fixed size, 0 where it may be empty, never -1 or a name",
    ),
]


class ShapeProfileSpec(ApiModel):
    """The sizes that one dynamic input may have."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "size(self.min) == size(self.opt) && size(self.opt) == size(self.max)",
                "give min, opt and max the same number of dimensions: the rank of the input",
                message_expression="'input ' + self.input + ': give min, opt and max the same number"
                " of dimensions, the rank of the input'",
            ),
            ValidationRule(
                "size(self.min) != size(self.opt) || size(self.opt) != size(self.max)"
                " || self.opt.all(i, size, self.min[i] <= size && size <= self.max[i])",
                "write sizes with min <= opt <= max in every dimension",
                message_expression="'input ' + self.input + ': write sizes with min <= opt <= max"
                " in every dimension'",
            ),
        )
    )

    input: TensorName
    """Name of the input in the model."""

    min: LeastShape
    """Smallest size of every dimension, such as [1, 3, 224, 224]; 0 where it may be empty, as the past of a decoder; [] for a scalar."""

    opt: Shape
    """Most frequent size of every dimension, for which engines are optimized, such as [8, 3, 224, 224]."""

    max: Shape
    """Largest size of every dimension, such as [32, 3, 224, 224]. Larger requests are rejected."""

    range: ValueRange | None = None
    """Range of the values that golden inputs are drawn from; absent: 0 to 1, and 0 to 9 for integers."""


class Samples(ApiModel):
    """Golden inputs provided by the user, optionally with the expected outputs."""

    uri: Uri
    """Address of a .npz file with arrays named SAMPLE/INPUT and, for expected outputs, SAMPLE/OUTPUT: at most 64 samples. Bare names are one sample."""

    secret_ref: LocalObjectReference | None = None
    """Secret of this namespace with the credentials for the address, as in spec.source."""


class OutputToleranceSpec(ApiModel):
    """How one output is judged."""

    name: TensorName
    """Name of the output in the model."""

    rtol: Tolerance | None = None
    """Relative tolerance, as a number in quotes."""

    atol: Tolerance | None = None
    """Absolute tolerance, as a number in quotes."""

    accept_unjudged: bool = False
    """Whether parts of the output that do not vary enough on the golden samples to be judged are accepted. If not, ParityVerified is Unknown while they serve, and a spec.precision in which there are any is refused with ParityUnknown. An output that is empty, NaN or infinite in every golden sample is accepted likewise; ParityVerified stays Unknown if it is the only output, or has a lower precision."""


class ParitySpec(ApiModel):
    """Tolerances within which the served outputs must agree with those of the source model."""

    samples: Samples | None = None
    """Golden inputs of your own. Absent: random inputs from a fixed seed."""

    rtol: Tolerance | None = None
    """Relative tolerance, as a number in quotes, such as "0.01". Where it or atol is given, every value must be within them; absent: nearly all values must be within the default tolerances of their type."""

    atol: Tolerance | None = None
    """Absolute tolerance, as a number in quotes, such as "0.001"; see rtol."""

    outputs: Annotated[tuple[OutputToleranceSpec, ...], Field(max_length=64), map_list("name")] = ()
    """How single outputs are judged; their tolerances override rtol and atol."""


class Accelerator(ApiModel):
    """One class of accelerator on which the model is served."""

    class_name: Annotated[DnsLabel, Field(alias="class")]
    """Name of an AcceleratorClass; `kubectl get acceleratorclasses` lists them."""

    replicas: Replicas | None = None
    """How many pods serve on this class, or with serving.autoscaling at first; absent: its share of spec.replicas. 0: none."""


class Build(ApiModel):
    """How the Jobs run that prepare the model and build its engines."""

    workspace: Quantity | None = None
    """Device memory that a TensorRT build may use, such as 4Gi; absent: all that the builder may use. A build that runs out of memory is retried with less."""

    optimization_level: Annotated[int, Field(ge=0, le=HIGHEST_OPTIMIZATION), INT32] | None = None
    """TensorRT's builder_optimization_level, 0 to 5: higher levels try more kernels, so builds take longer and engines may be faster; absent: TensorRT's default, 3. Only for the backend tensorrt."""

    timeout: Annotated[Duration, between("a timeout", "1m", "168h")] = "1h"
    """How long the pod of one Job may run on a node, such as 1h, from 1m to 168h; then it fails with reason Timeout."""

    resources: Resources = Resources()
    """Compute resources of every stage of the Jobs; absent: requests of 100m CPU and 256Mi of memory, for engines 512Mi, without limits. Without a memory limit, a process that loads a model may take three quarters of its node's memory."""

    pod_template: JobTemplate = JobTemplate()
    """Where the Jobs run and what is added to them. Changing it rebuilds nothing; a Job of which no pod has run yet is replaced."""

    interim: Literal["None", "CUDA", "CPU"] = "None"
    """What serves on a class until its first engine is built: nothing (None), or the prepared model on a GPU (CUDA) or on the processors of the class's nodes (CPU)."""

    choose: Literal["First", "Fastest"] = "First"
    """Which backend serves on a class once its engine is built: the engine's (First), or the fastest of spec.backends, measured when the engine is built on a device of the class (Fastest)."""


class Fallback(ApiModel):
    """Whether nodes may fall back from the chosen backend."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.policy) || self.policy != 'Budget' || has(self.maxComputeShare) || has(self.maxNodeShare)",
                'policy Budget needs a share: write maxComputeShare: "2%", maxNodeShare: "5%" or both',
            ),
            ValidationRule(
                "(has(self.policy) && self.policy == 'Budget') || (!has(self.maxComputeShare) && !has(self.maxNodeShare))",
                "maxComputeShare and maxNodeShare require policy: Budget; remove them or set that policy",
            ),
        )
    )

    policy: Literal["Forbid", "Budget", "Allow"] = "Forbid"
    """Forbid: no fallback. Budget: up to the shares. Allow: any, also to the next backend of spec.backends; FallbackActive reports it."""

    max_compute_share: Percent | None = None
    """Share of the compute time that may fall back, such as "2%"."""

    max_node_share: Percent | None = None
    """Share of the nodes that may fall back, such as "5%"."""


class Canary(ApiModel):
    """Pods of the new revision that run beside the serving ones and are compared with them before they replace them."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS), INT32] = 1
    """How many pods of each class run the new revision in the first step. 0: no canary; the new revision replaces the serving one pod by pod, as soon as its pods are ready."""

    steps: Annotated[
        tuple[Annotated[Percent, Field(description='A share such as "25%".')], ...],
        Field(max_length=8),
        ATOMIC,
    ] = ()
    """Further steps after the first one: the new revision's share of the requests, such as ["25%", "50%"]; absent: none. Each step lasts for hold and needs minSamples."""

    hold: Annotated[Duration, between("a hold", "0s", "168h")] = "1m"
    """How long the new revision must keep passing all checks in each step, such as 5m."""

    min_samples: Annotated[int, Field(ge=0, le=10_000_000), INT32] = 200
    """How many measurements of the new and of the serving revision a step needs, unless fewer decide."""

    probe_traffic: bool = True
    """Whether the sidecars of both revisions send golden inferences at a higher rate while users send too few requests."""

    shadow: Percent | None = None
    """Share of the requests, such as "10%", that the new revision answers as well before it gets requests of its own; no user sees these answers. Serving pods send it copies after they have answered, and its answers are compared with theirs, until minSamples were or hold is over. Absent: none."""


class Analysis(ApiModel):
    """Limits for the new revision compared with the serving one."""

    max_latency_ratio: Annotated[
        Tolerance,
        ValidationRule(
            "!self.matches('^[0-9.eE+]+$') || double(self) >= 1.0",
            'write a ratio of at least 1 in quotes, such as "1.2"',
        ),
    ] = "1.2"
    """Time in the model for requests of the same size, of the new revision divided by that of the serving one, as a number in quotes, such as "1.2"."""

    max_error_share: Percent = "0.1%"
    """Share of requests answered with 5xx by which the new revision may exceed the serving one in the same time, such as "0.1%". 503 and 504 do not count: those requests were not run."""

    max_memory_growth: Percent = "20%"
    """Growth of the server's memory during the analysis that the serving revision does not have, such as "20%"."""

    max_output_difference: Tolerance | None = None
    """Relative difference of the new revision's answers to the serving revision's golden inputs, and to the requests of canary.shadow, in the Euclidean norm, as a number in quotes, such as "0.05". Answers whose size depends on data and differs are left out. Absent: it is not limited. What exceeds it is up to rollout.answers."""

    min_top1_agreement: Percent | None = None
    """Share of rows, such as "99%", in which the new revision's largest element must be the serving one's, of outputs `[rows, classes]` with floats: of the golden inputs the worst, of the requests of canary.shadow the mean. Absent: it is not limited."""


class Rollout(ApiModel):
    """How a new revision is rolled out."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.answers) || self.answers == 'Report' || (has(self.analysis)"
                " && (has(self.analysis.maxOutputDifference) || has(self.analysis.minTop1Agreement)))",
                "say which answers it is about: write analysis.maxOutputDifference or analysis.minTop1Agreement",
                field_path=".answers",
            ),
        )
    )

    strategy: Literal["Surge", "InPlace", "Recreate"] = "Surge"
    """Surge: new pods start before old ones stop. InPlace: one old pod stops before each new one starts, for clusters without a spare device. Recreate: all old pods stop first, with downtime. Changing it restarts no pods."""

    canary: Canary = Canary()
    """Pods of the new revision that are compared with the serving ones before they replace them; not with strategy Recreate, nor InPlace with a single pod or with autoscaling."""

    analysis: Analysis = Analysis()
    """Limits for the new revision compared with the serving one."""

    answers: Literal["Report", "Hold", "Rollback"] | None = None
    """What happens if the answers of a new revision differ by more than analysis.maxOutputDifference, or agree less than analysis.minTop1Agreement. Report: they are reported only. Hold: its canary waits for `enginewright promote`. Rollback: it is rejected. Absent: Rollback."""

    on_failure: Literal["Rollback", "Pause"] = "Rollback"
    """What happens when a new revision fails: Rollback restores the last good revision and rejects the new one until the spec changes. Pause also keeps the pods of its canary, without requests, to be looked at."""

    allow_signature_change: bool = False
    """Whether a new revision may have other inputs and outputs than the serving one, in a way that breaks clients. If not, it waits."""

    progress_timeout: Annotated[Duration | None, between("a progressTimeout", "10s", "168h")] = None
    """How long a new pod may take to be ready once it has its node before its revision counts as failed, such as 10m; absent: 10m, or serving.startupTimeout if that is longer. The time for which it waits for a node, or its node is NotReady, does not count."""

    paused: bool = False
    """Pauses rollouts: changes of the spec are prepared but not rolled out. A move to another runtime image ends."""


class InferenceModelSpec(ApiModel):
    """The model to serve, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.quantization) || !has(self.precision)"
                " || self.precision in ['INT8', 'FP8']",
                "quantization requires precision INT8 or FP8, or no precision; change precision or remove quantization",
                field_path=".quantization",
            ),
            ValidationRule(
                "!has(self.precision) || self.precision != 'FP8'"
                " || (has(self.quantization) && has(self.quantization.calibration))",
                "precision FP8 needs calibration data: write quantization.calibration.uri",
                field_path=".precision",
            ),
            ValidationRule(
                "!has(self.precision) || !has(self.backends) || size(self.backends) == 0"
                f" || ({_RUNS})",
                "the preferred backend does not run this precision: change precision or backends",
                message_expression="'backend ' + self.backends[0] + ' does not run '"
                " + self.precision + ': change precision or backends'",
                field_path=".precision",
            ),
            ValidationRule(
                "!has(self.precision) || !has(self.build) || !has(self.build.interim)"
                f" || ({_INTERIM_RUNS})",
                "the interim does not run this precision: change precision or build.interim",
                message_expression="'the interim ' + self.build.interim + ' does not run '"
                " + self.precision + ': change precision or build.interim'",
                field_path=".build.interim",
            ),
            ValidationRule(
                "!has(self.quantization) || !has(self.quantization.rest) || self.quantization.rest == 'FP32'"
                " || (has(self.precision)"
                f" && (!has(self.backends) || size(self.backends) == 0 || self.backends[0] in {_COMPILED})"
                " && (!has(self.build) || !has(self.build.interim) || self.build.interim == 'None'))",
                f"the rest in FP16 is for engines: write precision INT8 or FP8, {' or '.join(_COMPILED)} first in backends"
                " or no backends, and build.interim: None; or remove quantization.rest",
                field_path=".quantization.rest",
            ),
            ValidationRule(
                "!has(self.build) || !has(self.build.choose) || self.build.choose != 'Fastest'"
                " || !has(self.backends) || size(self.backends) == 0"
                f" || (size(self.backends) > 1 && self.backends[0] in {_COMPILED})",
                f"backends are compared when an engine is built: write {' or '.join(_COMPILED)} first in backends,"
                " and another after it, or build.choose: First",
                field_path=".build.choose",
            ),
            ValidationRule(
                "!has(self.rollout) || !has(self.rollout.progressTimeout)"
                " || !self.rollout.progressTimeout.matches('^[0-9hms]+$')"
                " || (has(self.serving) && has(self.serving.startupTimeout)"
                " ? !self.serving.startupTimeout.matches('^[0-9hms]+$')"
                " || duration(self.rollout.progressTimeout) >= duration(self.serving.startupTimeout)"
                " : duration(self.rollout.progressTimeout) >= duration('10m'))",
                "write a rollout.progressTimeout of at least serving.startupTimeout, which is 10m when absent",
                field_path=".rollout.progressTimeout",
            ),
            ValidationRule(
                "!has(self.serving) || !has(self.serving.embeddings) || (has(self.processing)"
                " && has(self.processing.before) && size(self.processing.before) > 0)",
                "embeddings are of texts, which a tokenizer's step makes tokens of: name it in"
                " processing.before, or remove serving.embeddings",
                field_path=".serving.embeddings",
            ),
        )
    )

    source: Source
    """Address of the model and credentials for it."""

    extensions: Annotated[tuple[ExtensionSpec, ...], Field(max_length=16), ATOMIC] = ()
    """Libraries with operators that the model needs and ONNX Runtime does not have."""

    processing: ProcessingSpec | None = None
    """ONNX models that run on the CPU of the serving pod, before and after the model, so that clients send text or an image, and receive labels. Values are passed by name."""

    target_opset: Annotated[int, Field(ge=7, le=1000), INT32] | None = None
    """Opset of ai.onnx to which the model is converted; absent: converted only if the runtime needs it."""

    precision: Precision | None = None
    """Precision of the served model: FP32, FP16, BF16, FP8 or INT8. Absent: the fastest measured one that keeps the outputs within tolerance, else the model's own."""

    quantization: QuantizationSpec | None = None
    """How the model is quantized, with precision INT8 or FP8, or where the automatic choice finds that faster."""

    shapes: Annotated[tuple[ShapeProfileSpec, ...], Field(max_length=64), map_list("input")] = ()
    """Shape profiles of the dynamic inputs, which then limit what is served. Absent: every size is served; engines take batch 1 to 32, optimized for 8, less where those cost too much, and need an input with any other dynamic dimension named here."""

    parity: ParitySpec = ParitySpec()
    """Tolerances within which the served outputs must agree with those of the source model."""

    backends: Backends | None = None
    """Candidates in order of preference: tensorrt, tensorrt-rtx, cuda, openvino, cpu; absent: those that the accelerator class allows. If the first one cannot serve, the model is rejected; with fallback.policy Allow the next one is tried. cpu is never implied."""

    replicas: Replicas = 1
    """How many pods serve on all classes of accelerator without replicas of their own, which share it evenly and get at least one each; with serving.autoscaling only at first. 0: none; prepared models and engines are kept."""

    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=16), map_list("class")] = ()
    """Classes of accelerator that serve, at most 16. Absent: the only class in the cluster, proposed ones not counted; required if there are several."""

    build: Build = Build()
    """How the Jobs run that prepare the model and build its engines."""

    fallback: Fallback = Fallback()
    """Whether nodes may fall back from the chosen backend; absent: policy Forbid."""

    rollout: Rollout = Rollout()
    """How a new revision is rolled out."""

    serving: Serving = Serving()
    """How the pods serve."""

    pod_template: PodTemplate = PodTemplate()
    """Fields added to the pods that serve the model: resources, placement, accounts, labels."""


class InferenceModel(ApiModel):
    """An ONNX model that is validated, prepared, verified and served."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "size(self.metadata.name) <= 40"
                " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "a model's name becomes the name of a Service: write at most 40 lowercase letters,"
                " digits and '-', beginning with a letter and ending with a letter or digit",
                field_path=".metadata.name",
            )
        )
    )

    kind: ClassVar[str] = "InferenceModel"
    plural: ClassVar[str] = "inferencemodels"

    metadata: ObjectMeta
    spec: InferenceModelSpec
    """The model to serve, and how."""

    status: InferenceModelStatus = InferenceModelStatus()
    """Observed state; written by the operator."""
