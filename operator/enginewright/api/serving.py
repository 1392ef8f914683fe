"""`spec.serving`: how pods answer requests."""

from collections.abc import Mapping
from typing import Annotated, Literal

from enginewright_contract.serving_options import (
    ATTENTION_MASK,
    BATCH_SIZE,
    MAX_QUEUE,
    REQUEST_SECONDS,
    AccessLogTask,
    EmbeddingsTask,
    ServingOptions,
    TracingTask,
)
from pydantic import ConfigDict, Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import ATOMIC, INT32, INT64, ValidationRule, rules
from enginewright.api.pods import Environment, LocalObjectReference, Resources
from enginewright.api.route import Route
from enginewright.api.scalars import (
    MAX_REPLICAS,
    Duration,
    FreeForm,
    Percent,
    ShortDuration,
    TensorName,
    between,
    duration,
    share,
    short_duration,
)

_Padding = Annotated[
    Mapping[
        str,
        Annotated[int, INT64, Field(description="Value of the elements that are added.")],
    ],
    Field(min_length=1, max_length=16),
]


class Batching(ApiModel):
    """How requests are combined into batches."""

    max_size: Annotated[int, Field(ge=1, le=4096), INT32] = BATCH_SIZE
    """Maximum size of the inputs' first dimension in a run of several requests; 1: each runs alone. A pod uses the smallest size that is about the fastest per request, and none if a request's outputs depend on the others, or a batch is not faster."""

    max_delay: ShortDuration = "0s"
    """How long a request may wait for others, such as 5ms, up to 1s; 0s: only those that wait anyway run together."""

    padding: _Padding | None = None
    """Values by input, with which requests of different lengths are padded to the longest of their batch, such as input_ids: 0, attention_mask: 0. Outputs are cut back. A pod proves at its start that padding changes no output, and says why if it does; at most half of a batch is padding. Absent: only requests of the same length run together."""


class Autoscaling(ApiModel):
    """How the number of pods follows the load, with a HorizontalPodAutoscaler for each class."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
                "write a minReplicas of at most maxReplicas",
            )
        )
    )

    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), INT32] | None = None
    """Minimum number of pods per class."""

    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), INT32]
    """Maximum number of pods per class."""

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
    """Metrics that the number of pods follows. Absent: 80% of the CPU that the server requests, on classes without a resourceName; on others, or if the server requests no CPU, one waiting request per pod (enginewright_queue_depth)."""


class Auth(ApiModel):
    """Who may send requests."""

    secret_ref: LocalObjectReference
    """Secret of this namespace whose keys are names of clients and whose values are their bearer tokens, one per line. A change takes effect in running pods within two minutes; without a valid token every request is refused."""


class AccessLog(ApiModel):
    """Lines about single requests in the log of the server."""

    sample: Percent = "1%"
    """Share of the inference requests that get a line, chosen at random, such as "1%"."""

    failed: Literal["None", "ServerErrors", "All"] = "ServerErrors"
    """Failed requests that get a line in any case, ten a second at most: those with a 5xx (ServerErrors), also those with a 4xx (All), or None."""

    def options(self) -> AccessLogTask:
        """Return what the server's task contains."""
        return AccessLogTask(share=share(self.sample) or 0.0, failed=self.failed)


class Tracing(ApiModel):
    """OpenTelemetry spans of requests."""

    endpoint: Annotated[
        str | None,
        Field(max_length=1024),
        ValidationRule(
            "self.matches('^https?://[A-Za-z0-9._:\\\\[\\\\]-]+(/[A-Za-z0-9._~/-]*)?$')",
            "write the base of the collector's URL, such as http://collector.monitoring:4318; credentials belong into OTEL_EXPORTER_OTLP_HEADERS",
        ),
    ] = None
    """Base of the collector's URL for OTLP/HTTP, to which /v1/traces is appended, such as http://collector.monitoring:4318; absent: OTEL_EXPORTER_OTLP_ENDPOINT in podTemplate.env."""

    sample: Percent = "1%"
    """Share of the inference requests that are traced, such as "1%", of those without a traceparent; with one, its sampled flag decides."""

    def options(self) -> TracingTask:
        """Return what the server's task contains."""
        return TracingTask(endpoint=self.endpoint, share=share(self.sample) or 0.0)


class Embeddings(ApiModel):
    """Vectors of texts in OpenAI's form, at /v1/embeddings."""

    pooling: Literal["Mean", "CLS", "Last", "None"]
    """How the vectors of a text's tokens become one, as the model was trained: their mean (Mean), that of the first token (CLS) or of the last (Last); with None the output has one vector for each text."""

    normalize: bool = True
    """Whether vectors are scaled to length 1."""

    output: TensorName | None = None
    """Output with the vectors: of the tokens, with the shape [texts, tokens, size], or with pooling None [texts, size]; absent: the only output of floats with so many dimensions."""

    mask: TensorName = ATTENTION_MASK
    """Input of the model, made by a step of processing.before with the shape [texts, tokens], that is 0 where a token is not the text's. Its tokens are counted as usage."""

    def options(self) -> EmbeddingsTask:
        """Return what the server's task contains."""
        return EmbeddingsTask(
            pooling=self.pooling, normalize=self.normalize, output=self.output, mask=self.mask
        )


class Tls(ApiModel):
    """TLS on the ports for clients."""

    secret_ref: LocalObjectReference
    """Secret of this namespace and of type kubernetes.io/tls, such as cert-manager's: tls.crt with the certificate and its chain, tls.key. New connections get a renewed certificate within two minutes."""


class Sidecar(ApiModel):
    """The sidecar container, which continuously verifies the server."""

    resources: Resources = Resources()
    """Its compute resources; absent: a request of 10m CPU without a limit, a memory limit of 256Mi, or more for large golden outputs. Changing them creates a new revision."""

    env: Environment = ()
    """Its environment."""


class Serving(ApiModel):
    """How the pods serve."""

    batching: Batching = Batching()
    """How requests are combined into batches."""

    max_concurrent_runs: Annotated[int, Field(ge=1, le=256), INT32] | None = None
    """Maximum number of runs of the model at the same time in a pod; each needs memory for its values, none for weights. 1: one after another. Absent: as many as make a pod on ONNX Runtime's CPU provider faster, at most its whole CPUs; each pod finds out when it starts."""

    max_queue: Annotated[int, Field(ge=1, le=65536), INT32] = MAX_QUEUE
    """Maximum number of queued requests per pod; further ones get 503 with Retry-After."""

    request_timeout: Annotated[Duration, between("a requestTimeout", "0s", "24h")] = (
        f"{REQUEST_SECONDS:.0f}s"
    )
    """How long a request may wait for the model before it gets 504, such as 10s, up to 24h, unless the request has a timeout or deadline of its own. 0s: without limit."""

    autoscaling: Autoscaling | None = None
    """How the number of pods follows the load: a HorizontalPodAutoscaler for each class. Changing it creates no revision."""

    route: Route | None = None
    """An HTTPRoute of the Gateway API for requests to /v2/models/NAME, which gives a canary the exact shares of rollout.canary.steps, and at most the first of them before; requests to the model's Service then never reach a canary. Absent: none; a canary gets the share of its pods. Changing it creates no revision."""

    startup_timeout: Annotated[Duration | None, between("a startupTimeout", "10s", "24h")] = None
    """How long the server may take to load and verify the model before it is restarted, such as 30m, from 10s to 24h; absent: 10m."""

    termination_grace_period: Annotated[
        Duration | None, between("a terminationGracePeriod", "20s", "1h")
    ] = None
    """How long a pod may take to terminate, such as 5m, from 20s to 1h: requests still in progress are aborted 15s before the end; absent: 40s."""

    tls: Tls | None = None
    """TLS 1.2 and 1.3 on both ports, HTTP and gRPC, instead of plain text. The model's Service then has port 443 instead of 80. Absent: none."""

    auth: Auth | None = None
    """Who may send requests, over HTTP and gRPC: clients with a bearer token. Absent: everybody who reaches the pods."""

    access_log: AccessLog | None = None
    """Lines about single requests, with sizes and times, on the server's standard output. Absent: none. Changing it creates a new revision."""

    tracing: Tracing | None = None
    """OpenTelemetry spans of inference requests, sent to a collector over OTLP/HTTP. Absent: none. Changing it creates a new revision."""

    embeddings: Embeddings | None = None
    """Answers /v1/embeddings with vectors of texts, in OpenAI's form, for a model whose step in processing.before is a tokenizer. Absent: there is no such resource. Changing it creates a new revision."""

    sidecar: Sidecar = Sidecar()
    """Settings of the sidecar in every pod."""

    def options(self) -> ServingOptions:
        """Return what the server's task contains; the other fields decide the objects of its pods."""
        return ServingOptions(
            max_queue=self.max_queue,
            batch_size=self.batching.max_size,
            batch_delay_seconds=short_duration(self.batching.max_delay),
            batch_padding=dict(self.batching.padding) if self.batching.padding else None,
            concurrent_runs=self.max_concurrent_runs,
            request_seconds=duration(self.request_timeout).total_seconds(),
            access_log=self.access_log.options() if self.access_log else None,
            tracing=self.tracing.options() if self.tracing else None,
            embeddings=self.embeddings.options() if self.embeddings else None,
        )
