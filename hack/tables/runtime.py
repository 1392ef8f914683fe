"""What the runtime supports, allows and checks."""

import ast
import inspect
import textwrap
from collections.abc import Sequence
from enum import StrEnum

from enginewright.api.serving import Serving
from enginewright_contract.engines import LIBRARIES, PROVIDERS
from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.precisions import MIN_CAPABILITY, RUNS
from enginewright_contract.task import Precision
from enginewright_contract.verdict import Check
from enginewright_runtime.graph.scoped.shape_nodes import ARITHMETIC
from enginewright_runtime.proof.parity.tolerances import DEFAULTS as TOLERANCES
from enginewright_runtime.proof.parity.tolerances import ROUNDING, Tolerance
from enginewright_serving.server.protocol.embeddings import MOST_TEXTS
from enginewright_serving.server.protocol.encode import JSON_ELEMENTS
from enginewright_serving.server.protocol.grpc.encode import TYPED_ELEMENTS
from enginewright_serving.server.protocol.json_cost import NAMES, VALUES
from enginewright_serving.server.protocol.request_checks import STRINGS
from enginewright_serving.sidecar.settings import INTERVALS
from enginewright_serving.transport.settings import AGE_JITTER, MIB, SLOW_RATE, TransportSettings
from enginewright_serving.transport.tls_overhead import MOST

from hack.tables.markdown import code, table


def precisions() -> str:
    """Return which backend supports which precision, from which compute capability on."""

    def cell(precision: Precision, backend: str) -> str:
        if precision not in RUNS[backend]:
            return "no"
        minimum = MIN_CAPABILITY.get(precision)
        return ".".join(map(str, minimum)) if minimum and backend in DEVICE_BACKENDS else "yes"

    named: tuple[Precision, ...] = ("FP16", "BF16", "INT8", "FP8")
    rows = ((item, *(cell(item, backend) for backend in RUNS)) for item in named)
    return table(("", *map(code, RUNS)), rows)


def devices() -> str:
    """Return the GPUs that NVIDIA's libraries build for and ONNX Runtime's providers run on."""

    def row(backend: str) -> Sequence[str]:
        library, provider = LIBRARIES.get(backend), PROVIDERS[backend]
        built = str(library.capabilities) if library else "no engine"
        served = provider.capabilities or (library.capabilities if library else "")
        parts = "of parts too" if provider.loads_parts else "of whole models only"
        types = ", ".join(sorted(provider.types)) if provider.types else "all"
        return code(backend), built, str(served), parts if library else "no engine", types

    heading = ("backend", "builds for", "serves on", "loads engines", "inputs and outputs of")
    return table(heading, map(row, PROVIDERS))


def tolerances() -> str:
    """Return the tolerances of outputs, by precision."""
    heading = (
        *("", "share of elements", "within, of value + largest", "all within, of largest more"),
        *("cosine", "top-1", "part, of spread", "integers, booleans, strings equal", "zero"),
    )
    named = {**TOLERANCES, "FP32, converted against source": ROUNDING}
    return table(heading, (_tolerance(name, item) for name, item in named.items()))


def _tolerance(name: str, tolerance: Tolerance) -> Sequence[str]:
    return (
        name,
        _percent(1 - tolerance.outliers),
        f"{_percent(tolerance.rtol)} + {_percent(tolerance.scale)}",
        _percent(tolerance.outlier_size),
        f"{tolerance.cosine:g}",
        _percent(tolerance.top1 or 0),
        _percent(tolerance.part or 0),
        _percent(1 - tolerance.unequal),
        f"{tolerance.zero_atol:g}",
    )


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def shape_operators() -> str:
    """Return the operators that may be shape arithmetic."""
    return ", ".join(sorted(ARITHMETIC)) + "."


def server_limits() -> str:
    """Return the server's limits."""
    limits = TransportSettings()

    def mebibytes(size: int) -> str:
        return f"{size // MIB} MiB"

    queue = Serving.model_fields["max_queue"].default
    rate = f"{limits.transfer_rate // 1024} KiB"
    missing = f"those of {limits.transfer_window:g} s may be missing"
    rows = (
        (
            "requests waiting for the model",
            f"`spec.serving.maxQueue`, {queue}; one more is a 503, or takes the place of a less [urgent](../serving.md#priorities) one; likewise large ones waiting to be decoded",
        ),
        (
            "body, as it arrives and [expanded](../serving.md#compression)",
            f"{mebibytes(limits.body_bytes)}, or the largest request that the shape profiles admit, if that is more",
        ),
        (
            "JSON in a request",
            f"{mebibytes(limits.json_bytes)}, {VALUES:,} values and {NAMES:,} names",
        ),
        ("strings in a request, in all its BYTES tensors", f"{STRINGS:,}"),
        ("texts in a request for [embeddings](../processing.md#embeddings)", f"{MOST_TEXTS:,}"),
        (
            "typed contents in a gRPC request",
            f"{mebibytes(limits.json_bytes)}, {VALUES:,} elements of an input",
        ),
        ("elements of an output in JSON", f"{JSON_ELEMENTS:,}; more only in binary"),
        ("elements of an output in typed contents", f"{TYPED_ELEMENTS:,}; more only raw"),
        (
            "bytes of requests that have arrived, until they are answered, and of responses until they are read",
            f"{mebibytes(limits.inflight_bytes)}, or four of the largest; small requests find up to a sixteenth more, less their own size; beyond that, transfers below {SLOW_RATE // 1024} KiB/s are closed, slowest first; then 503",
        ),
        (
            "bytes of unfinished messages that one gRPC connection announces",
            "the same, whether they have arrived or not; further ones are UNAVAILABLE",
        ),
        ("request line and headers", f"{limits.head_bytes // 1024} KiB, 128 fields"),
        ("TLS without data, such as updates of keys", f"{MOST // 1024} KiB"),
        (
            "connections, of each protocol",
            f"{limits.connections + limits.reserved_connections}, or what the limit on open files allows; then [one that waits for its client](../serving.md#when-a-limit-is-reached) is closed",
        ),
        (
            "inference requests that are due at a time",
            f"{limits.connections}; one more is a 503",
        ),
        (
            "time for a head; idle connection",
            f"{limits.head_seconds:g} s; {limits.idle_seconds:g} s",
        ),
        (
            "time for a body or an answer",
            f"as long as {rate} arrive, or the client's kernel acknowledges, each second; {missing}",
        ),
        (
            "age of a connection",
            f"{limits.connection_age:g} s ± {AGE_JITTER:.0%}; then the next answer says `Connection: close`, or the connection is closed after {limits.aged_idle_seconds:g} s without a request, so that clients reach new pods",
        ),
    )
    return table(("", ""), rows)


def checks() -> str:
    """Return the sidecar's checks, with the docstring of each."""
    rows = (
        (
            code(item),
            "with golden" if item is Check.PROBE_LATENCY else f"{INTERVALS[item]:g} s",
            about,
        )
        for item, about in zip(Check, _docstrings(Check), strict=True)
    )
    return table(("check", "every", "ok when, and the reason when not"), rows)


def _docstrings(names: type[StrEnum]) -> list[str]:
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(names))).body
    parts = made.body[1:] if isinstance(made, ast.ClassDef) else []
    values = (part.value for part in parts if isinstance(part, ast.Expr))
    return [
        inspect.cleandoc(str(value.value)) for value in values if isinstance(value, ast.Constant)
    ]
