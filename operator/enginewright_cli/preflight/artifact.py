"""What the manifest of an artefact says about a target: preflight has just made it, `store report` reads it out of a store."""

from enginewright_contract.manifest import EngineInfo, Manifest
from enginewright_contract.unjudged import Unjudged

from enginewright_cli.preflight import placement
from enginewright_cli.preflight.result import Engine, Parity, TargetResult


def describe_engine(info: EngineInfo) -> Engine:
    """Return the facts of an engine."""
    return Engine(
        sha256=info.sha256,
        compute_capabilities=info.compute_capabilities,
        partitions=len(info.partitions),
        ahead_of_time=info.recipe.ahead_of_time,
        peak_memory_bytes=info.peak_memory_bytes,
        max_abs_error=info.parity_max_abs_error,
        outputs=info.parity,
    )


def describe_parity(manifest: Manifest) -> Parity:
    """Return how close the prepared model is to its source."""
    is_judged = manifest.parity and not Unjudged.of_artefact(manifest).unaccepted
    return Parity(verdict="pass" if is_judged else "unknown", outputs=manifest.parity)


def describe_artifact(manifest: Manifest) -> TargetResult:
    """Return what is known of a stored engine or prepared model; it warns of nodes outside the engine."""
    info = manifest.engine
    common = TargetResult(
        verdict="pass",
        backend=manifest.recipe.backend,
        precision=manifest.served_precision,
        changes=manifest.changes,
        parity=describe_parity(manifest),
        versions=manifest.versions,
        prepared_key=info.prepared_key if info else manifest.key,
    )
    if info is None:
        return common
    return common.model_copy(
        update={
            "verdict": "pass" if info.nodes_accelerated == info.nodes_total else "warn",
            "backend": info.recipe.backend,
            "nodes_total": info.nodes_total,
            "nodes_accelerated": info.nodes_accelerated,
            "compute_share_elsewhere": info.compute_share_elsewhere,
            "placement": placement.of_engine(manifest),
            "engine_bytes": info.size_bytes,
            "build_seconds": info.build_seconds,
            "engine": describe_engine(info),
            "engine_key": manifest.key,
        }
    )
