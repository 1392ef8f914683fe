"""What the server says about how it runs the model, read from the live session at every request."""

from dataclasses import dataclass
from importlib import metadata
from typing import Any

import onnxruntime as ort
import orjson
from enginewright.contract.execution import Baseline, Execution, PlacementFacts
from enginewright.contract.manifest import Manifest
from enginewright.contract.task import ServeTask

from enginewright_runtime.serve.server.buckets import ComputeBuckets
from enginewright_runtime.session import processor
from enginewright_runtime.session.base import Backend, distributions
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.loading import LoadedModel
from enginewright_runtime.session.placement import LiveSession


@dataclass(frozen=True)
class Proofs:
    """What was found at start, for people."""

    golden_samples: int
    slowest_run_seconds: float
    load_seconds: float
    ready_seconds: float
    threads: int
    outputs_left_out: tuple[str, ...]
    usual: Baseline | None


class ExecutionReport:
    """Answers `GET /v2/models/<model>/execution`; for the event loop's thread."""

    def __init__(
        self,
        task: ServeTask,
        manifest: Manifest,
        backend: Backend,
        loaded: LoadedModel,
        device: Device,
        buckets: ComputeBuckets,
        proofs: Proofs,
    ) -> None:
        self._live = LiveSession(loaded.session, loaded.placement)
        self._buckets = buckets
        versions = {"onnxruntime": str(ort.__version__), backend.name: backend.version()}
        engine = manifest.engine
        cause = loaded.cause
        # what cannot change while the process lives
        self._fixed: dict[str, Any] = {
            "model": task.model,
            "revision": task.revision,
            "backend": backend.name,
            "provider": backend.provider,
            "provider_reason": cause.reason if cause else None,
            "provider_message": cause.message if cause else "",
            "driver": device.driver,
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
            "usual": proofs.usual,
        }
        self._proofs = {
            "threads": proofs.threads,
            "versions": versions,
            "outputs_left_out": proofs.outputs_left_out,
            "proofs": {
                "golden_samples": proofs.golden_samples,
                "slowest_run_seconds": round(proofs.slowest_run_seconds, 6),
                "load_seconds": round(proofs.load_seconds, 3),
                "ready_seconds": round(proofs.ready_seconds, 3),
            },
        }
        self._manifest = orjson.Fragment(manifest.model_dump_json())

    def document(self) -> bytes:
        """Return the contract's `Execution` as JSON, and beside it in `details` what people ask."""
        running = self._live.read()
        placement = running.placement
        execution = Execution(
            **self._fixed,
            providers=running.providers,
            session=running.number,
            placement=PlacementFacts(
                nodes=dict(placement.nodes),
                elsewhere=placement.elsewhere,
                context_nodes=placement.context_nodes,
            ),
            buckets=self._buckets.told(),
        )
        details = {
            "placement": {
                "total": placement.total,
                "share": placement.share,
                "elsewhere_count": len(placement.elsewhere),
            },
            **self._proofs,
            "manifest": self._manifest,
        }
        told = execution.model_dump(mode="json", exclude_none=True)
        return orjson.dumps(told | {"details": details})
