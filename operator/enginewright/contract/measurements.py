"""What a sidecar has measured about its pod: `GET /measurements`, port 8081.

The operator polls it only during a rollout, to compare the new revision's pods with those of the revision
that serves. Server and sidecar keep the measurements, so that a restart of the operator loses none.
"""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from enginewright.contract.base import Digest, Message, Text

WINDOW: Final = 10  # consecutive measurements for each median
WINDOWS: Final = 400  # latest ones that are kept of each series
SERIES: Final = 16  # of each source; of more size classes, those with most requests
PROBE_QUERY: Final = "probe"  # /measurements?probe=1 asks for golden inferences at a higher rate
PROBING_SECONDS: Final = 15.0  # for which it holds, so that it ends when the operator stops polling

Source: TypeAlias = Literal["requests", "golden"]


class LatencySeries(Message):
    """Time in the model for requests of one size class, or for one golden sample."""

    source: Source
    name: Text  # input elements as decimal digits (`execution.size_class`), or the sample's name
    count: int  # measurements since `Measurements.since`
    # Unix time of the last measurement, median seconds of `WINDOW` consecutive ones; oldest first
    windows: Annotated[tuple[tuple[float, float], ...], Field(max_length=WINDOWS)] = ()


class MemorySample(Message):
    """The server's resident memory at one moment."""

    at: float  # Unix time
    bytes: int


class ServerMeasurements(Message):
    """What the server reports to its own sidecar: `GET /v2/models/<model>/measurements`."""

    started: float  # Unix time of the process's start
    memory_bytes: int  # resident
    responses: dict[str, int] = Field(default_factory=dict)  # clients' requests by status code
    latencies: Annotated[tuple[LatencySeries, ...], Field(max_length=SERIES)] = ()


class OutputChange(Message):
    """How one output differs from the one that the stable revision's golden sample expects."""

    name: Text
    form: Text = (
        ""  # how the type or the shape differs, and then nothing else is compared; "": equal
    )
    unequal: float | None = None  # share of elements that are not equal
    max_abs: float | None = (
        None  # largest absolute difference of finite elements; None: not numeric
    )
    # Euclidean norm of the difference / that of the expected output; None: not numeric, or it is zero
    relative: float | None = None
    top1: float | None = None  # share of rows with the same largest element; None: no classes
    nonfinite: int = 0  # elements that are NaN or infinite in one of both only


class AnswerChange(Message):
    """Answers to the stable revision's golden inputs, compared with its expected outputs."""

    prepared_key: Digest  # of the stable revision
    samples: int = 0  # compared
    outputs: tuple[OutputChange, ...] = ()  # the worst over the samples
    failure: Text = ""  # why no comparison is possible, such as other inputs; "": it is


class Measurements(Message):
    """Body of the response."""

    model: str
    revision: str
    since: float  # Unix time from which everything here counts: the current server process's start
    responses: dict[str, int] = Field(default_factory=dict)  # clients' requests by status code
    golden_ok: int = 0  # golden inferences whose outputs agreed
    golden_wrong: int = 0  # whose outputs did not
    golden_failed: int = 0  # that the server could not run
    memory: Annotated[tuple[MemorySample, ...], Field(max_length=WINDOWS)] = ()  # oldest first
    latencies: Annotated[tuple[LatencySeries, ...], Field(max_length=2 * SERIES)] = ()
    answers: AnswerChange | None = None  # None: nothing to compare with, or not compared yet
