"""Maps stages to their code. Each is imported on its own: a stage needs no other's libraries."""
# ruff: noqa: PLC0415 - each stage's libraries are imported with it

from collections.abc import Callable
from functools import partial

from enginewright_contract.report import StageReport
from enginewright_contract.task import PREPARE_STAGES, EngineTask, PrepareTask

from enginewright_runtime.core.handoff import KnownArtifact
from enginewright_runtime.core.paths import Paths


def prepare_stage(name: str) -> Callable[[PrepareTask, Paths], StageReport]:
    """Return the function that runs a stage of a prepare Job."""
    if name == PREPARE_STAGES[0]:
        return _prepare_stage(name)
    return partial(_unless_known, name)


def _unless_known(name: str, task: PrepareTask, paths: Paths) -> StageReport:
    """Run a stage, unless `fetch` has found the prepared model: then it is not even imported."""
    artifact = KnownArtifact.find(paths.work)
    if artifact is None:
        return _prepare_stage(name)(task, paths)
    return StageReport(
        stage=name,
        ok=True,
        message=f"nothing to do: the store already had prepared model {artifact.published.key[:12]}",
        published=artifact.published if name == PREPARE_STAGES[-1] else None,
    )


def _prepare_stage(name: str) -> Callable[[PrepareTask, Paths], StageReport]:
    match name:
        case "fetch":
            from enginewright_runtime.prepare.fetch.stage import run
        case "validate":
            from enginewright_runtime.prepare.validate.stage import run
        case "convert":
            from enginewright_runtime.prepare.convert.stage import run
        case "golden":
            from enginewright_runtime.prepare.golden.stage import run
        case "quantize":
            from enginewright_runtime.prepare.quantize.stage import run
        case "publish":
            from enginewright_runtime.prepare.publish import run
        case _:
            raise ValueError(f"there is no stage {name}")
    return run


def engine_stage(name: str) -> Callable[[EngineTask, Paths], StageReport]:
    """Return the function that runs a stage of an engine Job."""
    match name:
        case "lookup":
            from enginewright_runtime.engine.lookup import run
        case "build":
            from enginewright_runtime.engine.build import run
        case "parse":
            from enginewright_runtime.engine.parse import run
        case "verify":
            from enginewright_runtime.engine.verify import run
        case "benchmark":
            from enginewright_runtime.engine.benchmark import run
        case "publish-engine":
            from enginewright_runtime.engine.publish_engine import run
        case _:
            raise ValueError(f"there is no stage {name}")
    return run
