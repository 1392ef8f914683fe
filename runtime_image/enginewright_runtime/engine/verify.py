"""Verifies that the engine is intact, and, with a device, that its outputs are correct."""

from pathlib import Path
from typing import Final

from enginewright_contract.engines import whole_only
from enginewright_contract.manifest import MANIFEST_NAME, MODEL_NAME, EngineInfo, Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport
from enginewright_contract.task import EngineTask

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import MODEL_FOLDER
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.labels import CONTEXT_OP
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine import handoff
from enginewright_runtime.engine.handoff import (
    ENGINE_FOLDER,
    PREPARED_FOLDER,
    EngineBuilt,
    EngineVerified,
)
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.checker import checker_error
from enginewright_runtime.proof.golden_run import (
    EXPECTED_OUTPUTS,
    GoldenFiles,
    GoldenRun,
    JudgedRun,
)
from enginewright_runtime.tensorrt.header import check_engine

STAGE: Final = "verify"
_LOWERING: Final = frozenset({"precision", "quantize"})
_AGAINST: Final = {
    "source": "the source",
    "prepared": "the prepared model",
    "expected": EXPECTED_OUTPUTS,
}


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Check the engine and its wrapper, and its outputs on a device; leaves `EngineVerified`."""
    built = EngineBuilt.read(paths.work)
    if built.engine is None:
        EngineVerified().write(paths.work)
        return handoff.report_cached(STAGE)
    outcome = check(task, paths, built.engine, read_manifest(paths.work))
    if outcome is None:
        EngineVerified().write(paths.work)
        return StageReport(
            stage=STAGE,
            ok=True,
            message="digest, version, compute capability and wrapper agree; built without a device,"
            " so the serving pods check its outputs",
        )
    worst = outcome.max_abs_error
    EngineVerified(parity_max_abs_error=worst, parity=outcome.parity).write(paths.work)
    error = f", largest absolute error {worst:.3g}" if worst is not None else ""
    return StageReport(
        stage=STAGE,
        ok=True,
        message="digest, version, compute capability and wrapper agree; golden samples agree:"
        f" {outcome.samples}{error}",
        findings=tuple(
            Finding(severity="warning", reason=Reason.PARITY_FAILED, cause=text)
            for text in outcome.warnings
        ),
        facts={"parity": [parity.model_dump(mode="json") for parity in outcome.parity]},
    )


def check(
    task: EngineTask, paths: Paths, engine: EngineInfo, manifest: Manifest
) -> GoldenRun | None:
    """Check the engine and its wrapper in the work folder, and its outputs if a device builds it; raises StageFailure.

    `manifest` is the prepared model's.
    """
    recipe, folder = task.recipe, paths.work / ENGINE_FOLDER
    check_engine(folder / engine.file, engine, recipe.compute_capability, recipe.backend_version)
    check_wrapper(folder / MODEL_FOLDER, engine, manifest)
    return None if recipe.ahead_of_time else prove(task, paths, manifest)


def prove(task: EngineTask, paths: Paths, manifest: Manifest) -> GoldenRun:
    """Compare the engine's outputs with the golden and the expected ones; raises StageFailure."""
    backend = task.recipe.backend
    model = paths.work / ENGINE_FOLDER / MODEL_FOLDER / MODEL_NAME
    outcome = make_run(model, backend, paths.work, manifest).run()
    if outcome.refusal:
        raise StageFailure(Reason.BUILD_FAILED, f"the engine {outcome.refusal}")
    if failed := outcome.failed:
        against = _AGAINST[failed.against]
        raise StageFailure(
            Reason.PARITY_FAILED, f"on backend {backend}, {failed.description} against {against}"
        )
    return outcome


def make_run(model: Path, backend: str, work: Path, manifest: Manifest) -> JudgedRun:
    """Return the run of the prepared model's golden inputs on a backend; `model` is that model or its engine."""
    folder = work / PREPARED_FOLDER
    expected, parts = manifest.golden_expected, manifest.golden_parts
    # golden outputs are the source's: a prepared model of lower precision has slightly different ones
    lowered = any(change.kind in _LOWERING for change in manifest.changes)
    return JudgedRun(
        model=model,
        backend=backend,
        files=GoldenFiles(
            folder / manifest.golden_inputs,
            folder / manifest.golden_outputs,
            folder / expected if expected else None,
            folder / parts if parts else None,
        ),
        recipe=manifest.recipe,
        compared_with="source" if lowered else "prepared",
        precision=manifest.precision,
        source_precision=manifest.source_precision,
        varying=manifest.varying or (),
    )


def read_manifest(work: Path) -> Manifest:
    """Return the prepared model's manifest, which `build` fetched."""
    return Manifest.model_validate_json((work / PREPARED_FOLDER / MANIFEST_NAME).read_bytes())


def check_wrapper(folder: Path, engine: EngineInfo, manifest: Manifest) -> None:
    """Check the EPContext model: valid, with the prepared model's inputs and outputs."""
    path = folder / MODEL_NAME
    model = graphs.parse(path)
    nodes = [node for node in model.graph.node if node.op_type == CONTEXT_OP]
    names = {node.name for node in nodes}
    files = {
        attribute.s.decode()
        for node in nodes
        for attribute in node.attribute
        if attribute.name == "ep_cache_context"
    }
    wrong = Call(checker_error, "checking the EPContext model", Limits.of_model()).run(path)
    if len(model.graph.node) > 1 and (limit := whole_only(engine.recipe.backend)):
        wrong = limit
    elif names != {part.context_node for part in engine.partitions}:
        wrong = "its EPContext nodes do not match the partitions"
    elif lost := [name for name in sorted(files) if not (folder / name).is_file()]:
        wrong = f"engine file {lost[0]} is not beside it"
    elif graphs.inputs_of(model) != manifest.inputs or graphs.outputs_of(model) != manifest.outputs:
        wrong = "its inputs and outputs are not the prepared model's"
    if wrong:
        raise StageFailure(Reason.BUILD_FAILED, f"the EPContext model is invalid: {wrong}")
