"""The server's report of how it runs the model, read from the live session at every request."""

from importlib import metadata
from typing import Any

import onnxruntime as ort
import orjson
from enginewright_contract.execution import Baseline, Execution, PaddedRequests, StartTimes
from enginewright_runtime.session import processor
from enginewright_runtime.session.base import distributions
from enginewright_runtime.session.loading import LoadedModel
from enginewright_runtime.session.placement import LiveSession

from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.padding import Padding
from enginewright_serving.server.inference.processing.served import ServedSteps
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.startup.artifact import CheckedArtifact


class ExecutionReport:
    """Answers `GET /v2/models/<model>/execution`; for the event loop's thread."""

    def __init__(
        self,
        artifact: CheckedArtifact,
        loaded: LoadedModel,
        buckets: ComputeBuckets,
        *,
        usual: Baseline | None,
        times: StartTimes,
        batches: BatchLimits,
        details: dict[str, Any],
        steps: ServedSteps | None = None,
    ) -> None:
        task, manifest, backend = artifact.task, artifact.manifest, artifact.backend
        self._live = LiveSession(loaded.session, loaded.placement)
        self._buckets = buckets
        versions = {"onnxruntime": str(ort.__version__), backend.name: backend.version()}
        engine = manifest.engine
        cause = loaded.cause
        self._fixed: dict[str, Any] = {
            "model": task.model,
            "revision": task.revision,
            "backend": backend.name,
            "provider": backend.provider,
            "provider_reason": cause.reason if cause else None,
            "provider_message": cause.cause if cause else "",
            "driver": artifact.device.driver,
            "model_digest": manifest.model_digest,
            "prepared_key": task.prepared_key,
            "engine_key": task.engine_key,
            "engine_sha256": engine.sha256 if engine else None,
            "opset": manifest.opset,
            "ort_distributions": distributions(),
            "ort_version": versions["onnxruntime"],
            "backend_version": versions[backend.name],
            "runtime_version": metadata.version("enginewright"),
            "processor": processor.read(),
            "usual": usual,
            "times": times,
            "batch_rows": batches.rows,
            "padding": _describe_padding(batches.padding),
            "steps": steps.executed if steps else (),
        }
        self._details = details | {"versions": versions}
        self._manifest = orjson.Fragment(manifest.model_dump_json())

    def document(self) -> bytes:
        """Return the contract's `Execution` as JSON, with further `details` for users."""
        running = self._live.read()
        placement = running.placement
        execution = Execution(
            **self._fixed,
            providers=running.providers,
            session=running.number,
            placement=placement.facts(),
            buckets=self._buckets.report(),
        )
        details = {
            "placement": {
                "total": placement.total,
                "share": placement.share,
                "elsewhere_count": len(placement.elsewhere),
            },
            **self._details,
            "manifest": self._manifest,
        }
        document = execution.model_dump(mode="json", exclude_none=True)
        return orjson.dumps(document | {"details": details})


def _describe_padding(padding: Padding | None) -> PaddedRequests | None:
    if padding is None or not padding.inputs:
        return None
    return PaddedRequests.model_validate(padding, from_attributes=True)
