"""What stages of an engine Job leave in the work folder for each other, and parts of their reports."""

from math import isfinite
from typing import Final

from enginewright_contract.base import LIST_LENGTH
from enginewright_contract.manifest import (
    BackendLatency,
    EngineInfo,
    Latency,
    Manifest,
    OutputParity,
)
from enginewright_contract.report import (
    NAMED_NODES,
    PublishedBackend,
    PublishedEngine,
    PublishedLatency,
    StageReport,
)
from enginewright_contract.task import EngineRecipe
from enginewright_contract.unjudged import Unjudged

from enginewright_runtime.core.handoff import Handoff
from enginewright_runtime.core.labels import strip_fusion
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.proof.promise import coverage

PREPARED_FOLDER: Final = "prepared"  # the prepared model, with its golden samples
ENGINE_FOLDER: Final = "engine"  # the output of `build`
DRIVER: Final = "driver"  # its version in a manifest
_LONGEST_LABEL: Final = 60  # characters, in a termination message


class EngineBuilt(Handoff):
    """Left by `build`."""

    engine: EngineInfo | None = None  # unless the store already has it
    files: tuple[str, ...] = ()  # relative to the engine folder
    driver: str | None = None  # its version, of the device that it was built on


class EngineVerified(Handoff):
    """Left by `verify`."""

    parity_max_abs_error: float | None = None
    parity: tuple[OutputParity, ...] = ()  # against the prepared model and the expected outputs


class EngineBenchmarked(Handoff):
    """Left by `benchmark`."""

    latency: Latency | None = None  # of the opt shapes
    latencies: tuple[Latency, ...] = ()  # of all
    backends: tuple[BackendLatency, ...] | None = None  # that were compared


def report_cached(stage: str) -> StageReport:
    """Return the report of a stage whose engine is cached."""
    return StageReport(stage=stage, ok=True, message="cached: the store has this engine already")


def describe_published(manifest: Manifest, *, is_cached: bool) -> PublishedEngine:
    """Return the part of an engine's manifest that is sent to the operator."""
    engine = manifest.engine
    if engine is None:
        raise ValueError("a prepared model's manifest")
    worst = _worst(engine.parity)
    return PublishedEngine(
        key=manifest.key,
        sha256=engine.sha256,
        size_bytes=engine.size_bytes,
        build_seconds=engine.build_seconds,
        compute_capabilities=engine.compute_capabilities,
        nodes_total=engine.nodes_total,
        nodes_accelerated=engine.nodes_accelerated,
        compute_share_elsewhere=engine.compute_share_elsewhere,
        workspace_bytes=engine.workspace_bytes,
        latency_p99=engine.latency.p99 if engine.latency else None,
        parity_max_abs_error=engine.parity_max_abs_error,
        parity_max_rel_error=worst.max_rel_error if worst else None,
        parity_with=worst.compared_with if worst else "prepared",
        unjudged=Unjudged.find(engine.parity, manifest.recipe, manifest.precision).cause or None,
        cached=is_cached,
        versions=_versions(manifest, engine.recipe),
        latencies=tuple(
            PublishedLatency(
                shapes=shorten(latency.shapes or ""),
                p50=round(latency.p50, 6),
                p99=round(latency.p99, 6),
            )
            for latency in engine.latencies[:LIST_LENGTH]
        ),
        elsewhere=tuple(_elsewhere(manifest)),
        backends=tuple(_describe_backend(backend) for backend in engine.backends or ()),
    )


def _describe_backend(compared: BackendLatency) -> PublishedBackend:
    latency = compared.latency
    if latency is None:
        return PublishedBackend(backend=compared.backend, excluded=compared.excluded)
    return PublishedBackend(
        backend=compared.backend,
        shapes=shorten(latency.shapes or ""),
        p50=round(latency.p50, 6),
        p99=round(latency.p99, 6),
    )


def _versions(manifest: Manifest, recipe: EngineRecipe) -> dict[str, str]:
    versions = {
        "backend": recipe.backend_version,
        "ort": recipe.ort_version,
        "cuda": recipe.cuda_major,
        DRIVER: manifest.versions.get(DRIVER),
    }
    return {name: version for name, version in versions.items() if version}


def _worst(parity: tuple[OutputParity, ...]) -> OutputParity | None:
    compared = [
        output_parity for output_parity in parity if output_parity.compared_with != "expected"
    ]
    if not compared:
        return None
    relative = [
        output_parity.max_rel_error
        for output_parity in compared
        if output_parity.max_rel_error is not None and isfinite(output_parity.max_rel_error)
    ]
    return compared[0].model_copy(update={"max_rel_error": max(relative, default=None)})


def summary(engine: EngineInfo) -> str:
    """Return one line about an engine."""
    parts = len(engine.partitions)
    split = "" if parts == 1 else f" in {parts} engines"
    return (
        f"{engine.nodes_accelerated} of {engine.nodes_total} compute nodes{split},"
        f" {format_bytes(engine.size_bytes)}, for compute capability"
        f" {', '.join(engine.compute_capabilities) or 'unknown'}"
    )


def _elsewhere(manifest: Manifest) -> list[str]:
    engine = manifest.engine
    if engine is None or engine.nodes_accelerated == engine.nodes_total:
        return []
    inside = {name for part in engine.partitions for name in part.nodes}
    bare = {name.rpartition(" (")[0] for name in inside}
    names = [
        cost.label
        for cost in manifest.node_costs
        if cost.label not in inside
        and strip_fusion(cost.label) not in bare
        and coverage([cost.label], manifest)[1]
    ]
    return [shorten(name) for name in names[:NAMED_NODES]]


def shorten(label: str) -> str:
    """Return a node's label, with its operator, shortened for a termination message."""
    if len(label) <= _LONGEST_LABEL:
        return label
    name, bracket, operator = label.rpartition(" (")
    end = f"…{bracket}{operator}"
    return name[: max(0, _LONGEST_LABEL - len(end))] + end[-_LONGEST_LABEL:]
