"""Makes a model ready: checks its files, queries the driver, loads it, verifies its outputs.

In that order, so that a fault is reported by the step that causes it, without a device if possible.
All of it happens in the server process, so that the verified session is the one that serves. A
native crash here therefore ends the server; `main` ensures that the pod still reports why.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import enginewright_runtime.core.limits
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import processor
from enginewright_runtime.session.base import SessionBackend
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.extensions.verification import verify_libraries
from enginewright_runtime.session.loading import ask_device, find
from enginewright_runtime.session.placement import SessionPlacement
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import (
    Signature,
)

from enginewright_serving.manifest import read_manifest
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.processing.served import ServedSteps, serve_steps
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.observe.memory import resident_bytes
from enginewright_serving.server.startup.artifact import (
    check_device,
    check_engine_files,
    check_kind,
    check_processor,
)
from enginewright_serving.server.startup.baseline import baseline_feeds, measure
from enginewright_serving.server.startup.batch_proof import BatchProver, batch_feeds
from enginewright_serving.server.startup.concurrency import ConcurrencyProver, RunConditions
from enginewright_serving.server.startup.diagnosis import Diagnosis
from enginewright_serving.server.startup.execution import ExecutionReport
from enginewright_serving.server.startup.input_choice import choose
from enginewright_serving.server.startup.model_loading import load_session, open_cache, read_model
from enginewright_serving.server.startup.proofs import StartupProver
from enginewright_serving.server.startup.stopping import StoppableSession

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model that has passed all startup checks."""

    signature: Signature
    runner: Runner
    stop_run: Callable[[float], None]  # terminates the current run if it exceeds these seconds
    diagnosis: Diagnosis
    buckets: ComputeBuckets
    execution: ExecutionReport
    slowest_run: float  # seconds, during warm-up
    needs_driver: bool  # of NVIDIA
    batches: BatchLimits
    concurrent_runs: int
    summary: str  # one line for the log
    steps: ServedSteps | None = None  # before and after it

    @property
    def client_signature(self) -> Signature:
        """What clients send and receive."""
        return self.steps.signature if self.steps else self.signature


def prepare(
    task: ServeTask,
    artifact: Path,
    progress: Callable[[str], None],
    runtime_caches: Path | None = None,
) -> ServedModel:
    """Check, load, verify and warm up the model or engine of `artifact`.

    Args:
        task: which model on which backend, and what was promised about it.
        artifact: the folder with manifest, model and golden samples.
        progress: called with the current step, for users.
        runtime_caches: the folder of `RuntimeCache`; None: kernels are not kept.

    Raises:
        StageFailure: why it must not serve.
    """
    began = time.monotonic()
    progress("reading the manifest")
    manifest = read_manifest(task, artifact)
    backend = find(task.backend)
    other_products = _other_products(manifest)
    device = _check(task, artifact, manifest, backend, progress)
    threads = enginewright_runtime.core.limits.threads()
    _test_libraries(artifact, manifest, progress)
    load = partial(load_session, task, artifact, manifest, threads, device)
    caches = runtime_caches if backend.caches_kernels else None
    cache = open_cache(caches, task, artifact, manifest, load, device, progress)
    progress(f"loading the model on backend {task.backend}")
    loaded = load(cache.folder if cache else None)
    signature, samples = read_model(task, artifact, manifest, loaded)
    loaded_after, loaded_bytes = time.monotonic() - began, resident_bytes()
    on_device = backend.needs_driver and loaded.cause is None
    shapes, feeds = baseline_feeds(samples, manifest.recipe)
    inputs = choose(loaded.session, backend.host_memory() if on_device else None, signature, feeds)
    session = StoppableSession(inputs.session)
    runner = Runner(session, signature)
    buckets = ComputeBuckets()
    try:
        slowest = StartupProver(runner, signature, buckets).prove(
            samples, manifest, progress, steps=on_device
        )
    except StageFailure as failure:
        if other_products is None or failure.reason is not Reason.PARITY_FAILED:
            raise
        cause = f"{failure.cause}; {other_products}"
        raise StageFailure(Reason.PROCESSOR_MISMATCH, cause) from failure
    progress("timing batches of requests")
    memory = enginewright_runtime.core.limits.memory()
    # the host's memory says nothing about what fits on a device
    prover = BatchProver(runner, signature, buckets, None if on_device else memory)
    batches = prover.prove(
        samples,
        most=task.batch_size,
        delay=task.batch_delay_seconds,
        varying=bool(manifest.varying),
        on_cpu=backend.name == "cpu",
        by_sizes=loaded.placement.by_sizes,
    )
    progress(f"measuring the latency of {shapes}")
    usual = measure(partial(runner.run, list(signature.outputs)), shapes, feeds)
    concurrency = ConcurrencyProver(
        Runner(session, signature, shared=True), signature, progress
    ).prove(
        samples,
        batch_feeds(samples, batches) or feeds,
        batches,
        RunConditions(
            threads=threads,
            most=task.concurrent_runs,
            memory=memory,
            loaded=loaded_bytes,
            varying=bool(manifest.varying),
            on_cpu=backend.name == "cpu",
            foreign=bool(manifest.recipe.extensions),
        ),
    )
    slowest = max(slowest, prover.slowest, concurrency.slowest)
    if cache is not None:
        cache.keep()
    steps = serve_steps(artifact, manifest, signature, progress)
    seconds = time.monotonic() - began
    details = {
        "threads": threads,
        "outputs_left_out": signature.left_out,
        "batching": {"max_size": batches.rows, "off": batches.off},
        **({"runtime_cache": {"bytes": cache.bytes, "reused": cache.reused}} if cache else {}),
        **({"inputs": inputs.report} if inputs.report else {}),
        "concurrency": concurrency.details(),
        "proofs": {
            "golden_samples": len(samples),
            "slowest_run_seconds": round(slowest, 6),
            "load_seconds": round(loaded_after, 3),
            "ready_seconds": round(seconds, 3),
        },
    }
    return ServedModel(
        signature=signature,
        runner=runner if concurrency.runs == 1 else Runner(session, signature, shared=True),
        stop_run=session.stop,
        diagnosis=Diagnosis(
            runner.run,
            signature.outputs,
            samples,
            device.memory if on_device else memory,
        ),
        buckets=buckets,
        execution=ExecutionReport(
            task,
            manifest,
            backend,
            loaded,
            device,
            buckets,
            usual=usual,
            details=details,
            steps=steps,
        ),
        slowest_run=slowest,
        needs_driver=device.driver.needed and device.driver.present,
        batches=batches,
        concurrent_runs=concurrency.runs,
        summary=f"{_described(loaded.placement)}, {threads} threads, golden samples agree: {len(samples)},"
        f" loaded in {loaded_after:.1f} s, ready in {seconds:.1f} s",
        steps=steps,
    )


def _test_libraries(artifact: Path, manifest: Manifest, progress: Callable[[str], None]) -> None:
    if manifest.recipe.extensions:
        progress("test-loading the libraries of spec.extensions")
        verify_libraries(artifact / manifest.model, manifest.recipe.extensions)


def _described(placement: SessionPlacement) -> str:
    on_provider = placement.nodes.get(placement.provider, 0)
    return f"{on_provider} of {placement.total} nodes on {placement.provider}"


def _other_products(manifest: Manifest) -> str | None:
    """Return how this processor's INT8 products differ from the verified ones; None: they do not."""
    found = check_processor(manifest, processor.read())
    if found:
        _log.warning("%s: %s", Reason.PROCESSOR_MISMATCH, found)
    return found


def _check(
    task: ServeTask,
    artifact: Path,
    manifest: Manifest,
    backend: SessionBackend,
    progress: Callable[[str], None],
) -> Device:
    """Check what can be checked without loading; return what the driver reported."""
    check_kind(backend, manifest)
    engine = manifest.engine
    if engine is not None:
        progress("checking the engine's files")
        check_engine_files(task, artifact, manifest, engine, backend)
    if backend.needs_driver:
        progress("querying the driver")
    device = ask_device(backend)
    if engine is not None:
        check_device(engine, device)
    return device
