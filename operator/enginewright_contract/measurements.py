"""What a sidecar has measured about its pod: `GET /measurements`, port 8081.

The operator polls it only during a rollout, to compare the new revision's pods with those of the revision
that serves. Server and sidecar keep the measurements, so that a restart of the operator loses none. Pods
belong to users, so every figure has bounds, within which no comparison overflows.
"""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from enginewright_contract.base import Digest, Message, Number, Seconds, Text

WINDOW: Final = 10  # consecutive measurements for each median
WINDOWS: Final = 400  # latest ones that are kept of each series
COUNTS: Final = 128  # moments whose counts are kept
SERIES: Final = 16  # of each source; of more size classes, those with most requests
OUTPUTS: Final = 64  # that are reported; of more, those that changed most
PROBE_QUERY: Final = "probe"  # /measurements?probe=1 asks for golden inferences at a higher rate
PROBING_SECONDS: Final = 15.0  # for which it holds, so that it ends when the operator stops polling

Source: TypeAlias = Literal["requests", "golden"]
Time: TypeAlias = Annotated[float, Field(ge=0, le=1e11)]  # Unix time
Difference: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
StatusCode: TypeAlias = Annotated[str, Field(pattern=r"^[1-5][0-9]{2}$")]
Responses: TypeAlias = Annotated[dict[StatusCode, Number], Field(max_length=64)]
DropReason: TypeAlias = Literal[
    "NotKept", "CanaryNotReady", "CanaryBusy", "CanaryRefused", "TooLarge"
]


class LatencySeries(Message):
    """Time in the model for requests of one size class, or for one golden sample."""

    source: Source
    """`requests` of clients, or `golden` inferences."""
    name: Text
    """Size class: input elements, rounded up by at most an eighth; or the golden sample's name."""
    inputs: Digest = ""
    """Digest of the golden sample's inputs: names, types, shapes and values; "": requests, or an earlier version."""
    count: Number
    """Measurements since `since`; failed requests and the first of each shape are none."""
    windows: Annotated[tuple[tuple[Time, Seconds], ...], Field(max_length=WINDOWS)] = ()
    """Unix time of the last measurement and median seconds of ten consecutive ones; the latest 400, oldest first."""


class MemorySample(Message):
    """The server's resident memory at one moment."""

    at: Time
    bytes: Number


class Counts(Message):
    """What a pod had counted at one moment, since the start of the server's process."""

    at: Time
    responses: Responses = Field(default_factory=dict)  # clients' requests by status code
    golden_ok: Number = 0
    golden_wrong: Number = 0
    golden_failed: Number = 0


class ServerMeasurements(Message):
    """What the server reports to its own sidecar: `GET /v2/models/<model>/measurements`."""

    started: Time  # of the process's start
    memory_bytes: Number  # resident
    responses: Responses = Field(default_factory=dict)  # clients' requests by status code
    latencies: Annotated[tuple[LatencySeries, ...], Field(max_length=SERIES)] = ()


class OutputChange(Message):
    """How one output differs from the one that the stable revision's golden sample expects."""

    name: Text
    """Name of the output."""
    form: Text = ""
    """How its type or a fixed size differs, and then nothing else is compared; "": equal."""
    resized: Number = 0
    """Samples in which a size that depends on data differs; they are part of no other figure."""
    unequal: Share | None = None
    """Share of elements that are not equal, 0 to 1."""
    max_abs: Difference | None = None
    """Largest absolute difference of finite elements; absent: not numeric."""
    relative: Difference | None = None
    """Euclidean norm of the difference, relative to that of the expected output, which counts as if no element were below 1% of the output's largest value over all samples, or 0.001 if that is zero; 0: equal; absent: they differ and are not numeric, or `nonfinite`."""
    top1: Share | None = None
    """Share of rows with the same largest element, of floats `[rows, classes]`; absent: others."""
    nonfinite: Number = 0
    """Elements that are NaN or infinite in one of both only."""


class AnswerChange(Message):
    """Answers to the stable revision's golden inputs, compared with its expected outputs."""

    prepared_key: Digest
    """Key of the stable revision's prepared model."""
    samples: Number = 0
    """Golden samples that were compared."""
    outputs: Annotated[tuple[OutputChange, ...], Field(max_length=OUTPUTS)] = ()
    """By output, each figure the worst over the samples, of at most 64 that changed most; outputs that vary from run to run are left out."""
    failure: Text = ""
    """Why no comparison is possible, such as other inputs; "": it is."""


class ShadowOutput(Message):
    """How one output differs between the answers of both revisions to the same requests."""

    name: Text
    """Name of the output."""
    answers: Number = 0
    """Pairs of answers that have it."""
    max_abs: Difference | None = None
    """Largest absolute difference of finite elements; absent: not numeric."""
    worst: Difference | None = None
    """Largest relative difference of an answer, as `relative` above; absent: none has one."""
    mean: Difference | None = None
    """Mean of the relative differences; absent: no answer has one."""
    top1: Share | None = None
    """Mean share of rows with the same largest element, of floats `[rows, classes]`; absent: others."""
    incomparable: Number = 0
    """Answers without a relative difference, as of another type or fixed size."""
    resized: Number = 0
    """Answers in which a size that depends on data differs; they are part of no other figure."""


class ShadowComparison(Message):
    """Clients' requests that a canary has answered as well."""

    revision: Text
    """Revision of the canary."""
    compared: Number = 0
    """Requests whose two answers were compared."""
    rejected: Number = 0
    """Requests that the canary refused with 4xx."""
    failed: Number = 0
    """Requests that the canary answered with 5xx, or not in time."""
    dropped: Number = 0
    """Chosen requests that were not compared."""
    dropped_by: Annotated[dict[Text, Number], Field(max_length=SERIES)] = Field(
        default_factory=dict
    )
    """Of them, by reason: `NotKept` by the server, since there are too many or they are too large; `CanaryNotReady`; `CanaryBusy`; `CanaryRefused`, since it needs a token that the pod does not have; `TooLarge`: the answer would take more than the sidecar's memory to decode."""
    outputs: Annotated[tuple[ShadowOutput, ...], Field(max_length=OUTPUTS)] = ()
    """By output, of at most 64 that changed most; outputs that vary from run to run are left out."""


class Measurements(Message):
    """Body of the response."""

    model: Text
    """Name of the InferenceModel."""
    revision: Text
    """Revision that the pod serves."""
    since: Time
    """Unix time from which everything except `answers` and `shadow` counts: the start of the server's process."""
    responses: Responses = Field(default_factory=dict)
    """Clients' inference requests by status code."""
    golden_ok: Number = 0
    """Golden inferences whose outputs agreed."""
    golden_wrong: Number = 0
    """Golden inferences whose outputs did not agree."""
    golden_failed: Number = 0
    """Golden inferences that the server could not run, or did not answer in time; not those for which it was too busy."""
    golden_left_out: Annotated[tuple[Text, ...], Field(max_length=SERIES)] = ()
    """Golden samples that take longer than a request on average, and so run only once there have been no requests for 60 s."""
    counts: Annotated[tuple[Counts, ...], Field(max_length=COUNTS)] = ()
    """The counts above at earlier Unix times `at`, every 2 s, older ones further apart, oldest first."""
    memory: Annotated[tuple[MemorySample, ...], Field(max_length=WINDOWS)] = ()
    """Resident memory of the server: Unix time and bytes, every 2 s, older ones further apart, oldest first."""
    latencies: Annotated[tuple[LatencySeries, ...], Field(max_length=2 * SERIES)] = ()
    """Times in the model, see below, of at most 16 size classes and of the golden samples."""
    answers: AnswerChange | None = None
    """Comparison with the stable revision, see below; absent: nothing to compare with, or not compared yet."""
    shadow: ShadowComparison | None = None
    """Clients' requests that a canary has answered as well, see below; absent: no canary was to answer any."""
