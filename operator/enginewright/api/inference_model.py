"""InferenceModel: what its owner wants served, and what the operator has made of it."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

from enginewright.api.base import ApiModel, ObjectMeta
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.api.markers import ATOMIC, INT32, INT64, NotYet, Rule, map_list, rules
from enginewright.api.pods import (
    Environment,
    JobTemplate,
    LocalObjectReference,
    PodTemplate,
    Resources,
)
from enginewright.api.scalars import (
    DnsLabel,
    Duration,
    FreeForm,
    Number,
    Percent,
    Quantity,
    Sha256,
    Tolerance,
    Uri,
    between,
)
from enginewright.contract.precisions import RUNS

MAX_REPLICAS = 1000

_RUNS = " && ".join(  # in CEL
    f"(self.backends[0] != '{backend}' || self.precision in {sorted(able)})"
    for backend, able in RUNS.items()
)

ChannelNumbers: TypeAlias = Annotated[
    tuple[Annotated[Number, Field(description="A number in quotes.")], ...],
    Field(max_length=4),
    ATOMIC,
]
Replicas: TypeAlias = Annotated[int, Field(ge=0, le=MAX_REPLICAS), INT32]
TensorName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class Backend(StrEnum):
    """How a class of accelerator runs a model."""

    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"
    CUDA = "cuda"
    OPENVINO = "openvino"
    CPU = "cpu"


class Precision(StrEnum):
    """Numeric precision of the weights and activations that serve."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "INT8"


Backends: TypeAlias = Annotated[
    tuple[
        Annotated[
            Backend,
            Field(description="One of tensorrt, tensorrt-rtx, cuda, openvino, cpu."),
        ],
        ...,
    ],
    Field(min_length=1, max_length=5),
    ATOMIC,
    Rule(
        "self.all(x, self.exists_one(y, x == y))",
        "name each backend once, the preferred one first",
    ),
]


class Source(ApiModel):
    """Where the model lies and how it is reached."""

    uri: Uri
    """Address of the .onnx file, or of a folder or archive (.zip, .tar, .tar.gz) with one: https, http, s3, gs, az, hf, oci or pvc://CLAIM/PATH. External data files are looked for beside it. Credentials do not belong here."""

    sha256: Sha256 | None = None
    """Digest of the .onnx file, or of the archive, as `sha256sum` prints it. Absent: what lies there at first is served until a refresh is asked for; status.source has its digest."""

    secret_ref: LocalObjectReference | None = None
    """Secret of this namespace with the credentials: token, or username and password, for https; HF_TOKEN for hf; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3; service-account.json for gs; AZURE_STORAGE_ACCOUNT_KEY for az; a docker-registry Secret for oci. Absent: the pod's own identity."""

    refresh_interval: Annotated[
        Duration,
        Rule(
            "!self.matches('^[0-9hms]+$') || duration(self) == duration('0s')"
            " || duration(self) >= duration('1m')",
            "write 0s for never, or an interval of at least 1m",
        ),
    ] = "0s"
    """How often all that lies at the model's addresses is fetched again, such as 24h: what has changed is prepared, proved and rolled out. 0s: only when the annotation enginewright.dev/refresh is given another value."""


class Extension(ApiModel):
    """A library with operators that the model needs and ONNX Runtime does not have."""

    uri: Uri
    """Address of the shared library."""

    sha256: Sha256
    """Digest of the library, as `sha256sum` prints it: it is code that will run."""

    type: Literal["TensorRTPlugin", "CustomOperators"]
    """TensorRTPlugin: loaded into TensorRT's registry. CustomOperators: registered with ONNX Runtime."""


class Preprocessing(ApiModel):
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
    """What every value is divided by, as a number in quotes."""

    mean: ChannelNumbers = ()
    """What is then taken off, one number in quotes a channel, or one for all; absent: 0."""

    std: ChannelNumbers = ()
    """What is then divided by, one number in quotes a channel, or one for all; absent: 1."""


class Calibration(ApiModel):
    """Data from which the ranges of quantised tensors are learnt."""

    uri: Uri
    """Address of a .npz file with one array an input, samples along the first axis, or of a folder or archive of .npy files or images, one a sample."""

    secret_ref: LocalObjectReference | None = None
    """Secret of this namespace with the credentials for the address."""

    preprocessing: Preprocessing | None = None
    """How images become samples; needed for images alone."""

    samples: Annotated[int, Field(ge=1, le=1_000_000), INT32] | None = None
    """How many samples are used; absent: all."""

    method: Literal["MinMax", "Entropy", "Percentile"] = "MinMax"
    """How a range is taken from what was seen: MinMax, Entropy or Percentile."""


class Quantization(ApiModel):
    """How the model is quantised, with precision INT8 or FP8, or where that is found to pay."""

    calibration: Calibration | None = None
    """Data from which the ranges of quantised tensors are learnt. Absent: ranges are taken from every request as it comes, which only backend cpu does."""

    per_channel: bool = True
    """Whether weights get a scale for each output channel instead of one for the whole tensor."""

    max_excluded_share: Percent = "25%"
    """Share of the nodes that may stay as they are to keep the outputs right, such as "25%"."""


class ValueRange(ApiModel):
    """Range of the values that golden inputs are drawn from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
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
    Rule(
        "self.all(size, size >= 1 && size <= 2147483647)",
        "write every dimension as a fixed size of at least 1, never 0, -1 or a name",
    ),
]

LeastShape: TypeAlias = Annotated[
    tuple[Annotated[int, INT64, Field(description="Size of one dimension.")], ...],
    Field(max_length=16),
    ATOMIC,
    Rule(
        "self.all(size, size >= 0 && size <= 2147483647)",
        "write every dimension as a fixed size, 0 where it may be empty, never -1 or a name",
    ),
]


class ShapeProfile(ApiModel):
    """The sizes that one dynamic input may have."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "size(self.min) == size(self.opt) && size(self.opt) == size(self.max)",
                "give min, opt and max the same number of dimensions: the rank of the input",
                message_expression="'input ' + self.input + ': give min, opt and max the same number"
                " of dimensions, the rank of the input'",
            ),
            Rule(
                "size(self.min) != size(self.opt) || size(self.opt) != size(self.max)"
                " || self.opt.all(i, size, self.min[i] <= size && size <= self.max[i])",
                "write sizes with min <= opt <= max in every dimension",
                message_expression="'input ' + self.input + ': write sizes with min <= opt <= max"
                " in every dimension'",
            ),
        )
    )

    input: TensorName
    """Name of the input, as the model has it."""

    min: LeastShape
    """Smallest size of every dimension, such as [1, 3, 224, 224]; 0 where it may be empty, as the past of a decoder; [] for a scalar."""

    opt: Shape
    """Most usual size of every dimension, for which engines are tuned, such as [8, 3, 224, 224]."""

    max: Shape
    """Largest size of every dimension, such as [32, 3, 224, 224]. Larger requests are refused."""

    range: ValueRange | None = None
    """Range of the values that golden inputs are drawn from; absent: 0 to 1, and 0 to 9 for integers."""


class Samples(ApiModel):
    """Golden inputs of the user's own, perhaps with the outputs that are expected."""

    uri: Uri
    """Address of a .npz file with arrays named SAMPLE/INPUT and, for expected outputs, SAMPLE/OUTPUT: at most 64 samples. Bare names are one sample."""

    secret_ref: LocalObjectReference | None = None
    """Secret of this namespace with the credentials: token, or username and password, for https; HF_TOKEN for hf; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3; service-account.json for gs; AZURE_STORAGE_ACCOUNT_KEY for az; a docker-registry Secret for oci. Absent: the pod's own identity."""


class OutputTolerance(ApiModel):
    """Tolerances for one output."""

    name: TensorName
    """Name of the output, as the model has it."""

    rtol: Tolerance | None = None
    """Relative tolerance, as a number in quotes."""

    atol: Tolerance | None = None
    """Absolute tolerance, as a number in quotes."""


class Parity(ApiModel):
    """How closely what serves must agree with the source model."""

    samples: Samples | None = None
    """Golden inputs of your own. Absent: inputs drawn at random, the same ones every time."""

    rtol: Tolerance | None = None
    """Relative tolerance, as a number in quotes, such as "0.01". Where it or atol is given, every value must be within them; absent: nearly all values within what suits their type."""

    atol: Tolerance | None = None
    """Absolute tolerance, as a number in quotes, such as "0.001"; see rtol."""

    outputs: Annotated[tuple[OutputTolerance, ...], Field(max_length=64), map_list("name")] = ()
    """Tolerances for single outputs, which take the place of rtol and atol."""


class Accelerator(ApiModel):
    """One class of accelerator that is to serve the model."""

    class_name: Annotated[DnsLabel, Field(alias="class")]
    """Name of an AcceleratorClass; `kubectl get acceleratorclasses` lists them."""

    replicas: Replicas | None = None
    """How many pods serve on this class; absent: its share of spec.replicas. 0: none."""


class Build(ApiModel):
    """How the Jobs run that prepare the model and build its engines."""

    workspace: Quantity | None = None
    """Device memory that a TensorRT build may use, such as 4Gi; absent: all that the builder may take. A build that runs out is tried again with less."""

    timeout: Annotated[Duration, between("a timeout", "1m", "168h")] = "1h"
    """How long the pod of one Job may run on a node, such as 1h, from 1m to 168h; then the model is refused with reason Timeout."""

    resources: Resources = Resources()
    """Compute resources of every stage of the Jobs."""

    pod_template: JobTemplate = JobTemplate()
    """Where the Jobs run and what is added to them. Changing it rebuilds nothing; a Job of which no pod has run yet is replaced."""

    interim: Annotated[
        Literal["None", "CUDA", "CPU"] | None, NotYet(accepts="None", told="None")
    ] = None
    """What serves while an engine is built: None, CUDA or CPU."""


class Fallback(ApiModel):
    """What happens when nodes run elsewhere than on the chosen backend."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.policy) || self.policy != 'Budget' || has(self.maxComputeShare) || has(self.maxNodeShare)",
                'policy Budget needs a share: write maxComputeShare: "2%", maxNodeShare: "5%" or both',
            ),
            Rule(
                "(has(self.policy) && self.policy == 'Budget') || (!has(self.maxComputeShare) && !has(self.maxNodeShare))",
                "maxComputeShare and maxNodeShare go with policy: Budget; remove them or set that policy",
            ),
        )
    )

    policy: Literal["Forbid", "Budget", "Allow"] = "Forbid"
    """Forbid: no fallback. Budget: up to the shares. Allow: serves, also on the next backend of spec.backends, and FallbackActive reports it."""

    max_compute_share: Percent | None = None
    """Share of the computing time that may run elsewhere, such as "2%"."""

    max_node_share: Percent | None = None
    """Share of the nodes that may run elsewhere, such as "5%"."""


class Canary(ApiModel):
    """A few pods with the new revision, tried before it takes over."""

    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), INT32] | None = None
    """How many pods try the new revision."""

    hold: Duration | None = None
    """How long the new revision is watched before it is promoted, such as 5m."""

    min_samples: Annotated[int, Field(ge=0, le=10_000_000), INT32] | None = None
    """How many requests must have been seen before a verdict counts."""

    probe_traffic: bool | None = None
    """Whether the operator sends requests of its own where users send too few."""


class Analysis(ApiModel):
    """Limits by which a canary is compared with what serves."""

    max_latency_ratio: Tolerance | None = None
    """Latency of the new revision divided by that of the old one, such as "1.2"."""

    max_error_share: Percent | None = None
    """Share of requests that may fail, such as "0.1%"."""


class Rollout(ApiModel):
    """How a new revision takes over."""

    strategy: Literal["Surge", "Recreate"] = "Surge"
    """Surge: the new pods first, then the old ones go. Recreate: the other way round, with downtime, for when no device is spare. Changing it restarts no pods."""

    canary: Annotated[Canary | None, NotYet()] = None
    """A few pods with the new revision, tried before it takes over."""

    analysis: Annotated[Analysis | None, NotYet()] = None
    """Limits by which a canary is compared with what serves."""

    on_failure: Annotated[Literal["Rollback", "Pause"] | None, NotYet()] = None
    """What happens when a new revision fails: Rollback or Pause."""

    progress_timeout: Annotated[Duration | None, between("a progressTimeout", "10s", "168h")] = None
    """How long a rollout may go without a new pod that is available before it counts as failed, such as 10m; absent: 10m, or serving.startupTimeout where that is longer."""

    paused: bool = False
    """Holds what serves as it is: changes of the spec are prepared, not rolled out."""


class Batching(ApiModel):
    """How requests are put together into batches."""

    max_size: Annotated[int, Field(ge=1, le=4096), INT32] | None = None
    """How many requests one batch holds at most."""

    max_delay: Duration | None = None
    """How long a request may wait for others, such as 1s; 0s: not at all."""


class Autoscaling(ApiModel):
    """How the number of pods follows the load."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
                "write a minReplicas of at most maxReplicas",
            )
        )
    )

    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), INT32] | None = None
    """Fewest pods a class."""

    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), INT32]
    """Most pods a class."""

    metrics: Annotated[
        tuple[
            Annotated[
                FreeForm,
                Field(
                    description="One metric, as in `kubectl explain"
                    " horizontalpodautoscaler.spec.metrics --api-version=autoscaling/v2`."
                ),
            ],
            ...,
        ]
        | None,
        Field(max_length=16),
        ATOMIC,
    ] = None
    """What the number of pods follows; absent: the share of time that the devices are busy."""


class Sidecar(ApiModel):
    """The container beside the server that keeps proving it."""

    resources: Resources = Resources()
    """Its compute resources; absent: 10m CPU, a memory limit of 256Mi or more for large golden outputs, no CPU limit. A change is a new revision."""

    env: Environment = ()
    """Its environment."""


class Serving(ApiModel):
    """How the pods serve."""

    batching: Annotated[Batching | None, NotYet()] = None
    """How requests are put together into batches."""

    max_queue: Annotated[int, Field(ge=1, le=65536), INT32] = 256
    """How many requests wait in one pod at most; one more is answered with 503 and Retry-After."""

    autoscaling: Annotated[Autoscaling | None, NotYet()] = None
    """How the number of pods follows the load."""

    startup_timeout: Annotated[Duration | None, between("a startupTimeout", "10s", "24h")] = None
    """How long the server may take to load and verify the model before it is restarted, such as 30m, from 10s to 24h; absent: 10m."""

    termination_grace_period: Annotated[
        Duration | None, between("a terminationGracePeriod", "20s", "1h")
    ] = None
    """How long a pod may take to end, such as 5m, from 20s to 1h: requests in progress are cut off 15s before; absent: 40s."""

    sidecar: Sidecar = Sidecar()
    """What the sidecar of every pod gets."""


class InferenceModelSpec(ApiModel):
    """What is to be served, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.quantization) || !has(self.precision)"
                " || self.precision in ['INT8', 'FP8']",
                "quantization goes with precision INT8 or FP8, or with none; change precision or remove quantization",
                field_path=".quantization",
            ),
            Rule(
                "!has(self.precision) || self.precision != 'FP8'"
                " || (has(self.quantization) && has(self.quantization.calibration))",
                "precision FP8 needs data to calibrate with: write quantization.calibration.uri",
                field_path=".precision",
            ),
            Rule(
                "!has(self.precision) || !has(self.backends) || size(self.backends) == 0"
                f" || ({_RUNS})",
                "the preferred backend does not run this precision: change precision or backends",
                message_expression="'backend ' + self.backends[0] + ' does not run '"
                " + self.precision + ': change precision or backends'",
                field_path=".precision",
            ),
            Rule(
                "!has(self.rollout) || !has(self.rollout.progressTimeout)"
                " || !self.rollout.progressTimeout.matches('^[0-9hms]+$')"
                " || (has(self.serving) && has(self.serving.startupTimeout)"
                " ? !self.serving.startupTimeout.matches('^[0-9hms]+$')"
                " || duration(self.rollout.progressTimeout) >= duration(self.serving.startupTimeout)"
                " : duration(self.rollout.progressTimeout) >= duration('10m'))",
                "write a rollout.progressTimeout of at least serving.startupTimeout, which is 10m when absent",
                field_path=".rollout.progressTimeout",
            ),
        )
    )

    source: Source
    """Where the model lies and how it is reached."""

    extensions: Annotated[tuple[Extension, ...], Field(max_length=16), ATOMIC] = ()
    """Libraries with operators that the model needs and ONNX Runtime does not have."""

    target_opset: Annotated[int, Field(ge=7, le=1000), INT32] | None = None
    """Opset of ai.onnx to which the model is converted; absent: converted only if the runtime needs it."""

    precision: Precision | None = None
    """Precision that serves: FP32, FP16, BF16, FP8 or INT8. Absent: the fastest measured one that keeps the outputs right, else the model's own."""

    quantization: Quantization | None = None
    """How the model is quantised, with precision INT8 or FP8, or where that is found to pay."""

    shapes: Annotated[tuple[ShapeProfile, ...], Field(max_length=64), map_list("input")] = ()
    """Sizes of the dynamic inputs, which are then limits of what is served. Absent: every size is served; engines take batch 1 to 32, tuned for 8, less where those cost too much, and need an input with any other dynamic dimension named here."""

    parity: Parity = Parity()
    """How closely what serves must agree with the source model."""

    backends: Backends | None = None
    """Candidates in order of preference: tensorrt, tensorrt-rtx, cuda, openvino, cpu; absent: what the accelerator class allows. The first one serves or the model is refused; with fallback.policy Allow the next one is tried. cpu is never implied."""

    replicas: Replicas = 1
    """How many pods serve on all classes of accelerator that have no count of their own: they share it evenly, each has one at least. 0: none; what was prepared is kept."""

    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=16), map_list("class")] = ()
    """Classes of accelerator that serve, at most 16. Absent: the one class there is, proposed ones not counted; where there are several, name them."""

    build: Build = Build()
    """How the Jobs run that prepare the model and build its engines."""

    fallback: Fallback = Fallback()
    """What happens when nodes run elsewhere than on the chosen backend; absent: policy Forbid."""

    rollout: Rollout = Rollout()
    """How a new revision takes over."""

    serving: Serving = Serving()
    """How the pods serve."""

    pod_template: PodTemplate = PodTemplate()
    """What is added to the pods that serve the model: resources, placement, accounts, labels."""


class InferenceModel(ApiModel):
    """An ONNX model that is validated, prepared, proven and served."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
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
    """What is to be served, and how."""

    status: InferenceModelStatus = InferenceModelStatus()
    """What has been made of it; written by the operator."""
