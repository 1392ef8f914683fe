"""How a server answers requests: `Serving.options` of the API sets these fields, the server reads them in its task."""

from typing import Any, Final, Literal

from enginewright_contract.base import Message

MAX_QUEUE: Final = 256  # default of serving.maxQueue
BATCH_SIZE: Final = 32  # default of serving.batching.maxSize
REQUEST_SECONDS: Final = 60.0  # default of serving.requestTimeout
ATTENTION_MASK: Final = (
    "attention_mask"  # default of serving.embeddings.mask: its name in models exported by Optimum
)


class AccessLogTask(Message):
    """Which requests get a line in the server's log."""

    share: float  # of all, 0 to 1
    failed: Literal["None", "ServerErrors", "All"] = "ServerErrors"  # regardless of the share


class TracingTask(Message):
    """Which requests are traced, and where their spans are sent."""

    endpoint: str | None = None  # base of the OTLP/HTTP URL, else in OTEL_* variables
    share: float  # 0 to 1, of requests whose client says nothing about tracing


class EmbeddingsTask(Message):
    """How texts become vectors."""

    pooling: Literal["Mean", "CLS", "Last", "None"]  # of the tokens' vectors; None: the model pools
    normalize: bool = True
    output: str | None = None  # absent: the only one that fits
    mask: str = ATTENTION_MASK  # input of the model that says which tokens are the text's


class ServingOptions(Message):
    """Settings of a server; a new field has a default, which keeps the hashes of revisions without it."""

    max_queue: int = MAX_QUEUE  # waiting requests; further ones get 503
    batch_size: int = BATCH_SIZE  # rows that requests which run together may have; 1: none do
    batch_delay_seconds: float = 0.0  # that a request may wait for others
    # value by input with which the shorter requests of a batch are padded; without it only equal lengths run together
    batch_padding: dict[str, int] | None = None
    concurrent_runs: int | None = None  # at most; by default as many as are worthwhile
    # that a request without a timeout may wait for the model; 0: without limit
    request_seconds: float = REQUEST_SECONDS
    access_log: AccessLogTask | None = None
    tracing: TracingTask | None = None
    embeddings: EmbeddingsTask | None = None  # without it /v1/embeddings does not exist

    def options(self) -> dict[str, Any]:
        """Return these fields alone, for another model that has them."""
        return {name: getattr(self, name) for name in ServingOptions.model_fields}
