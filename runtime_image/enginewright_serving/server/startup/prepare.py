"""Makes a model ready: checks its files, queries the driver, loads it, verifies its outputs.

In that order, so that the step that finds a fault reports it, without a device if possible. In the server process, so
that the verified session is the one that serves. A native crash ends the server; `main` ensures that the pod still
reports why.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from enginewright_contract.execution import Baseline, StartTimes
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_runtime.core import limits
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import processor
from enginewright_runtime.session.extensions.verification import verify_libraries
from enginewright_runtime.session.loading import LoadedModel, ask_device, find
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature

from enginewright_serving.manifest import list_profiles, read_manifest
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.processing.served import ServedSteps, serve_steps
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.observe.memory import resident_bytes
from enginewright_serving.server.startup.artifact import (
    CheckedArtifact,
    check_device,
    check_engine_files,
    check_kind,
    check_processor,
)
from enginewright_serving.server.startup.baseline import baseline_feeds, measure
from enginewright_serving.server.startup.batch_proof import BatchProver, batch_feeds
from enginewright_serving.server.startup.concurrency import (
    Concurrency,
    ConcurrencyProver,
    RunConditions,
)
from enginewright_serving.server.startup.diagnosis import Diagnosis
from enginewright_serving.server.startup.embeddings import ServedEmbeddings, find_embeddings
from enginewright_serving.server.startup.execution import ExecutionReport
from enginewright_serving.server.startup.input_choice import InputChoice, choose
from enginewright_serving.server.startup.model_loading import (
    Golden,
    load_session,
    open_cache,
    read_model,
)
from enginewright_serving.server.startup.padding_proof import PaddingProver
from enginewright_serving.server.startup.proofs import StartupProver
from enginewright_serving.server.startup.runtime_cache import RuntimeCache
from enginewright_serving.server.startup.stopping import StoppableSession

_log: Final = logging.getLogger(__name__)
_NOTHING: Final = StartTimes()


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
    embeddings: ServedEmbeddings | None = None

    @property
    def client_signature(self) -> Signature:
        """What clients send and receive."""
        return self.steps.signature if self.steps else self.signature


@dataclass(frozen=True)
class _Loaded:
    model: LoadedModel
    cache: RuntimeCache | None  # of kernels, if these are kept
    signature: Signature
    golden: Golden
    at: float  # when, as `time.monotonic()`
    resident: int  # bytes of the process, before the first run
    on_device: bool
    inputs: InputChoice
    session: StoppableSession
    runner: Runner
    buckets: ComputeBuckets

    def share(self) -> Runner:
        return Runner(self.session, self.signature, shared=True)


@dataclass(frozen=True)
class _Timed:
    slowest: float  # seconds of a run
    batches: BatchLimits
    padding_off: str  # why requests are not padded, where that was asked for
    usual: Baseline | None
    concurrency: Concurrency
    times: StartTimes


def prepare(
    task: ServeTask,
    artifact: Path,
    progress: Callable[[str], None],
    runtime_caches: Path | None = None,
    earlier: StartTimes = _NOTHING,
) -> ServedModel:
    """Check, load, verify and warm up the model in the folder `artifact`; raise StageFailure if it must not serve.

    `progress` gets the current step, for users. Kernels are kept in the folder `runtime_caches`, if it exists.
    `earlier` are times of another pod of the revision.
    """
    began = time.monotonic()
    checked = _check(task, artifact, progress)
    loaded = _load(checked, runtime_caches, progress)
    timed = _time(checked, loaded, _verify(checked, loaded, progress), earlier, progress)
    if loaded.cache is not None:
        loaded.cache.keep()
    steps = serve_steps(artifact, checked.manifest, loaded.signature, progress)
    embeddings = None
    if task.embeddings is not None:
        profiles = list_profiles(checked.manifest)
        profiled = {profile.input for inputs in profiles for profile in inputs}
        embeddings = find_embeddings(task.embeddings, steps, loaded.golden.samples, profiled)
    load_seconds, seconds = loaded.at - began, time.monotonic() - began
    device, placement = checked.device, loaded.model.placement
    memory = device.memory if loaded.on_device else checked.memory
    return ServedModel(
        signature=loaded.signature,
        runner=loaded.runner if timed.concurrency.runs == 1 else loaded.share(),
        stop_run=loaded.session.stop,
        diagnosis=Diagnosis(
            loaded.runner.run, loaded.signature.outputs, loaded.golden.samples, memory
        ),
        buckets=loaded.buckets,
        execution=ExecutionReport(
            checked,
            loaded.model,
            loaded.buckets,
            usual=timed.usual,
            times=timed.times,
            batches=timed.batches,
            details=_details(checked, loaded, timed, load_seconds, seconds)
            | ({"embeddings": embeddings.describe()} if embeddings else {}),
            steps=steps,
        ),
        slowest_run=timed.slowest,
        needs_driver=device.driver.needed and device.driver.present,
        batches=timed.batches,
        concurrent_runs=timed.concurrency.runs,
        summary=f"{placement.nodes.get(placement.provider, 0)} of {placement.total} nodes on"
        f" {placement.provider}, {checked.threads} threads, golden samples agree: {len(loaded.golden.samples)},"
        f" loaded in {load_seconds:.1f} s, ready in {seconds:.1f} s",
        steps=steps,
        embeddings=embeddings,
    )


def _check(task: ServeTask, artifact: Path, progress: Callable[[str], None]) -> CheckedArtifact:
    progress("reading the manifest")
    manifest = read_manifest(task, artifact)
    backend = find(task.backend)
    other_products = check_processor(manifest, processor.read())
    if other_products:
        _log.warning("%s: %s", Reason.PROCESSOR_MISMATCH, other_products)
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
    threads, memory = limits.threads(), limits.memory()
    if manifest.recipe.extensions:
        progress("test-loading the libraries of spec.extensions")
        verify_libraries(artifact / manifest.model, manifest.recipe.extensions)
    return CheckedArtifact(
        task, artifact, manifest, backend, device, other_products, threads, memory
    )


def _load(
    checked: CheckedArtifact, runtime_caches: Path | None, progress: Callable[[str], None]
) -> _Loaded:
    task, artifact, manifest = checked.task, checked.folder, checked.manifest
    backend, device = checked.backend, checked.device
    load = partial(load_session, task, artifact, manifest, checked.threads, device)
    caches = runtime_caches if backend.caches_kernels else None
    cache = open_cache(caches, task, artifact, manifest, load, device, progress)
    progress(f"loading the model on backend {task.backend}")
    model = load(cache.folder if cache else None)
    signature, golden = read_model(task, artifact, manifest, model)
    at, resident = time.monotonic(), resident_bytes()
    on_device = backend.needs_driver and model.cause is None
    _, feeds = baseline_feeds(golden.samples, manifest.recipe)
    inputs = choose(model.session, backend.host_memory() if on_device else None, signature, feeds)
    session = StoppableSession(inputs.session)
    runner, buckets = Runner(session, signature), ComputeBuckets()
    return _Loaded(
        model, cache, signature, golden, at, resident, on_device, inputs, session, runner, buckets
    )


def _verify(checked: CheckedArtifact, loaded: _Loaded, progress: Callable[[str], None]) -> float:
    prover = StartupProver(loaded.runner, loaded.signature, loaded.buckets)
    try:
        return prover.prove(
            loaded.golden.samples,
            checked.manifest,
            progress,
            steps=loaded.on_device,
            parts=loaded.golden.parts,
        )
    except StageFailure as failure:
        if checked.other_products is None or failure.reason is not Reason.PARITY_FAILED:
            raise
        cause = f"{failure.cause}; {checked.other_products}"
        raise StageFailure(Reason.PROCESSOR_MISMATCH, cause) from failure


def _time(
    checked: CheckedArtifact,
    loaded: _Loaded,
    slowest: float,
    earlier: StartTimes,
    progress: Callable[[str], None],
) -> _Timed:
    """Time batches, the usual run and several runs at a time; `slowest` is the seconds of the slowest run so far."""
    task, runner, signature, samples = (
        checked.task,
        loaded.runner,
        loaded.signature,
        loaded.golden.samples,
    )
    varying, on_cpu = bool(checked.manifest.varying), checked.backend.name == "cpu"
    shapes, feeds = baseline_feeds(samples, checked.manifest.recipe)
    progress("timing batches of requests")
    # the host's memory says nothing about what fits on a device
    memory = None if loaded.on_device else checked.memory
    prover = BatchProver(runner, signature, loaded.buckets, memory, earlier.batches)
    batches = prover.prove(
        samples,
        most=task.batch_size,
        delay=task.batch_delay_seconds,
        varying=varying,
        on_cpu=on_cpu,
        by_sizes=loaded.model.placement.by_sizes,
        by_range=loaded.model.placement.by_range,
        sized_by_values=checked.manifest.sized_by_values,
    )
    padding_off = ""
    if task.batch_padding:
        progress("proving padded batches")
        padding, padding_off = PaddingProver(runner, signature).prove(
            samples, task.batch_padding, batches
        )
        batches = replace(batches, padding=padding or batches.padding)
    progress(f"measuring the latency of {shapes}")
    usual = measure(partial(runner.run, list(signature.outputs), feeds), shapes, earlier.usual)
    conditions = RunConditions(
        threads=checked.threads,
        most=task.concurrent_runs,
        memory=checked.memory,
        loaded=loaded.resident,
        varying=varying,
        on_cpu=on_cpu,
        foreign=bool(checked.manifest.recipe.extensions),
    )
    runs = ConcurrencyProver(loaded.share(), signature, progress, earlier.gains)
    concurrency = runs.prove(samples, batch_feeds(samples, batches) or feeds, batches, conditions)
    slowest = max(slowest, prover.slowest, concurrency.slowest)
    times = StartTimes(batches=prover.times, gains=runs.gains)
    return _Timed(slowest, batches, padding_off, usual, concurrency, times)


def _details(
    checked: CheckedArtifact, loaded: _Loaded, timed: _Timed, load_seconds: float, seconds: float
) -> dict[str, Any]:
    cache, inputs, batches = loaded.cache, loaded.inputs, timed.batches
    return {
        "threads": checked.threads,
        "outputs_left_out": loaded.signature.left_out,
        "batching": {
            "max_size": batches.rows,
            "off": batches.off,
            **({"padding_off": timed.padding_off} if checked.task.batch_padding else {}),
            **_details_of_sizes(batches),
        },
        **({"runtime_cache": {"bytes": cache.bytes, "reused": cache.reused}} if cache else {}),
        **({"inputs": inputs.report} if inputs.report else {}),
        "concurrency": timed.concurrency.details(),
        "proofs": {
            "golden_samples": len(loaded.golden.samples),
            "slowest_run_seconds": round(timed.slowest, 6),
            "load_seconds": round(load_seconds, 3),
            "ready_seconds": round(seconds, 3),
        },
    }


def _details_of_sizes(batches: BatchLimits) -> dict[str, Any]:
    padding = batches.padding
    return {
        **({"gains": {str(size): gain for size, gain in batches.gains}} if batches.gains else {}),
        **({"largest": padding.largest} if padding and padding.largest else {}),
        **({"padding_longest": padding.longest} if padding and padding.inputs else {}),
    }
